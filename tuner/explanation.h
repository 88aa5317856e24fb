// SPDX-License-Identifier: Apache-2.0
// Why each trial of a run is where it is, out of the database alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/statistics.h"
#include "tuner/stored_selection.h"

namespace muse::tuner {

/// What became of a trial; in the order in which a list shows them.
enum class Fate : uint8_t {
  kChosen,
  kTied,         ///< cannot be told from the leader, or gains too little over the base
  kSlower,       ///< in the final, surely slower
  kDropped,      ///< left the race by an interval
  kMeasured,     ///< in a race that is not there any more
  kExcluded,     ///< too few good samples
  kFailed,       ///< a gate, a crash, a hang, no memory
  kQuarantined,  ///< its code crashed or hung on this device too often
  kNotCompiled,
  kUnfinished,  ///< the work was stopped there
  kNotTried,    ///< on purpose, or not yet
  kSkipped,     ///< unsupported
};
std::string_view name(Fate fate);  ///< chosen, tied, slower, ..., not_compiled, not_tried, ...

struct ExplainedTrial {
  db::Id trial = 0;  ///< 0 where there is none: a pipeline that was not among those measured
  std::string candidate, state;
  Fate fate = Fate::kNotTried;
  std::string why;  ///< in words, one line
  bool base = false;
  bool reused = false;     ///< known from an earlier run
  db::Id reused_from = 0;  ///< that run; 0 where the database does not say
  std::optional<double> median_ns;
  profiler::Interval interval;  ///< of the median
  /// Of median(own - leader), ns: of the final, or of the rounds it was dropped by.
  std::optional<profiler::Interval> behind_ns;
  int dropped_in_round = -1;
  db::Id race = 0;  ///< that measured it
  /// Pipelines made of stages: the sum of their medians, measured alone, and the place by that sum,
  /// which ways to launch the same stages share.
  std::optional<double> stage_sum_ns;
  int rank = 0, ranked = 0;
  std::optional<double> interaction_ns() const {
    if (!stage_sum_ns || !median_ns) return std::nullopt;
    return *median_ns - *stage_sum_ns;
  }
};

/// All that was compared with each other.
struct ExplainedGroup {
  std::string problem, span, handoff, regime;
  std::optional<db::SelectionRow> selection;  ///< none where nothing valid was left, or not yet
  std::string chosen;                         ///< candidate key
  std::string leader;                         ///< of the race; empty where it is not known
  std::vector<std::string> tie_set;
  std::optional<profiler::Interval> gain_pct;  ///< over the base, where it is not the base
  std::string searched;        ///< how much of the space a search saw; empty where all of it was
  std::string not_replayable;  ///< why the selection cannot be recomputed
  std::vector<std::string> differences;  ///< of the recomputed selection from the stored one
  std::vector<ExplainedTrial> trials;    ///< by fate, then the best first, then key
};

/// "fastest", "tie, least workspace", ...
std::string rule_text(const std::string& rule);

/// The groups of a run by problem, regime, span and hand-off; only those `wanted` (of problem key
/// and span) are looked at.
std::vector<ExplainedGroup> explain(
    const db::Store& store, const db::RunRow& run,
    const std::function<bool(const std::string& problem, const std::string& span)>& wanted);

}  // namespace muse::tuner
