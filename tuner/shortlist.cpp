// SPDX-License-Identifier: Apache-2.0
// Composed pipelines by the sum of their stages, and which of them race.
#include "tuner/shortlist.h"

#include <algorithm>
#include <limits>

#include "tuner/plan.h"

namespace muse::tuner {
namespace {

// The candidate that attends. A chain that covers the step has one.
std::string attending(const Chain& chain) {
  for (const Candidate& candidate : chain) {
    if (candidate.span().covers(Stage::kAttention)) return key(candidate);
  }
  return "";
}

}  // namespace

void Shortlist::add(const Candidate& candidate, const Handoff& fed, double median_ns) {
  if (std::find(candidates_.begin(), candidates_.end(), candidate) == candidates_.end()) {
    candidates_.push_back(candidate);
  }
  medians_ns_[{key(candidate), fed}] = median_ns;
}

std::vector<Composed> Shortlist::pipelines(const Problem& problem) const {
  std::vector<Composed> ranked;
  for (Chain& chain : compose(problem, candidates_)) {
    const double sum_ns = stage_sum_ns(problem, chain);
    ranked.push_back({sum_ns, std::move(chain)});
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const Composed& a, const Composed& b) {
    return a.stage_sum_ns < b.stage_sum_ns;
  });
  return ranked;
}

double Shortlist::stage_sum_ns(const Problem& problem, const Chain& chain) const {
  double sum = 0;
  Handoff fed;
  for (const Candidate& candidate : chain) {
    const auto known = medians_ns_.find({key(candidate), fed});
    sum += known == medians_ns_.end() ? std::numeric_limits<double>::infinity() : known->second;
    const Handoff left = candidate.variant->produces(problem, candidate.configuration);
    fed = left.kind == HandoffKind::kPartials ? left : Handoff{};
  }
  return sum;
}

std::vector<Chain> worth_racing(const std::vector<Composed>& ranked, size_t count) {
  std::map<std::string, size_t> turns;
  std::vector<std::pair<size_t, const Composed*>> in_turn;
  for (const Composed& one : ranked) in_turn.push_back({turns[attending(one.chain)]++, &one});
  std::stable_sort(in_turn.begin(), in_turn.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Chain> chosen;
  for (const auto& [turn, one] : in_turn) {
    if (chosen.size() < count) chosen.push_back(one->chain);
  }
  return chosen;
}

}  // namespace muse::tuner
