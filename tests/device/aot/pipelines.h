// SPDX-License-Identifier: Apache-2.0
// Pipelines whose kernels are compiled ahead of time, for tests and times of the runtime on a GPU.
#pragma once

#include <vector>

#include "tests/fakes/chain.h"

namespace muse::aot {

/// The base first. Each of the others has something that a launch must get right: a workspace with
/// tickets and a cluster; tensor maps and overlapping launches; both; a cluster beyond the portable
/// size; CTAs that fill the chip.
inline std::vector<Chain> pipelines() {
  std::vector<Chain> chains = {
      fakes::chain_of("prepare/fused + attention/mma + combine/gated"),
      fakes::chain_of("fused/one_launch:cluster=8,depth=1,heads_per_cta=1,splits=64,ticket=1,"
                      "warps=4,warps_per_sm=12"),
      fakes::chain_of("prepare/warp + attention/async_ring:boxes=1 + combine/gated"),
      fakes::chain_of("prepare/warp + attention/register_direct:cluster=1,depth=2,gate=1,splits=4,"
                      "ticket=1,tokens=16,warps=4"),
      fakes::chain_of("fused/one_launch"),
      fakes::chain_of("fused/one_launch:cluster=1,depth=2,fill=1,splits=64,ticket=1,warps=12,"
                      "warps_per_sm=12")};
  chains[2].pdl = chains[3].pdl = true;
  return chains;
}

}  // namespace muse::aot
