// SPDX-License-Identifier: Apache-2.0
// One group to its decision: validate, let stored rounds decide or race, select, store.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tuner/race_runner.h"
#include "tuner/records.h"
#include "tuner/select.h"
#include "tuner/stored_selection.h"

namespace muse::tuner {

/// One decision of the sweep, as stored.
struct Winner {
  std::string shape, span, handoff, regime;
  std::string chain;       ///< empty: nothing valid
  std::string base_chain;  ///< empty where the base has no part that covers the span
  Selection selection;
};

/// What came of a group.
struct Settled {
  Winner winner;
  struct Ranked {
    Chain chain;
    double median_ns;
    bool tied;  ///< cannot be told from the winner, and is not the winner
  };
  std::vector<Ranked> best;  ///< best first
};

/// What the trials of a run came to.
struct Tally {
  std::map<db::Id, Outcome> outcomes;
  std::set<db::Id> measured;  ///< timed in this run
  std::set<db::Id> reused;    ///< known from the database

  bool is_reused(db::Id id) const { return reused.contains(id) && !measured.contains(id); }
};

/// By candidate key, ns; only of those that could be timed.
using Medians = std::map<std::string, double>;

/// The seed of what is random in a group.
uint64_t group_seed(uint64_t seed, const RaceGroup& group);

class Settler {
 public:
  /// `before_race` runs once work on the device is needed for a group, before the first of it.
  /// `fresh`: races of earlier runs decide nothing.
  Settler(const Spec& spec, const Hello& hello, uint64_t seed, bool fresh, Records& records,
          RaceRunner& runner, std::function<void(const RaceGroup&)> before_work);

  /// Settles the group among `chains` and `base` (empty = none covers the span), each run after an
  /// untimed `feeder`. nullopt where the work was stopped.
  std::optional<Settled> settle(const RaceGroup& group, const std::vector<Chain>& chains,
                                const Chain& base, const Chain& feeder);
  /// Validates the candidates and times them, and the base with them, in a few rounds that decide
  /// nothing. nullopt where the work was stopped.
  std::optional<Medians> scout(const RaceGroup& group, const std::vector<Chain>& chains,
                               const Chain& base, const Chain& feeder);
  /// Stores how a candidate ended that is not tried, and why.
  void skip(const RaceGroup& group, const Candidate& candidate, Outcome outcome,
            const std::string& reason);

  /// Of what was settled since the last call of take_tally().
  const Tally& tally() const { return tally_; }
  Tally take_tally() { return std::exchange(tally_, {}); }
  /// What it is at, for progress.
  const std::string& at() const { return at_; }

 private:
  std::optional<std::vector<Entrant>> valid_entrants(const RaceGroup& group,
                                                     const std::vector<Chain>& chains,
                                                     const Chain& base, const Chain& feeder);
  std::optional<StoredRace> decide(const RaceGroup& group, std::vector<Entrant>& entrants);
  std::vector<Entrant> newcomers(const RaceGroup& group, const std::vector<StoredRace>& races,
                                 const std::vector<Entrant>& entrants) const;
  std::optional<Settled> decide_rightly(const RaceGroup& group, std::vector<Entrant>& entrants);
  Settled conclude(const RaceGroup& group, const std::vector<Entrant>& entrants,
                   const StoredRace& stored, const Decision& decision);
  Decision select_from(const RaceGroup& group, const StoredRace& stored,
                       const std::vector<Entrant>& entrants) const;
  std::optional<StoredRace> scout_race(const RaceGroup& group, const std::vector<Chain>& chains,
                                       const Chain& base, std::vector<Entrant>& entrants);
  std::vector<StoredRace> usable_races(const RaceGroup& group) const;
  RaceRules rules(const RaceGroup& group) const;
  RaceRules scout_rules(const RaceGroup& group) const;
  Floor floor(const RaceGroup& group) const;

  const Spec& spec_;
  const Hello& hello_;
  uint64_t seed_;
  bool fresh_;
  Records& records_;
  RaceRunner& runner_;
  std::function<void(const RaceGroup&)> before_work_;
  Tally tally_;
  std::string at_;
};

}  // namespace muse::tuner
