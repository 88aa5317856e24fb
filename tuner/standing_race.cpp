// SPDX-License-Identifier: Apache-2.0
// Who is ranked by which race, and which of them decides.
#include "tuner/standing_race.h"

#include <algorithm>
#include <utility>

#include "tuner/race.h"
#include "tuner/select.h"
#include "tuner/stored_selection.h"

namespace muse::tuner {
namespace {

/// Two widths that are the same number, read twice.
constexpr double kSameRule = 1e-9;

bool contains(const std::vector<db::Id>& ids, db::Id id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

bool is_over(const StoredRace& stored) { return stored.row.status == kDecidingRace; }

bool is_led_by(const StoredRace& race, const std::vector<db::Id>& wanted) {
  const int leader = race.race.leader();
  return is_over(race) && leader >= 0 && contains(wanted, race.trials[leader]);
}

// The trials that race `at` ranks: its own, and those of older races whose leader it raced again,
// and so on. `races`: newest first.
std::set<db::Id> ranked_by(const std::vector<StoredRace>& races, size_t at) {
  std::set<db::Id> ranked;
  std::set<size_t> taken{at};
  for (size_t i = at; i < races.size(); ++i) {
    if (!taken.contains(i)) continue;
    ranked.insert(races[i].trials.begin(), races[i].trials.end());
    for (size_t older = i + 1; older < races.size(); ++older) {
      if (is_led_by(races[older], races[i].trials)) taken.insert(older);
    }
  }
  return ranked;
}

// Whether somebody took part to the end who is not wanted.
bool has_others(const StoredRace& race, const std::vector<db::Id>& wanted) {
  if (is_within(race.trials, wanted)) return false;
  const std::vector<Standing> standings = race.race.standings();
  for (size_t i = 0; i < standings.size(); ++i) {
    if (!standings[i].excluded && !contains(wanted, race.trials[i])) return true;
  }
  return false;
}

}  // namespace

bool is_within(const std::vector<db::Id>& some, const std::vector<db::Id>& all) {
  return std::all_of(some.begin(), some.end(), [&](db::Id id) { return contains(all, id); });
}

const StoredRace* standing_race(const std::vector<StoredRace>& races,
                                const std::vector<db::Id>& wanted, std::set<db::Id>& ranked) {
  const StoredRace* best = nullptr;
  ptrdiff_t most = 0;
  for (size_t at = 0; at < races.size(); ++at) {
    if (!is_led_by(races[at], wanted)) continue;
    std::set<db::Id> mine = ranked_by(races, at);
    const ptrdiff_t count =
        std::count_if(wanted.begin(), wanted.end(), [&](db::Id id) { return mine.contains(id); });
    if (count <= most) continue;
    best = &races[at];
    most = count;
    ranked = std::move(mine);
  }
  return best;
}

const StoredRace* deciding_race(const std::vector<StoredRace>& races,
                                const std::vector<db::Id>& wanted, db::Id base,
                                double half_width_pct) {
  const StoredRace* joined = nullptr;
  for (size_t at = 0; at < races.size(); ++at) {
    const StoredRace& race = races[at];
    const db::Id raced_base = race.base < 0 ? 0 : race.trials[race.base];
    if (!is_led_by(race, wanted) || raced_base != base) continue;
    if (!is_settled_at(race, half_width_pct)) continue;
    const std::set<db::Id> ranked = ranked_by(races, at);
    if (!std::all_of(wanted.begin(), wanted.end(), [&](db::Id id) { return ranked.contains(id); }))
      continue;
    if (!has_others(race, wanted)) return &race;
    if (joined == nullptr) joined = &race;
  }
  return joined;
}

bool is_settled_at(const StoredRace& stored, double half_width_pct) {
  if (stored.rules.half_width_pct <= half_width_pct * (1 + kSameRule)) return true;
  std::vector<Samples> all;
  for (const int i : deciding_entrants(stored, stored.trials)) {
    all.emplace_back(stored.race.samples(i));
  }
  const int leader = leader_of(all);
  if (leader < 0) return true;  // more rounds of nothing tell nothing
  const double tolerance_ns =
      std::max(half_width_pct / 100 * leading_median(all, leader), stored.rules.step_ns);
  const std::vector<Gap> gaps = tuner::gaps(all, leader, tolerance_ns, stored.rules.step_ns);
  for (size_t i = 0; i < gaps.size(); ++i) {
    if (static_cast<int>(i) != leader && !gaps[i].settled(tolerance_ns)) return false;
  }
  return true;
}

}  // namespace muse::tuner
