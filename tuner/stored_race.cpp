// SPDX-License-Identifier: Apache-2.0
// Writes a race's rules and exclusions as text, and replays its stored rounds.
#include "tuner/stored_race.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace muse::tuner {
namespace {

using nlohmann::json;

constexpr std::string_view kExcluded = "excluded ";

json to_json(const RaceRules& rules) {
  json checkpoints = json::array();
  for (const auto& c : rules.checkpoints) checkpoints.push_back({c.rounds, c.behind_pct});
  return {{"checkpoints", checkpoints},
          {"max_finalists", rules.max_finalists},
          {"final_rounds", rules.final_rounds},
          {"max_rounds", rules.max_rounds},
          {"half_width_pct", rules.half_width_pct}};
}

RaceRules rules_from(const json& j, uint64_t seed, double step_ns) {
  RaceRules rules;
  rules.checkpoints.clear();
  for (const json& c : j.at("checkpoints")) {
    rules.checkpoints.push_back({c.at(0).get<int>(), c.at(1).get<double>()});
  }
  rules.max_finalists = j.at("max_finalists");
  rules.final_rounds = j.at("final_rounds");
  rules.max_rounds = j.at("max_rounds");
  rules.half_width_pct = j.at("half_width_pct");
  rules.seed = seed;
  rules.step_ns = step_ns;
  return rules;
}

int index_of(const std::vector<db::Id>& ids, db::Id id) {
  const auto at = std::find(ids.begin(), ids.end(), id);
  return at == ids.end() ? -1 : static_cast<int>(at - ids.begin());
}

// A stored round's samples in the order the race asked for them; empty where they do not fit.
std::vector<double> samples_of(const RoundOrder& order, const std::vector<db::Id>& trials,
                               const db::RoundRow& row) {
  if (row.order.size() != order.entrants.size()) return {};
  std::map<db::Id, const std::vector<double>*> by_trial;
  for (const db::SampleRow& sample : row.samples) by_trial[sample.trial_id] = &sample.ns;
  std::map<db::Id, size_t> used;
  std::vector<double> ns;
  for (size_t i = 0; i < row.order.size(); ++i) {
    const db::Id trial = row.order[i];
    if (trials[order.entrants[i]] != trial) return {};
    const auto values = by_trial.find(trial);
    const size_t at = used[trial]++;
    if (values == by_trial.end() || at >= values->second->size()) return {};
    ns.push_back((*values->second)[at]);
  }
  return ns;
}

}  // namespace

std::string race_text(const std::vector<db::Id>& trials, int base, const RaceRules& rules) {
  json text = to_json(rules);
  text["entrants"] = trials;
  text["base"] = base;
  return text.dump();
}

std::string exclusion_text(db::Id trial, const std::string& why) {
  return fmt::format("{}{} {}", kExcluded, trial, why);
}

std::optional<StoredRace> replay(const db::RaceRow& row, const std::vector<db::RoundRow>& rounds) {
  const json text = json::parse(row.rules, nullptr, false);
  if (!text.is_object()) return std::nullopt;
  StoredRace stored;
  stored.row = row;
  stored.trials = text.at("entrants").get<std::vector<db::Id>>();
  stored.base = text.at("base");
  stored.rules = rules_from(text, row.seed, row.step_ns);
  const int count = static_cast<int>(stored.trials.size());
  stored.race = Race(count, stored.base, stored.rules);
  for (const db::RoundRow& round : rounds) {
    if (round.rejected.starts_with(kExcluded)) {
      const std::string rest = round.rejected.substr(kExcluded.size());
      const size_t space = rest.find(' ');
      const int entrant = index_of(stored.trials, std::stoll(rest));
      if (entrant < 0) return std::nullopt;
      stored.race.exclude(entrant, space == std::string::npos ? "" : rest.substr(space + 1));
      continue;
    }
    const std::optional<RoundOrder> order = stored.race.next();
    if (!order) return std::nullopt;
    const std::vector<double> ns = samples_of(*order, stored.trials, round);
    if (ns.size() != order->entrants.size()) return std::nullopt;
    stored.race.add(*order, {.ns = ns, .rejected = round.rejected});
  }
  return stored;
}

}  // namespace muse::tuner
