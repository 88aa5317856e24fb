// SPDX-License-Identifier: Apache-2.0
// What a check of an emitted table looks at, in which order, and what it concludes. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/statistics.h"
#include "tuner/emit.h"
#include "tuner/outcome.h"

namespace muse::tuner {

enum class CheckVerdict : uint8_t {
  kTuned,    ///< none of the table is faster by more than it was known to lose and the margin
  kNoisy,    ///< what was measured leaves that open
  kDrifted,  ///< another one is, or the time is not what was recorded
  kWrong,    ///< it failed a gate, or did not run to its end
};
std::string_view name(CheckVerdict verdict);

struct CheckRules {
  double tie_pct = 0.5;
  double switch_margin_pct = 1.0;
  double drift_pct = 5;  ///< beyond the recorded interval
  double step_ns = 1;
};

/// A pipeline of the table on a shape, as it was found here.
struct CheckedPipeline {
  std::string pipeline;            ///< chain key
  Outcome outcome = Outcome::kOk;  ///< of its gates and its race
  std::string reason;              ///< where it was not measured
  std::vector<double> ns;          ///< deciding rounds, pairs by position; NaN = no sample
  double median_ns = 0;            ///< 0 = not measured
  profiler::Interval interval;     ///< of the median
  profiler::Interval behind;       ///< of median(own - leader), ns, as far as it raced
  bool decides = false;            ///< it came to the last rounds
  bool measured() const { return is_measured(outcome) && median_ns > 0; }
  /// It failed here: neither measured nor merely not for this shape.
  bool failed() const;
};

/// All that raced on one shape.
struct CheckedShape {
  std::string shape;  ///< key
  std::vector<CheckedPipeline> pipelines;
  bool degraded = false;  ///< rounds were kept that should have been rejected

  const CheckedPipeline* find(const std::string& pipeline) const;
  /// The least median of those that decide; null where nothing was measured.
  const CheckedPipeline* best() const;
};

/// What a table says of a pipeline on a shape.
struct Recorded {
  std::string pipeline;
  profiler::Interval interval;  ///< 0, 0: not recorded, or not to be compared
  double allowed_pct = 0;       ///< it was chosen although so much was lost
  std::string base = {};        ///< chain key
  double base_median_ns = 0;    ///< 0 = not recorded
};

struct Finding {
  CheckVerdict verdict = CheckVerdict::kTuned;
  std::string reason;  ///< a sentence
  /// Time lost against the best measured here, as a ratio less 1; none where it was not measured.
  std::optional<double> regret;
};
Finding judge(const CheckedShape& here, const Recorded& recorded, const CheckRules& rules);

/// Rows in the order in which they are worth a look: of each structure (all but batch and context)
/// first the one whose choice saves the most of the base's time, the structures by that; then the
/// others in an order that follows from the seed, the structures by turns. Indices.
std::vector<size_t> check_order(const std::vector<DispatchRow>& rows, uint64_t seed);

/// What races on a shape: `picks`, the base, then what the table names for the nearest rows, up to
/// `most` (at least the picks and the base) in all. Chain keys, each once.
std::vector<std::string> check_rivals(const DispatchTable& table, const Shape& shape,
                                      const std::vector<std::string>& picks, size_t most);

}  // namespace muse::tuner
