// SPDX-License-Identifier: Apache-2.0
// Which of a group's stored races decides for those that are wanted now. Pure. Races: newest first.
#pragma once

#include <set>
#include <vector>

#include "tuner/stored_race.h"

namespace muse::tuner {

bool is_within(const std::vector<db::Id>& some, const std::vector<db::Id>& all);

/// Of the races led by one of the `wanted` trials the one that ranks most of them, by itself or by
/// having raced an older one's leader again; among equals the newest. Null where there is none;
/// else `ranked` is whom it ranks.
const StoredRace* standing_race(const std::vector<StoredRace>& races,
                                const std::vector<db::Id>& wanted, std::set<db::Id>& ranked);

/// The newest race that ranks everybody wanted, is led by one of them, had the same base (0 = none)
/// and is decided as closely as asked for. One without others goes before: what was decided before
/// they joined is decided in the same way when a sweep is repeated or goes on.
const StoredRace* deciding_race(const std::vector<StoredRace>& races,
                                const std::vector<db::Id>& wanted, db::Id base,
                                double half_width_pct);

/// Whether the race ended by a rule at least as close as this one, or would have all the same: one
/// that was decided more widely does not decide where more is asked for.
bool is_settled_at(const StoredRace& stored, double half_width_pct);

}  // namespace muse::tuner
