// SPDX-License-Identifier: Apache-2.0
// One race on the worker: validation first, then rounds; what crashes or hangs is named and left
// out.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "tuner/measurer.h"
#include "tuner/records.h"
#include "tuner/round_watch.h"

namespace muse::tuner {

/// Strikes after which a candidate is quarantined under its code hash.
inline constexpr int kStrikes = 2;

/// Blameless ends of the worker, in a row, after which the candidate that ran is blamed all the
/// same.
inline constexpr int kForgivenLosses = 4;

/// Where the time of a sweep goes, s.
struct MeasuringCost {
  double validating_s = 0;  ///< gates, before and after races
  double asking_s = 0;      ///< from asking for rounds to having them
  double rounds_s = 0;      ///< of that rounds ran; else shapes were set up, or others measured
  double device_s = 0;      ///< of that the device was busy: samples with what ran before each
  double wall_s = 0;  ///< from the first shape to the last, all that is not measuring included
};

/// What no sample can be below: one that is gives no time.
struct Floor {
  double ns = 0;    ///< 0 = not known
  std::string why;  ///< "59 MB cannot be read faster"
};

class RaceRunner {
 public:
  /// `keep_on` is asked between two rounds and two validations: false ends the work there.
  RaceRunner(Records& records, Measurer& measurer, uint64_t input_seed,
             std::function<bool()> keep_on);

  /// Runs the gates unless they are known to pass or the trial has ended; stores what they say.
  /// Returns false where the work was stopped.
  bool validate(const RaceGroup& group, Entrant& entrant);

  /// Races the entrants to the end, or goes on with `unfinished` (a stored race of the same
  /// entrants). Entrants' trials get their outcome. Returns nullopt where the work was stopped.
  std::optional<StoredRace> race(const RaceGroup& group, std::vector<Entrant>& entrants,
                                 const RaceRules& rules, std::optional<StoredRace> unfinished,
                                 const Floor& floor = {});

  /// The same for a race that decides nothing: only who crashes or does not launch has an outcome.
  std::optional<StoredRace> scout(const RaceGroup& group, std::vector<Entrant>& entrants,
                                  const RaceRules& rules, std::optional<StoredRace> unfinished,
                                  const Floor& floor = {});

  /// Times one entrant alone, storing nothing: for deadlines. ns; nullopt where it fails.
  std::optional<double> time_once(const RaceGroup& group, const Entrant& entrant);

  /// Whether the winner of a race is right on data it was not timed with; stores the verdict.
  /// False where it is not, or where the work was stopped before it was known.
  bool revalidate(const RaceGroup& group, Entrant& entrant);

  int rounds() const { return rounds_; }
  const MeasuringCost& cost() const { return cost_; }
  /// Workers died again and again and no candidate could be blamed: nothing more is worth trying.
  bool gave_up() const { return gave_up_; }
  /// Why no worker starts any more; empty where one does. It gave up then.
  const std::string& no_worker() const { return no_worker_; }
  /// In memory, in which the rounds of a race take turns.
  int placements = 1;
  /// Called after each round and each validation.
  std::function<void()> tick = [] {};
  /// Called with the load and the CPUs for each round that ran on a host with more work than these.
  std::function<void(double load, int cpus)> on_busy_host = [](double, int) {};
  /// How it waits before it tries a rejected round again.
  std::function<void(std::chrono::milliseconds)> pause;

 private:
  RoundRequest request(const RaceGroup& group, const std::vector<Entrant>& entrants,
                       std::vector<std::vector<int>> orders) const;
  tl::expected<RoundReply, WorkerLoss> rounds(
      const RoundRequest& request, const std::function<void()>& meanwhile = [] {});
  /// Asks again where the worker's end is not known to be a candidate's doing.
  template <class Ask>
  auto forgiving(Ask ask) const -> decltype(ask());
  /// True where the loss is that no worker starts: then nobody is blamed, and all is over.
  bool is_the_end(const WorkerLoss& loss);
  void strike(Entrant& entrant, int strikes, const WorkerLoss& loss);
  std::vector<int> find_culprits(const RaceGroup& group, std::vector<Entrant>& entrants,
                                 const std::vector<int>& order);
  struct Running;
  /// Runs rounds until the race is over. What is left of a block whose rounds took longer than a
  /// request is asked for before they are taken in, and runs meanwhile. False where the work was
  /// stopped.
  bool run(const RaceGroup& group, Running& running);
  /// The worker died: finds out who did it, and takes them out. False where that is the end.
  bool lost(const RaceGroup& group, Running& running, const std::vector<RoundOrder>& orders,
            const WorkerLoss& loss);
  /// Feeds the rounds to the race and stores them, in one transaction. What follows a second
  /// rejected round in a row is dropped: first the machine gets time to settle. Returns how long to
  /// wait before the next ones.
  std::chrono::milliseconds take_in(Running& running, const std::vector<RoundOrder>& orders,
                                    const RoundReply& reply);
  Running start(const RaceGroup& group, std::vector<Entrant>& entrants, const RaceRules& rules,
                std::optional<StoredRace> unfinished, const Floor& floor, bool scout);
  StoredRace stored(const RaceGroup& group, db::Id id) const;

  Records& records_;
  Measurer& measurer_;
  uint64_t input_seed_;
  std::function<bool()> keep_on_;
  MeasuringCost cost_;
  int rounds_ = 0;
  bool gave_up_ = false;
  std::string no_worker_;
};

}  // namespace muse::tuner
