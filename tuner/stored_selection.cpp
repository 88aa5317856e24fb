// SPDX-License-Identifier: Apache-2.0
// Selects out of a stored race, and compares with what a run stored.
#include "tuner/stored_selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "variants/registry.h"

namespace muse::tuner {
namespace {

using nlohmann::json;
using Unexpected = tl::unexpected<std::string>;

/// Beyond it two times are not the same number: compilers may round a mean of two apart.
constexpr double kSameTime = 1e-9;

/// Opt-in shared memory that a device may have: the database keeps none.
constexpr int64_t kSharedMemoryProbes[] = {0, int64_t{1} << 20};

bool contains(const std::vector<db::Id>& ids, db::Id id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

bool same_time(double a, double b) {
  return std::abs(a - b) <= kSameTime * std::max(std::abs(a), std::abs(b));
}

int64_t workspace_bytes(const Chain& chain, const Problem& problem, const DeviceClass& device) {
  int64_t bytes = 0;
  for (const Candidate& c : chain) {
    bytes += c.variant->geometry(problem, c.configuration, device).workspace.bytes;
  }
  return bytes;
}

// Whether the workspace follows from what the database keeps of the device.
bool workspace_is_known(const Chain& chain, const Problem& problem, DeviceClass device) {
  if (device.host) return true;
  const auto at = [&](int64_t shared_memory) {
    device.smem_per_block_bytes = shared_memory;
    return workspace_bytes(chain, problem, device);
  };
  return at(kSharedMemoryProbes[0]) == at(kSharedMemoryProbes[1]);
}

// Empty where every candidate of the chain is one of this build's for this device.
std::string not_of_this_build(const Chain& chain, const DeviceClass& device) {
  const TargetKind target = device.host ? TargetKind::kHost : TargetKind::kCuda;
  for (const Candidate& c : chain) {
    if (c.variant->target.kind != target) {
      return fmt::format("{} does not run on {}", c.variant->name, name(target));
    }
    if (const std::string wrong = check(*c.variant, c.configuration); !wrong.empty()) return wrong;
  }
  return {};
}

bool is_among_equals(const std::string& rule) {
  return rule == "tie_workspace" || rule == "tie_p90" || rule == "tie_name";
}

std::vector<std::string> sorted(std::vector<std::string> keys) {
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::vector<std::string> tie_keys(const Decision& decision) {
  std::vector<std::string> keys;
  for (const int i : decision.selection.tie_set) keys.push_back(decision.contenders[i].key);
  return keys;
}

std::vector<std::string> compare(const db::SelectionRow& row, const std::string& chosen,
                                 const std::vector<std::string>& ties, const Decision& decision) {
  const Selection& now = decision.selection;
  std::vector<std::string> found;
  const auto differ = [&](const char* what, const auto& stored, const auto& recomputed) {
    found.push_back(fmt::format("{}: stored {}, recomputed {}", what, stored, recomputed));
  };
  const std::string winner = now.winner < 0 ? "none" : decision.contenders[now.winner].key;
  if (winner != chosen) differ("winner", chosen, winner);
  if (now.rule != row.rule) differ("rule", row.rule, now.rule);
  const std::vector<std::string> recomputed = tie_keys(decision);
  if (sorted(recomputed) != sorted(ties)) {
    differ("tie set", json(ties).dump(), json(recomputed).dump());
  }
  if (!same_time(now.median_ns, row.median_ns)) {
    differ("median", fmt::format("{:.3f} ns", row.median_ns),
           fmt::format("{:.3f} ns", now.median_ns));
  }
  if (!same_time(now.interval.low, row.low_ns) || !same_time(now.interval.high, row.high_ns)) {
    differ("interval", fmt::format("[{:.3f}, {:.3f}] ns", row.low_ns, row.high_ns),
           fmt::format("[{:.3f}, {:.3f}] ns", now.interval.low, now.interval.high));
  }
  return found;
}

// Everyone measured against the leader, as select() looks at them: by key.
void look_at_gaps(StoredSelections::Replayed& replayed, const MeasureRules& rules) {
  const std::vector<Contender>& contenders = replayed.decision.contenders;
  std::vector<size_t> order;
  for (size_t i = 0; i < contenders.size(); ++i) {
    const std::vector<double>& ns = contenders[i].ns;
    if (std::any_of(ns.begin(), ns.end(), [](double one) { return std::isfinite(one); })) {
      order.push_back(i);
    }
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return contenders[a].key < contenders[b].key; });
  std::vector<Samples> all;
  for (const size_t i : order) all.emplace_back(contenders[i].ns);
  const int leader = leader_of(all);
  if (leader < 0) return;
  const double step_ns = replayed.race.rules.step_ns;
  const double tolerance = std::max(rules.tie_pct / 100 * leading_median(all, leader), step_ns);
  const std::vector<Gap> found = gaps(all, leader, tolerance, step_ns);
  const std::vector<Standing> standings = replayed.race.race.standings();
  for (size_t i = 0; i < order.size(); ++i) {
    const int entrant = replayed.decision.entrants[order[i]];
    const db::Id trial = replayed.race.trials[entrant];
    if (static_cast<int>(i) == leader) replayed.leader = trial;
    replayed.against.push_back({trial, found[i], standings[entrant].median_ns});
  }
}

}  // namespace

std::vector<int> deciding_entrants(const StoredRace& stored, const std::vector<db::Id>& wanted) {
  const std::vector<Standing> standings = stored.race.standings();
  std::vector<int> finalists, all;
  for (size_t i = 0; i < standings.size(); ++i) {
    if (standings[i].excluded || !contains(wanted, stored.trials[i])) continue;
    all.push_back(static_cast<int>(i));
    if (standings[i].finalist) finalists.push_back(static_cast<int>(i));
  }
  return finalists.empty() ? all : finalists;
}

Decision decide_from(const StoredRace& stored, const std::vector<Entrant>& entrants,
                     const Problem& problem, const DeviceClass& device, const MeasureRules& rules) {
  std::vector<db::Id> wanted;
  for (const Entrant& entrant : entrants) wanted.push_back(entrant.trial.id);
  Decision decision;
  decision.entrants = deciding_entrants(stored, wanted);
  for (const int i : decision.entrants) {
    const Entrant& entrant =
        *std::find_if(entrants.begin(), entrants.end(),
                      [&](const Entrant& one) { return one.trial.id == stored.trials[i]; });
    decision.contenders.push_back(
        {.key = muse::key(entrant.chain),
         .ns = stored.race.samples(i),
         .workspace_bytes = workspace_bytes(entrant.chain, problem, device),
         .base = entrant.base,
         .degraded = stored.race.degraded()});
  }
  decision.selection = select(decision.contenders, {.tie_pct = rules.tie_pct,
                                                    .switch_margin_pct = rules.switch_margin_pct,
                                                    .step_ns = stored.rules.step_ns});
  return decision;
}

DeviceClass device_class(const db::DeviceRow& row) {
  return {.model = row.model,
          .host = row.kind == "host",
          .cc = static_cast<int>(row.cc),
          .sm_count = static_cast<int>(row.sm_count),
          .memory_bytes = row.memory_bytes,
          .l2_bytes = row.l2_bytes,
          .driver_version = static_cast<int>(row.driver_version),
          .isa = row.isa};
}

tl::expected<std::vector<std::string>, std::string> tie_keys(const db::SelectionRow& row) {
  const json list = json::parse(row.tie_set, nullptr, false);
  if (!list.is_array() ||
      !std::all_of(list.begin(), list.end(), [](const json& one) { return one.is_string(); })) {
    return Unexpected("its tie set is no list of candidates");
  }
  return list.get<std::vector<std::string>>();
}

StoredSelections::StoredSelections(const db::Store& store, const db::RunRow& run)
    : store_(store),
      run_(run),
      device_(device_class(store.device(run.device_id))),
      trials_(store.run_trials(run.id)),
      rules_([&]() -> tl::expected<MeasureRules, std::string> {
        const auto spec = parse_spec(run.config_text, run.config_path, Registry::global());
        if (spec) return spec->measure;
        return Unexpected("its config no longer loads: " + spec.error().front().text());
      }()) {}

tl::expected<StoredRace, std::string> StoredSelections::load(const db::RaceRow& row) const {
  const json rules = json::parse(row.rules, nullptr, false);
  for (const char* field : {"entrants", "base", "checkpoints", "max_finalists", "final_rounds",
                            "max_rounds", "half_width_pct"}) {
    if (!rules.is_object() || !rules.contains(field)) {
      return Unexpected(fmt::format("the rules of race {} have no {}", row.id, field));
    }
  }
  auto stored = tuner::replay(row, store_.rounds(row.id));
  if (stored) return std::move(*stored);
  return Unexpected(
      fmt::format("the rounds of race {} are not those that this version's rules ask for", row.id));
}

std::vector<StoredRace> StoredSelections::races(db::Id problem, const std::string& span,
                                                const std::string& handoff,
                                                const std::string& regime) const {
  std::vector<StoredRace> found;
  for (const db::RaceRow& row : store_.races(problem, span, handoff, regime)) {
    if (row.run_id > run_.id || row.status != "complete") continue;
    auto race = load(row);
    // Another device's, or of other candidates: nothing of this run ran in it.
    const auto mine = [&](const db::Store::RunTrial& t) {
      return race && contains(race->trials, t.trial.id);
    };
    if (std::any_of(trials_.begin(), trials_.end(), mine)) found.push_back(std::move(*race));
  }
  std::sort(found.begin(), found.end(),
            [](const StoredRace& a, const StoredRace& b) { return a.row.id > b.row.id; });
  return found;
}

// A trial's state is that of today: a later run may have found fault with it.
bool StoredSelections::was_measured(const db::Store::RunTrial& t, const db::SelectionRow& row,
                                    const std::vector<std::string>& ties,
                                    const StoredRace& race) const {
  const std::optional<Outcome> outcome = parse_outcome(t.trial.state);
  if (outcome && is_measured(*outcome)) return true;
  if (t.trial.id == row.trial_id || t.trial.id == row.base_trial_id ||
      std::find(ties.begin(), ties.end(), t.candidate.key) != ties.end()) {
    return true;
  }
  return !run_.ended.empty() && t.trial.updated > run_.ended && contains(race.trials, t.trial.id);
}

tl::expected<StoredSelections::Wanted, std::string> StoredSelections::wanted(
    const db::SelectionRow& row, const StoredRace& race, const std::vector<std::string>& ties,
    const Problem& problem) const {
  std::map<db::Id, const db::Store::RunTrial*> asked;
  std::vector<db::Id> ids;
  for (const db::Store::RunTrial& t : trials_) {
    if (t.problem.id != row.problem_id || t.candidate.span != row.span ||
        t.trial.key.handoff_in != row.handoff_in || t.trial.key.regime != row.regime ||
        !was_measured(t, row, ties, race)) {
      continue;
    }
    asked[t.trial.id] = &t;
    ids.push_back(t.trial.id);
  }
  Wanted wanted;
  for (const int i : deciding_entrants(race, ids)) {
    const db::Store::RunTrial& t = *asked.at(race.trials[i]);
    const auto chain = Registry::global().parse_chain(t.candidate.key);
    if (!chain) return Unexpected(fmt::format("{}: {}", t.candidate.key, chain.error()));
    if (const std::string wrong = not_of_this_build(*chain, device_); !wrong.empty()) {
      return Unexpected(fmt::format("{}: {}", t.candidate.key, wrong));
    }
    if (!workspace_is_known(*chain, problem, device_)) {
      return Unexpected(fmt::format(
          "{}: its workspace depends on the device's shared memory per block, which the database "
          "does not keep",
          t.candidate.key));
    }
    wanted.other_code |= code_hash(*chain) != t.trial.key.code_hash;
    wanted.entrants.push_back(
        {.chain = *chain, .base = t.trial.id == row.base_trial_id, .trial = t.trial});
  }
  if (wanted.entrants.empty()) {
    return Unexpected(fmt::format("no trial of the run has ended race {}", race.row.id));
  }
  return wanted;
}

tl::expected<StoredSelections::Replayed, std::string> StoredSelections::replay_from(
    const db::SelectionRow& row, StoredRace race) const {
  const auto ties = tie_keys(row);
  if (!ties) return Unexpected(ties.error());
  const auto shape = parse_shape(store_.problem(row.problem_id).key);
  if (!shape) return Unexpected("its problem's key is none: " + shape.error());
  if (row.trial_id == 0) return Unexpected("it names no winner");
  const auto asked = wanted(row, race, *ties, shape->problem);
  if (!asked) return Unexpected(asked.error());
  Replayed replayed{.race = std::move(race), .decision = {}};
  replayed.decision = decide_from(replayed.race, asked->entrants, shape->problem, device_, *rules_);
  const std::string chosen = store_.candidate(store_.trial(row.trial_id).key.candidate_id).key;
  replayed.differences = compare(row, chosen, *ties, replayed.decision);
  // What cannot be told apart is told apart by workspace, which only the same code says.
  if (!replayed.differences.empty() && asked->other_code && is_among_equals(row.rule) &&
      is_among_equals(replayed.decision.selection.rule) &&
      sorted(tie_keys(replayed.decision)) == sorted(*ties)) {
    return Unexpected(
        "it chose among equals by their workspace, and this build has other code of them");
  }
  look_at_gaps(replayed, *rules_);
  return replayed;
}

tl::expected<StoredSelections::Replayed, std::string> StoredSelections::replay(
    const db::SelectionRow& row) const {
  if (!rules_) return Unexpected(rules_.error());
  if (row.race_id != 0) {
    const std::optional<db::RaceRow> named = store_.race(row.race_id);
    if (!named) return Unexpected(fmt::format("there is no race {}", row.race_id));
    auto race = load(*named);
    if (!race) return Unexpected(race.error());
    return replay_from(row, std::move(*race));
  }
  // Written before selections named their race: the one that says the same, or the only one.
  std::vector<StoredRace> candidates = races(row.problem_id, row.span, row.handoff_in, row.regime);
  std::erase_if(candidates,
                [&](const StoredRace& race) { return !contains(race.trials, row.trial_id); });
  if (candidates.empty()) {
    return Unexpected("no race of its winner is there that this version's rules replay");
  }
  if (candidates.size() == 1) return replay_from(row, std::move(candidates.front()));
  for (StoredRace& race : candidates) {
    auto replayed = replay_from(row, std::move(race));
    if (replayed && replayed->differences.empty()) return replayed;
  }
  return Unexpected(
      fmt::format("it does not name its race, and none of {} says the same", candidates.size()));
}

}  // namespace muse::tuner
