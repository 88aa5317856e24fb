// SPDX-License-Identifier: Apache-2.0
// Who wins: a pure function of stored samples.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "profiler/statistics.h"

namespace muse::tuner {

/// With fewer common rounds no 95 % interval of a median exists (the whole range of 5 values covers
/// it in 94 % of the cases): such a pair counts as one that cannot be told apart, unless it is
/// gross.
inline constexpr int kLeastPairedRounds = 6;

/// The level of all intervals of one decision together.
inline constexpr double kAlpha = 0.05;

/// The samples of one contender, ns; rounds by position; a value that is not finite = no sample.
using Samples = std::span<const double>;

/// The one with the least median over the rounds that all who have samples share (over each one's
/// own rounds where those shared are fewer than half of the fullest one's); of equals the first. -1
/// where nobody has a sample.
int leader_of(const std::vector<Samples>& all);

/// The median over the rounds that leader_of() compares; infinity where there is none.
double leading_median(const std::vector<Samples>& all, int leader);

/// What the rounds say of one contender against the leader.
struct Gap {
  /// Of median(own - leader) over the rounds both have, ns. Simultaneous: see gaps().
  profiler::Interval behind;
  size_t rounds = 0;    ///< that both have
  bool slower = false;  ///< surely, by the tolerance or more
  bool enough() const { return rounds >= kLeastPairedRounds; }
  /// Rounding apart: an interval that was widened to a least width has to pass for that width.
  bool narrow(double half_width_ns) const {
    return behind.half_width() <= half_width_ns * (1 + 1e-9);
  }
  /// Nothing more is to be learnt of it: surely slower, or known to the given half-width.
  bool settled(double half_width_ns) const { return slower || (enough() && narrow(half_width_ns)); }
};

/// Everyone against the leader (whose own gap is empty), family-wise: Holm, step down. With m pairs
/// open, each interval is taken at 1 - kAlpha / m; those that lie wholly at or above the tolerance
/// are slower and leave, the rest is looked at again at the milder level, until nobody leaves. The
/// intervals of those that stay are the simultaneous ones: all m of them hold together.
///
/// Few rounds give such a level nothing but their whole range, in which one outlier hides any
/// difference. So a gross difference is slower besides: 3 rounds or more, in all of which (but one
/// in six) it lost more than half of the leader's median. Equal contenders do not look like that
/// even where each wanders between two modes.
std::vector<Gap> gaps(const std::vector<Samples>& all, int leader, double tolerance_ns,
                      double step_ns);

struct SelectionRules {
  double tie_pct = 0.5;
  double switch_margin_pct = 1.0;
  double step_ns = 1;
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
/// 1. The leader is that of leader_of(); of equals the first by key.
/// 2. The tie set: the leader and everyone whose gap is not `slower`.
/// 3. The base wins if it is in the tie set (`tie_base`), and also if no member of the tie set has
/// a
///    median gain over it of at least switch_margin_pct that is surely above zero (`base_kept`).
/// 4. Otherwise, among the members with that gain: smallest workspace; p90 within the tolerance of
///    the lowest (a closer race between tails is noise and would flip from sweep to sweep); name.
///
/// Status: `degraded` if the base or anyone in the tie set is; else `inconclusive` if some member's
/// gap has fewer than kLeastPairedRounds rounds, or is wider than the tolerance to each side and
/// leaves open that the winner loses more than the switch margin (the winner to the leader, or the
/// leader to the member); else tie(n) or winner. A race whose gaps are all settled at the
/// tolerance is never inconclusive.
Selection select(const std::vector<Contender>& contenders, const SelectionRules& rules);

}  // namespace muse::tuner
