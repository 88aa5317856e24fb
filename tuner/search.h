// SPDX-License-Identifier: Apache-2.0
// Which candidates of one span of one shape are measured where not all are. Pure: it is fed with
// medians and has never heard of a device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tuner/spec.h"
#include "variants/variant.h"

namespace muse::tuner {

/// A candidate as a searcher sees it.
struct SearchPoint {
  const Variant* variant = nullptr;
  Configuration configuration;
  double estimate_ns = 0;  ///< of the floor model; 0 = no opinion
  bool required = false;   ///< in the first batch whatever else is (the base)
};

/// Proposes batches until its share of the candidates is evaluated. A function of the points, the
/// rules, the seed and what it was told: a search that was cut off is repeated by telling the same.
class Searcher {
 public:
  virtual ~Searcher() = default;

  /// The candidates to evaluate next, ascending indices; empty = done. The same until all of them
  /// were told.
  const std::vector<int>& propose();
  /// Whether nothing follows the batch that is proposed: what is told of it changes nothing.
  bool is_last() const;
  /// The median of a proposed candidate; nullopt where it failed. Throws std::logic_error for one
  /// that is not in the batch or was told before.
  void tell(int index, std::optional<double> median_ns);
  /// Share of the candidates told so far, failed ones included, 0 to 1; 1 without candidates.
  double seen() const;

  static constexpr int kWholeBelow = 16;  ///< fewer candidates than that are all evaluated
  static constexpr int kLeast = 8;        ///< evaluations, however small the share

 protected:
  enum class State : uint8_t { kOpen, kProposed, kMeasured, kFailed };

  /// The budget is raised to what the first batch has to hold, and lowered to all.
  Searcher(std::vector<SearchPoint> points, int budget);
  /// At least one and at most `left` open points, the forced ones among the first.
  virtual std::vector<int> choose(int left) = 0;

  const std::vector<SearchPoint>& points() const { return points_; }
  State state(int index) const { return states_[index]; }
  double median_ns(int index) const { return medians_ns_[index]; }  ///< where kMeasured
  int budget() const { return budget_; }
  /// Default configurations and required points.
  std::vector<int> forced() const;
  std::vector<int> in(State state) const;

 private:
  std::vector<SearchPoint> points_;
  std::vector<State> states_;
  std::vector<double> medians_ns_;
  int budget_, told_ = 0;
  std::vector<int> batch_;
};

/// Exhaustive: all in one batch. Random: a seeded sample in one batch. Guided: a sample, then what
/// the measured ones and the estimates promise, in a few batches (guided_search.cpp). All of them
/// evaluate the default configuration of each variant and the required points in the first batch,
/// even where the share is smaller than that.
std::unique_ptr<Searcher> make_searcher(const SearchRules& rules, std::vector<SearchPoint> points,
                                        uint64_t seed);

}  // namespace muse::tuner
