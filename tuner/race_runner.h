// SPDX-License-Identifier: Apache-2.0
// One race on the worker: validation first, then rounds; what crashes or hangs is named and left
// out.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "tuner/records.h"
#include "tuner/supervisor.h"

namespace muse::tuner {

/// Strikes after which a candidate is quarantined under its code hash.
inline constexpr int kStrikes = 2;

/// Blameless ends of the worker, in a row, after which the candidate that ran is blamed all the
/// same.
inline constexpr int kForgivenLosses = 4;

class RaceRunner {
 public:
  /// `keep_on` is asked between two rounds and two validations: false ends the work there.
  RaceRunner(Records& records, Supervisor& supervisor, uint64_t input_seed,
             std::function<bool()> keep_on);

  /// Runs the gates unless they are known to pass or the trial has ended; stores what they say.
  /// Returns false where the work was stopped.
  bool validate(const RaceGroup& group, Entrant& entrant);

  /// Races the entrants to the end, or goes on with `unfinished` (a stored race of the same
  /// entrants). Entrants' trials get their outcome. Returns nullopt where the work was stopped.
  std::optional<StoredRace> race(const RaceGroup& group, std::vector<Entrant>& entrants,
                                 const RaceRules& rules, std::optional<StoredRace> unfinished);

  /// Times one entrant alone, storing nothing: for deadlines. ns; nullopt where it fails.
  std::optional<double> time_once(const RaceGroup& group, const Entrant& entrant);

  int rounds() const { return rounds_; }
  /// Workers died again and again and no candidate could be blamed: nothing more is worth trying.
  bool gave_up() const { return gave_up_; }
  /// Why no worker starts any more; empty where one does. It gave up then.
  const std::string& no_worker() const { return no_worker_; }
  /// Called after each round and each validation.
  std::function<void()> tick = [] {};

 private:
  RoundRequest request(const RaceGroup& group, const std::vector<Entrant>& entrants,
                       std::vector<int> order) const;
  /// Asks again where the worker's end is not known to be a candidate's doing.
  template <class Ask>
  auto forgiving(Ask ask) const -> decltype(ask());
  /// True where the loss is that no worker starts: then nobody is blamed, and all is over.
  bool is_the_end(const WorkerLoss& loss);
  void strike(Entrant& entrant, int strikes, const WorkerLoss& loss);
  std::vector<int> find_culprits(const RaceGroup& group, std::vector<Entrant>& entrants,
                                 const RoundOrder& order, const WorkerLoss& loss);

  Records& records_;
  Supervisor& supervisor_;
  uint64_t input_seed_;
  std::function<bool()> keep_on_;
  int rounds_ = 0;
  bool gave_up_ = false;
  std::string no_worker_;
};

}  // namespace muse::tuner
