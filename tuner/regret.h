// SPDX-License-Identifier: Apache-2.0
// What is lost by having fewer pipelines than shapes: one for several shapes, few for all. Pure.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

namespace muse::tuner {

/// By [candidate][shape], in any one unit; infinity = not measured. As many for each candidate.
using Times = std::vector<std::vector<double>>;

/// Time lost against the best of each shape, as a ratio less 1: 0.02 = 2 %.
struct Regret {
  double worst = 0;
  double mean = 0;  ///< geometric
};

/// With the best of `chosen` on each shape; infinite where a shape was measured with none of them.
/// Shapes that no candidate was measured on are left out.
Regret regret(const Times& times, const std::vector<size_t>& chosen);

/// The candidate among these whose worst regret is the least; of equals the first. Precondition:
/// there is one.
size_t least_worst_regret(const Times& times, const std::vector<size_t>& among);
/// Among all.
size_t least_worst_regret(const Times& times);

struct SubsetLimits {
  size_t variants = std::numeric_limits<size_t>::max();  ///< at most so many candidates
  double worst = std::numeric_limits<double>::infinity();
  double mean = std::numeric_limits<double>::infinity();
};

/// Few candidates, `always` among them, whose regret stays within the limits; without limits on
/// regret, as many as allowed with little mean regret. Greedy: what lowers the excess (then the
/// mean) most is added, then exchanged, then whoever is not needed leaves. Where the limits cannot
/// be kept the regret of the result says so. Ordered.
std::vector<size_t> few_candidates(const Times& times, size_t always, const SubsetLimits& limits);

}  // namespace muse::tuner
