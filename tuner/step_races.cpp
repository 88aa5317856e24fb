// SPDX-License-Identifier: Apache-2.0
// Whole pipelines: composed, answered by earlier tables, and those of sibling shapes.
#include "tuner/step_races.h"

#include <algorithm>
#include <cmath>

#include "variants/registry.h"

namespace muse::tuner {
namespace {

/// Pipelines that are measured for each of pipelines.top_k, ways of launching them apart.
constexpr size_t kPipelinesPerRank = 4;

// Whether the candidates make the chain, and its hand-offs match.
bool can_run(const Chain& chain, const Problem& problem, const std::vector<Candidate>& candidates) {
  return joins(problem, chain).ok() &&
         std::all_of(chain.begin(), chain.end(), [&](const Candidate& candidate) {
           return std::find(candidates.begin(), candidates.end(), candidate) != candidates.end();
         });
}

}  // namespace

// Whole-step candidates, and of all that can be composed those worth a race. What the stages of
// each take is stored.
std::vector<Chain> StepRaces::pipelines(const RaceGroup& group,
                                        const std::vector<Candidate>& candidates,
                                        const Shortlist& best) {
  const auto ways = [&](const std::vector<Chain>& chains) {
    return with_launch_ways(chains, spec_.pipelines.pdl, group.shape.problem, hello_.device_class);
  };
  const std::vector<Composed> composed = best.pipelines(group.shape.problem);
  records_.store().transaction([&] {
    for (const Composed& one : composed) {
      if (!std::isfinite(one.stage_sum_ns)) continue;
      for (const Chain& chain : ways({one.chain})) {
        records_.add_stage_sum(chain, group, one.stage_sum_ns);
      }
    }
  });
  std::vector<Chain> chosen = worth_racing(composed, kPipelinesPerRank * spec_.pipelines.top_k);
  for (const Candidate& c : candidates) {
    if (c.span() == kWholeStep) chosen.push_back({c});
  }
  return ways(chosen);
}

void StepRaces::add_answers(const RaceGroup& group, const std::vector<Candidate>& candidates,
                            std::vector<Chain>& chains) const {
  for (const Incumbent& incumbent : incumbents_) {
    for (const std::string& text : answers(incumbent, group.shape)) {
      const auto chain = Registry::global().parse_chain(text);
      if (chain && can_run(*chain, group.shape.problem, candidates) &&
          std::find(chains.begin(), chains.end(), *chain) == chains.end()) {
        chains.push_back(*chain);
      }
    }
  }
}

std::optional<Winner> StepRaces::settle(const RaceGroup& group,
                                        const std::vector<Candidate>& candidates,
                                        const Shortlist& best) {
  std::vector<Chain> chains = pipelines(group, candidates, best);
  add_answers(group, candidates, chains);
  const std::optional<Settled> settled = settler_.settle(group, chains, plan_.base, {});
  if (!settled) return std::nullopt;
  const Winner& winner = settled->winner;
  const auto won = std::find_if(chains.begin(), chains.end(),
                                [&](const Chain& chain) { return key(chain) == winner.chain; });
  Chain chain = won != chains.end() ? *won : winner.chain.empty() ? Chain{} : plan_.base;
  steps_.push_back({{.shape = group.shape,
                     .regime = group.regime,
                     .raced = std::move(chains),
                     .winner = std::move(chain)},
                    candidates});
  return winner;
}

void StepRaces::race_siblings(const std::function<bool()>& before,
                              const std::function<void(const Again&)>& settled) {
  std::vector<DecidedStep> decided;
  for (const Step& step : steps_) decided.push_back(step.decided);
  const std::vector<std::vector<Chain>> winners = sibling_winners(decided);
  for (size_t i = 0; i < steps_.size(); ++i) {
    const DecidedStep& step = steps_[i].decided;
    std::vector<Chain> chains = step.raced;
    for (const Chain& chain : winners[i]) {
      if (can_run(chain, step.shape.problem, steps_[i].candidates)) chains.push_back(chain);
    }
    if (chains.size() == step.raced.size()) continue;
    if (!before()) return;
    const RaceGroup group{.shape = step.shape, .regime = step.regime, .span = kWholeStep};
    const std::optional<Settled> again = settler_.settle(group, chains, plan_.base, {});
    if (!again) return;
    std::vector<db::Id> added;
    for (size_t c = step.raced.size(); c < chains.size(); ++c) {
      added.push_back(records_.trial(chains[c], group).id);
    }
    settled({i, again->winner, std::move(added)});
  }
}

}  // namespace muse::tuner
