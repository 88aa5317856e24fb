// SPDX-License-Identifier: Apache-2.0
// The gather on the emulator, for a test without a GPU.
#pragma once

#include <vector>

#include "tests/bench/gather.h"

namespace muse::bench {

/// What launch_summed_gather would add; everything lies on the host. Throws simt::Error.
uint32_t emulated_sum(const GatherGeometry& geometry, const GatherCaches& caches,
                      const std::vector<GatherPiece>& pieces);

}  // namespace muse::bench
