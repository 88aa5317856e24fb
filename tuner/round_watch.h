// SPDX-License-Identifier: Apache-2.0
// Judges rounds: did the machine hold still while this one ran? Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "profiler/clock_reading.h"

namespace muse::tuner {

struct RoundVerdict {
  std::string reason;                 ///< why the round does not count; empty = it does
  std::chrono::milliseconds wait{0};  ///< before the next try
};

/// One per race. Three rules, the first that is broken is the reason:
///
/// 1. No bit of profiler::kSlowdownBits: hardware slowdown, hardware or software thermal slowdown,
///    power brake. The software power cap is none: near its limit a card sets it all the time, for
///    steps of less than a percent, and where it costs more rule 2 sees the clock itself. Idle,
///    application clocks, display clocks and sync boost say what was asked for.
/// 2. SM and memory clock within 2 % of their medians over the race's good rounds; unknown
/// (negative)
///    ones are not judged. A clock that rises within the first rounds was not yet up: the reference
///    starts anew.
/// 3. The samples themselves. Every turn, the base's as sentinels and all others, is compared with
///    the running median of its own entrant's good samples. A machine that got slower moves all of
///    them: the median of these ratios is the round's move, the difference between its second and
///    first half the move within, and the median over the last rounds the move that lasts. Each may
///    be 3 %, or what the scatter seen in this race and the step of the clock explain. That is
///    little for kernels of 20 us or many turns, and much for few turns of a microsecond, where
///    single samples scatter by tens of percent: there the lasting move is what shows a drift.
///
/// A good round costs no wait. Of rejected ones in a row the first asks for 50 ms, each next one
/// for twice as much; after Race::kMaxRejectedInARow the race keeps what it gets, so waiting ends.
class RoundWatch {
 public:
  explicit RoundWatch(double step_ns) : step_ns_(step_ns) {}
  /// `turns`: the entrants in the order they ran; `ns`: one per turn, not finite = no sample.
  RoundVerdict judge(const profiler::ClockReading& clock, const std::vector<int>& turns,
                     const std::vector<double>& ns);

 private:
  /// How much slower than usual; one value per turn that has a reference, in order.
  struct Moves {
    std::vector<double> all, first_half, second_half;
    double step = 0;  ///< one step of the clock, of the shortest reference
  };
  std::string clock_reason(const profiler::ClockReading& clock);
  Moves moves(const std::vector<int>& turns, const std::vector<double>& ns) const;
  std::string move_reason(const Moves& moves) const;
  double limit(double sigmas, double turns, double step) const;
  void learn(const Moves& moves);

  double step_ns_;
  std::map<int, std::deque<double>> good_ns_;  ///< by entrant
  std::deque<double> sm_mhz_, memory_mhz_;     ///< of good rounds
  std::deque<double> scatter_;                 ///< of single turns, relative, absolute values
  std::deque<double> round_scatter_;           ///< the same as rounds show it
  std::deque<std::vector<double>> recent_;     ///< moves of the last rounds
  double sigma_ = 0;                           ///< of a single turn; 0 = not known yet
  int rejected_in_a_row_ = 0;
};

/// More work than CPUs on the host: times of a host target are then no times of the kernel's.
/// A reason to warn, not to reject: it would last, and every round be rejected.
bool host_overloaded(const profiler::ClockReading& clock, int cpus);

}  // namespace muse::tuner
