// SPDX-License-Identifier: Apache-2.0
// The best of the spans of one shape, and the pipelines made of them that are worth a race.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "variants/variant.h"

namespace muse::tuner {

/// A pipeline of candidates that are among the best of their spans.
struct Composed {
  double stage_sum_ns;  ///< of its stages' medians; what they do to each other shows in the race
  Chain chain;
};

class Shortlist {
 public:
  /// `fed`: the hand-off it was raced behind; kPartials for a combine.
  void add(const Candidate& candidate, const Handoff& fed, double median_ns);
  const std::vector<Candidate>& candidates() const { return candidates_; }

  /// All pipelines that can be made, least sum first; infinite where a candidate was not among the
  /// best behind what its predecessor leaves.
  std::vector<Composed> pipelines(const Problem& problem) const;

 private:
  double stage_sum_ns(const Problem& problem, const Chain& chain) const;

  std::vector<Candidate> candidates_;
  std::map<std::pair<std::string, Handoff>, double> medians_ns_;
};

/// At most `count` of them. Those that attend by different candidates take turns, each with its own
/// of least sum first: how attention gets along with its neighbours is what no sum of stages can
/// say, while what surrounds it differs by little.
std::vector<Chain> worth_racing(const std::vector<Composed>& ranked, size_t count);

}  // namespace muse::tuner
