// SPDX-License-Identifier: Apache-2.0
// A decision out of stored samples: what a sweep selects by, and the same again without a device.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "tuner/records.h"
#include "tuner/select.h"
#include "tuner/spec.h"

namespace muse::tuner {

/// What select() says of a race. A contender is an entrant of the race that decides.
struct Decision {
  Selection selection;
  std::vector<int> entrants;          ///< contender -> entrant of the race
  std::vector<Contender> contenders;  ///< what was given to select()
};

/// The entrants that decide a race among the `wanted` trials: the finalists of them, or everybody
/// where none of them ran a final; nobody who was excluded.
std::vector<int> deciding_entrants(const StoredRace& stored, const std::vector<db::Id>& wanted);

/// Selects among `entrants` by the samples of the race, at its clock's step.
Decision decide_from(const StoredRace& stored, const std::vector<Entrant>& entrants,
                     const Problem& problem, const DeviceClass& device, const MeasureRules& rules);

/// The device's class as far as a database keeps it: all but smem_per_block_bytes, which is 0.
DeviceClass device_class(const db::DeviceRow& row);

/// One contender against the leader, by the intervals that select() decides with.
struct Against {
  db::Id trial = 0;
  Gap gap;
  double median_ns = 0;
};

/// The selections of one run, each recomputed from the rounds in the database.
class StoredSelections {
 public:
  /// `store` outlives it.
  StoredSelections(const db::Store& store, const db::RunRow& run);

  struct Replayed {
    StoredRace race;  ///< the one that decided
    Decision decision;
    db::Id leader = 0;  ///< the trial that the intervals are against
    std::vector<Against> against;
    std::vector<std::string> differences;  ///< from what is stored; empty = the same
  };
  /// The error says why it cannot be replayed: its race is gone or of other rules, a variant or a
  /// configuration that this build does not have, a value that the database does not hold.
  tl::expected<Replayed, std::string> replay(const db::SelectionRow& row) const;

  /// Complete races of a selection's group up to this run, newest first; those that no longer
  /// replay are left out.
  std::vector<StoredRace> races(db::Id problem, const std::string& span, const std::string& handoff,
                                const std::string& regime) const;

 private:
  struct Wanted {
    std::vector<Entrant> entrants;  ///< chains are set where needed
    bool other_code = false;        ///< this build's code of one differs from what was measured
  };
  bool was_measured(const db::Store::RunTrial& trial, const db::SelectionRow& row,
                    const std::vector<std::string>& ties, const StoredRace& race) const;
  tl::expected<Wanted, std::string> wanted(const db::SelectionRow& row, const StoredRace& race,
                                           const std::vector<std::string>& ties,
                                           const Problem& problem) const;
  tl::expected<Replayed, std::string> replay_from(const db::SelectionRow& row,
                                                  StoredRace race) const;
  tl::expected<StoredRace, std::string> load(const db::RaceRow& row) const;

  const db::Store& store_;
  db::RunRow run_;
  DeviceClass device_;
  std::vector<db::Store::RunTrial> trials_;
  tl::expected<MeasureRules, std::string> rules_;
};

/// The keys in a selection's tie set, winner first; the error says that they are no such list.
tl::expected<std::vector<std::string>, std::string> tie_keys(const db::SelectionRow& row);

}  // namespace muse::tuner
