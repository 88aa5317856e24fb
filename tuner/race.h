// SPDX-License-Identifier: Apache-2.0
// The race: which entrants run in which round, who is dropped and when it is over. Pure: it is fed
// with samples and has never heard of a device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiler/statistics.h"

namespace muse::tuner {

struct RaceRules {
  struct Checkpoint {
    int rounds;           ///< after so many good rounds ...
    double behind_pct;    ///< ... drop whose lower bound lies more than this behind the leader
  };
  std::vector<Checkpoint> checkpoints{{4, 10}, {8, 5}, {16, 2}};
  int max_finalists = 8;
  int final_rounds = 32;        ///< fresh rounds at least (fewer where max_rounds says so)
  int max_rounds = 256;         ///< good rounds in all
  double half_width_pct = 0.5;  ///< the final ends when every interval is this narrow
  double step_ns = 1;           ///< no interval is narrower
  uint64_t seed = 1;
};

/// One interleaved pass. The base, where there is one, runs first and last besides its own turn.
struct RoundOrder {
  int number = 0;
  bool final = false;        ///< selection samples are not reused in the final
  std::vector<int> entrants; ///< in the order to run; indices given to Race
};

struct RoundSamples {
  std::vector<double> ns;  ///< one per entry of RoundOrder::entrants; NaN = this sample was rejected
  std::string rejected;    ///< not empty: the whole round does not count
};

struct Standing {
  double median_ns = 0;
  profiler::Interval interval;  ///< of the median
  /// Of median(entrant - leader), ns.
  profiler::Interval behind;
  int samples = 0;
  bool finalist = false;
  int dropped_in_round = -1;  ///< -1 = never
  std::string why;            ///< dropped: by which interval; excluded: the reason given
  bool excluded = false;      ///< crashed, timed out, ...
};

class Race {
 public:
  /// `base` < 0: no sentinel.
  Race(int entrants, int base, RaceRules rules);
  /// The next round to run; nullopt when the race is over.
  std::optional<RoundOrder> next();
  void add(const RoundOrder& order, const RoundSamples& samples);
  /// Takes an entrant out for good (it crashed, hung, ...).
  void exclude(int entrant, const std::string& why);
  /// Fed in the same order, the same standings: a stored race can be replayed.
  std::vector<Standing> standings() const;
  /// -1 where nobody was measured.
  int leader() const;

 private:
  struct State;
  int base_;
  RaceRules rules_;
  std::vector<std::vector<double>> early_, final_;
  std::vector<Standing> standings_;
  int early_rounds_ = 0, final_rounds_ = 0, issued_ = 0, rejected_in_a_row_ = 0;
  size_t checkpoint_ = 0;
  bool in_final_ = false;
};

}  // namespace muse::tuner
