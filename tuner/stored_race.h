// SPDX-License-Identifier: Apache-2.0
// A race in the database: its rules as text, its journal of rounds and exclusions, and its replay.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "db/rows.h"
#include "tuner/race.h"

namespace muse::tuner {

/// A race as stored: rows and what replaying them through Race yields.
struct StoredRace {
  db::RaceRow row;
  std::vector<db::Id> trials;  ///< entrant -> trial
  int base = -1;
  RaceRules rules;
  Race race{0, -1, {}};
};

/// The text of db::RaceRow::rules: entrants by trial, who is the base, and the rules (seed and
/// clock step have columns of their own).
std::string race_text(const std::vector<db::Id>& trials, int base, const RaceRules& rules);

/// The text of db::RoundRow::rejected that says an entrant left the race between two rounds.
std::string exclusion_text(db::Id trial, const std::string& why);

/// Rebuilds a race from its rows; nullopt where the stored order is not the one Race asks for.
std::optional<StoredRace> replay(const db::RaceRow& row, const std::vector<db::RoundRow>& rounds);

}  // namespace muse::tuner
