// SPDX-License-Identifier: Apache-2.0
// How far two sweeps of the same thing agree about who wins, and what a pick of one costs by the
// times of the other. Reads the database alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "db/store.h"

namespace muse::tuner {

/// One decision that both runs made.
struct AgreedPick {
  std::string problem, span, handoff, regime;
  std::string first, second;                ///< candidate keys of the picks
  std::string first_status, second_status;  ///< of the selections
  std::vector<std::string> first_ties, second_ties;
  /// What the first run's pick loses against the fastest of the second run's race, by the medians
  /// of that race; nullopt where the second run did not time it.
  std::optional<double> regret_pct;

  bool identical() const { return first == second; }
  /// Identical, or each pick lies in the other's tie set; an inconclusive one disagrees.
  bool agrees() const;
};

struct Agreement {
  std::vector<AgreedPick> picks;  ///< by problem, span, hand-off, regime
  int only_in_one = 0;            ///< decisions that the other run did not make

  double agreeing_share() const;      ///< of the picks, 0 to 1; 1 where there are none
  double narrow_ties_share() const;   ///< selections of both runs whose tie set has at most 3
  double inconclusive_share() const;  ///< selections of both runs
  double mean_regret_pct() const;     ///< geometric mean over picks with a regret
  double worst_regret_pct() const;
};

Agreement agreement(const db::Store& store, db::Id first, db::Id second);

/// "picks agree 97.5 % (312 of 320), ..."
std::string text(const Agreement& agreement);

}  // namespace muse::tuner
