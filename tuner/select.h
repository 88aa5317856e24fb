// SPDX-License-Identifier: Apache-2.0
// Who wins: a pure function of stored samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/statistics.h"

namespace muse::tuner {

struct SelectionRules {
  double tie_pct = 0.5;
  double switch_margin_pct = 1.0;
  double step_ns = 1;
  uint64_t seed = 1;
};

/// One contender with its samples of the deciding rounds, paired by position.
struct Contender {
  std::string key;
  std::vector<double> ns;
  int64_t workspace_bytes = 0;
  bool base = false;
  bool degraded = false;
};

struct Selection {
  int winner = -1;  ///< index into the contenders; -1: none had samples
  std::vector<int> tie_set;  ///< indices that cannot be told from the leader, winner first
  std::string rule;          ///< fastest, base_kept, tie_base, tie_workspace, tie_p90, tie_name
  std::string status;        ///< winner, tie(n), inconclusive, degraded
  double median_ns = 0;
  profiler::Interval interval;
  double base_median_ns = 0;  ///< 0 where no contender is the base
  /// Of median(winner - base) in percent of the base; 0,0 where there is no base.
  profiler::Interval gain_pct;
};

Selection select(const std::vector<Contender>& contenders, const SelectionRules& rules);

}  // namespace muse::tuner
