// SPDX-License-Identifier: Apache-2.0
// Whole pipelines: composed, answered by earlier tables, and winners of siblings.
#include "tuner/step_races.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

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

std::optional<Winner> StepRaces::settle(size_t shape, profiler::Regime regime,
                                        const Shortlist& best) {
  const RaceGroup group = this->group(shape, regime);
  const std::vector<Candidate> candidates = candidates_(shape, regime);
  std::vector<Chain> chains = pipelines(group, candidates, best);
  add_answers(group, candidates, chains);
  const std::optional<Settled> settled = settler_.settle(group, chains, plan_.base, {});
  if (!settled) return std::nullopt;
  chains.push_back(plan_.base);
  Step step{.shape = shape, .regime = regime, .raced = {}};
  for (const Chain& chain : chains) {
    if (key(chain) == settled->winner.chain) siblings_.add_winner(group.shape, regime, chain);
    if (const auto trial = records_.find(chain, group)) {
      step.raced.emplace_back(trial->id, settler_.tally().is_reused(trial->id));
    }
  }
  steps_.push_back(std::move(step));
  return settled->winner;
}

Chain StepRaces::chain_of(const db::TrialRow& trial) const {
  const std::string text = records_.store().candidate(trial.key.candidate_id).key;
  const auto chain = Registry::global().parse_chain(text);
  if (!chain) throw std::runtime_error(fmt::format("trial {}: {}", trial.id, chain.error()));
  return *chain;
}

// What won on siblings, has not raced here and can run.
std::vector<Chain> StepRaces::newcomers(const Step& step) const {
  const RaceGroup group = this->group(step.shape, step.regime);
  std::vector<Chain> chains = siblings_.winners(group.shape, step.regime);
  std::erase_if(chains, [&](const Chain& chain) {
    const auto trial = records_.find(chain, group);
    return trial && std::any_of(step.raced.begin(), step.raced.end(),
                                [&](const auto& raced) { return raced.first == trial->id; });
  });
  if (chains.empty()) return chains;
  const std::vector<Candidate> candidates = candidates_(step.shape, step.regime);
  std::erase_if(
      chains, [&](const Chain& chain) { return !can_run(chain, group.shape.problem, candidates); });
  return chains;
}

void StepRaces::race_siblings(const std::function<bool()>& before,
                              const std::function<void(const Again&)>& settled) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (!before()) return;
    const Step& step = steps_[i];
    std::vector<Chain> chains = newcomers(step);
    if (chains.empty()) continue;
    Again again{.step = i, .winner = {}, .counted = {}};
    for (const auto& [id, reused] : step.raced) {
      const db::TrialRow trial = records_.store().trial(id);
      chains.push_back(chain_of(trial));
      again.counted[id] = {*parse_outcome(trial.state), reused};
    }
    const std::optional<Settled> decided =
        settler_.settle(group(step.shape, step.regime), chains, plan_.base, {});
    if (decided) again.winner = decided->winner;
    settled(again);
    if (!decided) return;
  }
}

}  // namespace muse::tuner
