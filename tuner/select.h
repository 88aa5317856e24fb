// SPDX-License-Identifier: Apache-2.0
// Who wins: a pure function of stored samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/statistics.h"

namespace muse::tuner {

/// With fewer common rounds no 95 % interval of a median exists (the whole range of 5 values covers
/// it in 94 % of the cases): such a pair counts as one that cannot be told apart.
inline constexpr int kLeastPairedRounds = 6;

struct SelectionRules {
  double tie_pct = 0.5;
  double switch_margin_pct = 1.0;
  double step_ns = 1;
  uint64_t seed = 1;
};

/// One contender with its samples of the deciding rounds, paired by position.
struct Contender {
  std::string key;
  std::vector<double> ns;  ///< a value that is not finite = no sample in that round
  int64_t workspace_bytes = 0;
  bool base = false;
  bool degraded = false;
};

struct Selection {
  int winner = -1;           ///< index into the contenders; -1: none had samples
  std::vector<int> tie_set;  ///< winner first, then by key: all that cannot be told from the leader
  std::string rule;          ///< fastest, base_kept, tie_base, tie_workspace, tie_p90, tie_name
  std::string status;        ///< winner, tie(n), inconclusive, degraded; empty without a winner
  double median_ns = 0;
  profiler::Interval interval;
  double base_median_ns = 0;  ///< 0 where no contender is the base, or the base has no samples
  /// Of median(base - winner) in percent of the base's median: positive = faster than the base.
  /// 0,0 where there is no base or the base won.
  profiler::Interval gain_pct;
};

/// The rules, in order; tolerance = max(tie_pct of the leader's median, one step). No result
/// depends on the order of the contenders.
///
/// 1. The leader has the least median over the rounds that all measured contenders share (over each
///    one's own rounds where those shared are fewer than half of the fullest contender's); then
///    key.
/// 2. The tie set: the leader and everyone whose paired interval (median of the difference to the
///    leader over the rounds both have, Holm over the pairs) reaches below the tolerance, and
///    everyone with fewer than kLeastPairedRounds rounds in common with the leader.
/// 3. The base wins if it is in the tie set (`tie_base`), and also if no member of the tie set has
/// a
///    median gain over it of at least switch_margin_pct with an interval above zero (`base_kept`).
/// 4. Otherwise, among the members with that gain: smallest workspace; p90 within the tolerance of
/// the
///    lowest (a closer race between tails is noise and would flip from sweep to sweep); name.
///
/// Status: `degraded` if the base or anyone in the tie set is; else `inconclusive` if some pair
/// (winner, member of the tie set) has fewer than kLeastPairedRounds rounds, or an interval that is
/// wider than the tolerance to each side and allows the winner to be slower by more than the switch
/// margin; else tie(n) or winner.
Selection select(const std::vector<Contender>& contenders, const SelectionRules& rules);

}  // namespace muse::tuner
