// SPDX-License-Identifier: Apache-2.0
// Whole pipelines: composed, answered by earlier tables, and what was good on siblings.
#include "tuner/step_races.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
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

// Whoever starts a sweep has looked whether this binary has what its incumbents name.
Chain answered(const std::string& text) {
  auto chain = Registry::global().parse_chain(text);
  if (!chain) throw std::runtime_error(fmt::format("incumbent: {}", chain.error()));
  return *std::move(chain);
}

// On some shape at least. A variant whose space is empty has an item that says so.
bool is_planned(const Candidate& candidate, const Plan& plan, const Spec& spec) {
  const bool listed = std::any_of(plan.items.begin(), plan.items.end(), [&](const PlanItem& item) {
    return item.candidate == candidate;
  });
  const bool of_base = std::find(plan.base.begin(), plan.base.end(), candidate) != plan.base.end();
  return listed && (of_base || !space(spec, *candidate.variant).empty());
}

}  // namespace

std::vector<LeftOut> left_out(const Incumbent& incumbent, const Plan& plan, const Spec& spec) {
  std::set<std::string> answered_here;
  for (const ShapeEntry& entry : plan.shapes) {
    for (const std::string& text : answers(incumbent, entry.shape)) answered_here.insert(text);
  }
  std::vector<LeftOut> all;
  for (const std::string& text : answered_here) {
    const Chain chain = answered(text);
    if (chain == plan.base) continue;  // it races whatever the filters say
    LeftOut one{.pipeline = text, .candidates = {}};
    for (const Candidate& candidate : chain) {
      if (!is_planned(candidate, plan, spec)) one.candidates.push_back(key(candidate));
    }
    if (!one.candidates.empty()) all.push_back(std::move(one));
  }
  return all;
}

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
      Chain chain = answered(text);
      if (can_run(chain, group.shape.problem, candidates) &&
          std::find(chains.begin(), chains.end(), chain) == chains.end()) {
        chains.push_back(std::move(chain));
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
  siblings_.add(group.shape, regime, close_race(*settled));
  chains.push_back(plan_.base);
  Step step{.shape = shape, .regime = regime, .raced = {}};
  for (const Chain& chain : chains) {
    if (const auto trial = records_.find(chain, group)) {
      step.raced.emplace_back(trial->id, settler_.tally().is_reused(trial->id));
    }
  }
  steps_.push_back(std::move(step));
  return settled->winner;
}

std::optional<Winner> StepRaces::settle_among_siblings(size_t shape, profiler::Regime regime) {
  const RaceGroup group = this->group(shape, regime);
  const std::vector<Candidate> candidates = candidates_(shape, regime);
  std::vector<Chain> chains = siblings_.chains(group.shape, regime);
  std::erase_if(
      chains, [&](const Chain& chain) { return !can_run(chain, group.shape.problem, candidates); });
  add_answers(group, candidates, chains);
  const std::optional<Settled> settled = settler_.settle(group, chains, plan_.base, {});
  if (!settled) return std::nullopt;
  return settled->winner;
}

Chain StepRaces::chain_of(const db::TrialRow& trial) const {
  const std::string text = records_.store().candidate(trial.key.candidate_id).key;
  const auto chain = Registry::global().parse_chain(text);
  if (!chain) throw std::runtime_error(fmt::format("trial {}: {}", trial.id, chain.error()));
  return *chain;
}

// What was good on siblings, has not raced here and can run.
std::vector<Chain> StepRaces::newcomers(const Step& step) const {
  const RaceGroup group = this->group(step.shape, step.regime);
  std::vector<Chain> chains = siblings_.chains(group.shape, step.regime);
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
