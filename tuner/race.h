// SPDX-License-Identifier: Apache-2.0
// The race: which entrants run in which round, who is dropped and when it is over. Pure: it is fed
// with samples and has never heard of a device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiler/statistics.h"
#include "tuner/select.h"

namespace muse::tuner {

struct RaceRules {
  struct Checkpoint {
    int rounds;         ///< after so many good rounds ...
    double behind_pct;  ///< ... drop whose lower bound lies more than this behind the leader
  };
  /// The first needs both of two rounds: one outlier drops nobody, and who is several times slower
  /// costs two turns. In the final the limit of the last one goes on to hold.
  std::vector<Checkpoint> checkpoints{{2, 50}, {4, 10}, {8, 5}, {16, 2}};
  int max_finalists = 8;
  int final_rounds = 32;        ///< fresh rounds at least (fewer where max_rounds says so)
  int max_rounds = 256;         ///< good rounds in all
  double half_width_pct = 0.5;  ///< the final ends when everybody's gap is settled at this
  double step_ns = 1;           ///< no interval is narrower
  uint64_t seed = 1;
};

/// One interleaved pass. The base, where there is one, runs first and last besides its own turn.
struct RoundOrder {
  int number = 0;
  bool final = false;         ///< selection samples are not reused in the final
  std::vector<int> entrants;  ///< in the order to run; indices given to Race
  bool operator==(const RoundOrder&) const = default;
};

struct RoundSamples {
  std::vector<double>
      ns;                ///< one per entry of RoundOrder::entrants; NaN = this sample was rejected
  std::string rejected;  ///< not empty: the whole round does not count
};

struct Standing {
  double median_ns = 0;
  profiler::Interval interval;  ///< of the median
  /// Of median(entrant - leader), ns.
  profiler::Interval behind;
  int samples = 0;
  bool finalist = false;      ///< and not dropped in the final
  int dropped_in_round = -1;  ///< -1 = never
  std::string why;            ///< dropped: by which interval; excluded: the reason given
  bool excluded = false;      ///< crashed, timed out, ...
};

/// Early rounds run every survivor and drop at the checkpoints by interval, never by rank; a
/// checkpoint beyond half of max_rounds is left out. Then at most max_finalists (by median, equal
/// ones by index; the base always has a seat) run the final. Two survivors or fewer go to the final
/// at once, as there is nothing left to choose. The base is never dropped.
///
/// The final is looked at after 8 and 16 rounds, at final_rounds, then each time a quarter more has
/// run. A finalist that is surely slower (see gaps()) by more than the last checkpoint's limit
/// leaves. From final_rounds on the final ends as soon as every gap is settled at
/// max(half_width_pct, one step): its interval, simultaneous with those of all that may still tie,
/// is that narrow, or it lies wholly above, and then its width cannot change who wins or ties. That
/// is the rule select() decides by, so a final that ended by it is not inconclusive.
class Race {
 public:
  /// `base` < 0: no sentinel. Throws std::invalid_argument for a base that is no entrant and for
  /// max_rounds below 1.
  Race(int entrants, int base, RaceRules rules);
  /// The next round to run; nullopt when the race is over. The same one until a round is added or
  /// an entrant excluded, so that a round which was lost leaves no trace.
  std::optional<RoundOrder> next() const;
  /// What next() will give, one after the other, as long as nobody is excluded: up to `limit`
  /// orders, none beyond the next decision about who goes on. Empty when the race is over. They may
  /// run in one go; each is still to be added, in order.
  std::vector<RoundOrder> block(int limit) const;
  /// Whether `order` is the round next() asks for. Where an exclusion (or a round that was lost)
  /// has changed that, the rest of a block is void.
  bool wants(const RoundOrder& order) const { return next() == order; }
  /// A rejected round is dropped and another one takes its place; from the sixth in a row on it is
  /// kept and the race is degraded. An entrant is excluded where more than half of its turns (of at
  /// least kLeastTurns) gave no sample. Throws std::logic_error where a good round has not one
  /// sample per turn.
  void add(const RoundOrder& order, const RoundSamples& samples);
  /// Takes an entrant out for good (it crashed, hung, ...). The first reason stands.
  void exclude(int entrant, const std::string& why);
  /// Fed in the same order, the same standings: a stored race can be replayed. Finalists by their
  /// final samples, the others by their early ones.
  std::vector<Standing> standings() const;
  /// -1 where nobody was measured.
  int leader() const;
  /// Rounds were kept that should have been rejected.
  bool degraded() const { return degraded_; }
  /// The samples a standing is made of, ns, one per round; NaN where the entrant has none. Those of
  /// two finalists are pairs by position.
  const std::vector<double>& samples(int entrant) const;

  static constexpr int kMaxRejectedInARow = 5;
  static constexpr int kLeastTurns = 4;

 private:
  struct Entrant {
    std::vector<double> early, final;
    int turns = 0, missed = 0;
    bool finalist = false, excluded = false;
    int dropped_in_round = -1;
    std::string why;

    bool running(bool in_final) const {
      return !excluded && dropped_in_round < 0 && (finalist || !in_final);
    }
  };
  std::vector<int> survivors() const;
  bool over() const;
  RoundOrder order_of(int number) const;
  int rounds_to_decision() const;
  void record(const RoundOrder& order, const RoundSamples& samples);
  void exclude_unmeasured();
  void advance(int round);
  void eliminate(const RaceRules::Checkpoint& checkpoint, int round);
  void begin_final(int round);
  void check_final(int round);
  void leave_final(int first, int round);
  std::vector<Samples> samples_of(const std::vector<int>& entrants) const;
  profiler::Interval behind(const Entrant& entrant, const Entrant& leader) const;

  int base_;
  RaceRules rules_;
  std::vector<Entrant> entrants_;
  int early_rounds_ = 0, final_rounds_ = 0, added_ = 0, rejected_in_a_row_ = 0;
  int early_end_ = 0, next_check_ = 0, least_final_ = 0;
  size_t checkpoint_ = 0;
  bool in_final_ = false, decided_ = false, degraded_ = false;
};

}  // namespace muse::tuner
