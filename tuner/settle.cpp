// SPDX-License-Identifier: Apache-2.0
// Settles a group: gates first, then a stored race that decides or a fresh one, then selection.
#include "tuner/settle.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tuner/floor_model.h"
#include "tuner/standing_race.h"

namespace muse::tuner {
namespace {

/// Rounds of a scout: enough that one outlier moves no median far.
constexpr int kScoutRounds = 4;

/// Who is that far behind is not worth a word.
constexpr double kFarBehindPct = 1e6;

std::string title(const RaceGroup& group) {
  const std::string handoff = key(group.handoff);
  return fmt::format("{} {}{}{}", muse::key(group.shape), muse::name(group.span),
                     handoff.empty() ? "" : " of ", handoff);
}

std::vector<db::Id> ids(const std::vector<Entrant>& entrants) {
  std::vector<db::Id> ids;
  for (const Entrant& entrant : entrants) ids.push_back(entrant.trial.id);
  return ids;
}

const Entrant* find(const std::vector<Entrant>& entrants, db::Id trial) {
  const auto at = std::find_if(entrants.begin(), entrants.end(),
                               [&](const Entrant& e) { return e.trial.id == trial; });
  return at == entrants.end() ? nullptr : &*at;
}

const Entrant* find_base(const std::vector<Entrant>& entrants) {
  const auto at =
      std::find_if(entrants.begin(), entrants.end(), [](const Entrant& e) { return e.base; });
  return at == entrants.end() ? nullptr : &*at;
}

// The entrants of a cut-off race in its order; empty where others are wanted now.
std::vector<Entrant> entrants_of(const StoredRace& race, const std::vector<Entrant>& entrants) {
  std::vector<Entrant> in_order;
  for (const db::Id trial : race.trials) {
    const Entrant* entrant = find(entrants, trial);
    if (entrant == nullptr) return {};
    in_order.push_back(*entrant);
  }
  return in_order.size() == entrants.size() ? in_order : std::vector<Entrant>{};
}

// Whoever was timed in a race, finalists first, then by median.
std::vector<Settled::Ranked> ranking(const StoredRace& stored, const std::vector<Entrant>& entrants,
                                     const Decision& decision) {
  std::set<int> tied;
  for (const int i : decision.selection.tie_set) {
    if (i != decision.selection.winner) tied.insert(decision.entrants[i]);
  }
  const std::vector<Standing> standings = stored.race.standings();
  std::vector<int> order;
  for (size_t i = 0; i < standings.size(); ++i) {
    if (!standings[i].excluded && standings[i].samples > 0) order.push_back(static_cast<int>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return std::pair(!standings[a].finalist, standings[a].median_ns) <
           std::pair(!standings[b].finalist, standings[b].median_ns);
  });
  std::vector<Settled::Ranked> best;
  for (const int i : order) {
    const Entrant* entrant = find(entrants, stored.trials[i]);
    if (entrant != nullptr) {
      best.push_back({entrant->chain, standings[i].median_ns, tied.contains(i)});
    }
  }
  return best;
}

}  // namespace

uint64_t group_seed(uint64_t seed, const RaceGroup& group) {
  const std::string text =
      fmt::format("{}\n{} {}", seed, title(group), profiler::name(group.regime));
  return std::stoull(hash_hex(text).substr(0, 16), nullptr, 16);
}

Settler::Settler(const Spec& spec, const Hello& hello, uint64_t seed, bool fresh, Records& records,
                 RaceRunner& runner, std::function<void(const RaceGroup&)> before_work)
    : spec_(spec),
      hello_(hello),
      seed_(seed),
      fresh_(fresh),
      records_(records),
      runner_(runner),
      before_work_(std::move(before_work)) {}

RaceRules Settler::rules(const RaceGroup& group) const {
  RaceRules rules;
  rules.final_rounds = spec_.measure.final_rounds;
  rules.max_rounds = spec_.measure.max_rounds;
  rules.half_width_pct = spec_.measure.half_width_pct;
  rules.step_ns = hello_.step_ns;
  rules.seed = group_seed(seed_, group);
  return rules;
}

// Everybody runs every round: no rounds to choose finalists by, and nobody to leave.
RaceRules Settler::scout_rules(const RaceGroup& group) const {
  RaceRules rules = this->rules(group);
  rules.checkpoints = {{0, kFarBehindPct}};
  rules.final_rounds = rules.max_rounds = kScoutRounds;
  return rules;
}

// Cold, no byte of the span's is in a cache. Otherwise only a launch is sure to take its time.
Floor Settler::floor(const RaceGroup& group) const {
  const double launch_ns = hello_.device_class.host ? 0 : hello_.limits.launch_floor_ns;
  if (group.regime == profiler::Regime::kCold) {
    const double ns = floor_ns(group.shape, group.span, hello_.device_class, hello_.limits);
    if (ns > launch_ns) {
      const auto bytes = static_cast<double>(compulsory_bytes(group.shape, group.span));
      return {ns, fmt::format("{:.3g} MB cannot be read faster", bytes / 1e6)};
    }
  }
  return {launch_ns, "no launch takes less"};
}

void Settler::skip(const RaceGroup& group, const Candidate& candidate, Outcome outcome,
                   const std::string& reason) {
  db::TrialRow trial = records_.trial({candidate}, group);
  if (trial.state != name(outcome) || trial.reason != reason) {
    records_.set(trial, outcome, reason);
  }
  tally_.outcomes[trial.id] = outcome;
}

// Opens the group's trials and runs the gates of those that have not ended; the ones that can race.
std::optional<std::vector<Entrant>> Settler::valid_entrants(const RaceGroup& group,
                                                            const std::vector<Chain>& chains,
                                                            const Chain& base,
                                                            const Chain& feeder) {
  std::map<std::string, Entrant>
      by_key;  // ordered: neither the plan's nor the search's order counts
  for (const Chain& chain : chains) by_key[muse::key(chain)] = {.chain = chain, .feeder = feeder};
  if (!base.empty()) {
    by_key[muse::key(base)] = {.chain = base, .feeder = feeder, .base = true};
  }
  records_.store().transaction([&] {
    for (auto& [text, entrant] : by_key) {
      entrant.trial = records_.trial(entrant.chain, group);
      // Committed before it runs: whatever ends this process, the row says what was under way.
      const bool ended = is_final(entrant.outcome()) && entrant.outcome() != Outcome::kUnsupported;
      if (!ended) records_.set(entrant.trial, Outcome::kRunning, "validating");
    }
  });
  std::vector<Entrant> entrants;
  for (auto& [text, entrant] : by_key) {
    at_ = fmt::format("{}: validating {} of {}", title(group), entrants.size() + 1, by_key.size());
    const bool known = is_final(entrant.outcome());
    if (!known) before_work_(group);
    if (!runner_.validate(group, entrant)) return std::nullopt;
    if (known && !records_.judged_here(entrant.trial)) tally_.reused.insert(entrant.trial.id);
    tally_.outcomes[entrant.trial.id] = entrant.outcome();
    if (!is_final(entrant.outcome()) || is_measured(entrant.outcome())) entrants.push_back(entrant);
  }
  return entrants;
}

// Who has to run: those no stored race knows, the tie set that stands, and the base.
std::vector<Entrant> Settler::newcomers(const RaceGroup& group,
                                        const std::vector<StoredRace>& races,
                                        const std::vector<Entrant>& entrants) const {
  const std::vector<db::Id> wanted = ids(entrants);
  std::set<db::Id> ranked;
  const StoredRace* standing = standing_race(races, wanted, ranked);
  if (standing == nullptr) return entrants;
  std::set<db::Id> racing(wanted.begin(), wanted.end());
  for (const db::Id id : ranked) racing.erase(id);
  const Decision decision = select_from(group, *standing, entrants);
  for (const int i : decision.selection.tie_set) {
    racing.insert(standing->trials[decision.entrants[i]]);
  }
  std::vector<Entrant> result;
  for (const Entrant& entrant : entrants) {
    if (entrant.base || racing.contains(entrant.trial.id)) result.push_back(entrant);
  }
  return result;
}

std::vector<StoredRace> Settler::usable_races(const RaceGroup& group) const {
  std::vector<StoredRace> races = records_.races(group);
  if (fresh_) {
    std::erase_if(races, [&](const StoredRace& r) { return !records_.goes_on(r.row.run_id); });
  }
  return races;
}

// Stored samples decide where they can; a race that was cut off goes on; else a fresh one is run.
std::optional<StoredRace> Settler::decide(const RaceGroup& group, std::vector<Entrant>& entrants) {
  std::vector<StoredRace> races = usable_races(group);
  const Entrant* base = find_base(entrants);
  if (const StoredRace* decided =
          deciding_race(races, ids(entrants), base == nullptr ? 0 : base->trial.id,
                        spec_.measure.half_width_pct)) {
    // A run that goes on after a stop has measured these itself.
    if (decided->row.run_id == records_.run()) {
      for (const Entrant& entrant : entrants) tally_.reused.erase(entrant.trial.id);
    }
    return *decided;
  }
  std::vector<Entrant> racing;
  std::optional<StoredRace> unfinished;
  for (StoredRace& race : races) {
    if (race.row.status != kRunningRace || !records_.goes_on(race.row.run_id)) continue;
    racing = entrants_of(race, entrants);
    if (racing.empty()) continue;
    unfinished = std::move(race);
    break;
  }
  if (!unfinished) racing = newcomers(group, races, entrants);
  before_work_(group);
  for (const Entrant& entrant : racing) tally_.measured.insert(entrant.trial.id);
  std::optional<StoredRace> stored =
      runner_.race(group, racing, rules(group), std::move(unfinished), floor(group));
  for (Entrant& mine : entrants) {
    if (const Entrant* raced = find(racing, mine.trial.id)) mine.trial = raced->trial;
    tally_.outcomes[mine.trial.id] = mine.outcome();
  }
  return stored;
}

Decision Settler::select_from(const RaceGroup& group, const StoredRace& stored,
                              const std::vector<Entrant>& entrants) const {
  return decide_from(stored, entrants, group.shape.problem, hello_.device_class, spec_.measure);
}

Settled Settler::conclude(const RaceGroup& group, const std::vector<Entrant>& entrants,
                          const StoredRace& stored, const Decision& decision) {
  const Selection& selection = decision.selection;
  Settled settled{.winner = {.selection = selection}, .best = ranking(stored, entrants, decision)};
  if (selection.winner < 0) return settled;
  nlohmann::json ties = nlohmann::json::array();
  for (const int i : selection.tie_set) ties.push_back(decision.contenders[i].key);
  const Entrant& chosen = *find(entrants, stored.trials[decision.entrants[selection.winner]]);
  const Entrant* base = find_base(entrants);
  records_.add(db::SelectionRow{.problem_id = chosen.trial.key.problem_id,
                                .span = std::string(muse::name(group.span)),
                                .handoff_in = key(group.handoff),
                                .regime = std::string(profiler::name(group.regime)),
                                .trial_id = chosen.trial.id,
                                .base_trial_id = base == nullptr ? 0 : base->trial.id,
                                .median_ns = selection.median_ns,
                                .low_ns = selection.interval.low,
                                .high_ns = selection.interval.high,
                                .base_median_ns = selection.base_median_ns,
                                .tie_set = ties.dump(),
                                .rule = selection.rule,
                                .status = selection.status,
                                .race_id = stored.row.id});
  settled.winner.chain = muse::key(chosen.chain);
  return settled;
}

// A whole step that wins has to be right once more, as it was timed and on other data; where it is
// not, the others decide without it.
std::optional<Settled> Settler::decide_rightly(const RaceGroup& group,
                                               std::vector<Entrant>& entrants) {
  while (!entrants.empty()) {
    at_ = fmt::format("{}: racing {}", title(group), entrants.size());
    const std::optional<StoredRace> stored = decide(group, entrants);
    if (!stored) return std::nullopt;
    const Decision decision = select_from(group, *stored, entrants);
    if (decision.selection.winner >= 0 && group.span == kWholeStep) {
      const db::Id won = stored->trials[decision.entrants[decision.selection.winner]];
      const auto chosen = std::find_if(entrants.begin(), entrants.end(),
                                       [&](const Entrant& e) { return e.trial.id == won; });
      at_ = fmt::format("{}: validating the winner", title(group));
      if (!runner_.revalidate(group, *chosen)) {
        tally_.outcomes[won] = chosen->outcome();
        if (!is_final(chosen->outcome()) || is_measured(chosen->outcome())) return std::nullopt;
        entrants.erase(chosen);
        continue;
      }
    }
    return conclude(group, entrants, *stored, decision);
  }
  return Settled{};
}

// A scout of the same candidates is not run again: what it tells makes the search what it was.
// Those that have failed since may have been in it.
std::optional<StoredRace> Settler::scout_race(const RaceGroup& group,
                                              const std::vector<Chain>& chains, const Chain& base,
                                              std::vector<Entrant>& entrants) {
  const std::vector<db::Id> valid = ids(entrants);
  std::vector<db::Id> batch = valid;
  const auto add = [&](const Chain& chain) {
    if (const auto trial = records_.find(chain, group)) batch.push_back(trial->id);
  };
  for (const Chain& chain : chains) add(chain);
  if (!base.empty()) add(base);
  std::vector<Entrant> racing;
  std::optional<StoredRace> unfinished;
  for (StoredRace& race : usable_races(group)) {
    const std::vector<db::Id>& raced = race.trials;
    if (race.row.status == kScoutRace && is_within(valid, raced) && is_within(raced, batch)) {
      return std::move(race);
    }
    if (race.row.status != kScoutingRace || !records_.goes_on(race.row.run_id)) continue;
    if (std::vector<Entrant> same = entrants_of(race, entrants); !same.empty()) {
      racing = std::move(same);
      unfinished = std::move(race);
    }
  }
  if (!unfinished) racing = entrants;
  before_work_(group);
  auto stored =
      runner_.scout(group, racing, scout_rules(group), std::move(unfinished), floor(group));
  for (const Entrant& raced : racing) tally_.outcomes[raced.trial.id] = raced.outcome();
  return stored;
}

std::optional<Medians> Settler::scout(const RaceGroup& group, const std::vector<Chain>& chains,
                                      const Chain& base, const Chain& feeder) {
  std::optional<std::vector<Entrant>> entrants = valid_entrants(group, chains, base, feeder);
  if (!entrants) return std::nullopt;
  Medians medians;
  if (entrants->empty()) return medians;
  at_ = fmt::format("{}: scouting {}", title(group), entrants->size());
  const std::optional<StoredRace> stored = scout_race(group, chains, base, *entrants);
  if (!stored) return std::nullopt;
  const std::vector<Standing> standings = stored->race.standings();
  for (size_t i = 0; i < standings.size(); ++i) {
    const Entrant* entrant = find(*entrants, stored->trials[i]);
    if (entrant == nullptr || standings[i].excluded || standings[i].samples == 0) continue;
    medians[muse::key(entrant->chain)] = standings[i].median_ns;
  }
  return medians;
}

std::optional<Settled> Settler::settle(const RaceGroup& group, const std::vector<Chain>& chains,
                                       const Chain& base, const Chain& feeder) {
  std::optional<std::vector<Entrant>> entrants = valid_entrants(group, chains, base, feeder);
  if (!entrants) return std::nullopt;
  std::optional<Settled> settled = decide_rightly(group, *entrants);
  if (!settled) return std::nullopt;
  settled->winner.shape = muse::key(group.shape);
  settled->winner.span = muse::name(group.span);
  settled->winner.handoff = key(group.handoff);
  settled->winner.regime = profiler::name(group.regime);
  if (const Entrant* raced = find_base(*entrants)) {
    settled->winner.base_chain = muse::key(raced->chain);
  }
  return settled;
}

}  // namespace muse::tuner
