// SPDX-License-Identifier: Apache-2.0
// Kernels that deal and do nothing else.
#pragma once

#include <cstdint>

#include "tests/simt/machine.h"

namespace muse::simt_test {

inline constexpr int kUnitKeys = 16;

/// What a CTA was dealt; none where count is 0.
struct DealtKeys {
  int32_t request, index, count, total;
  int32_t begin, end;  // keys
};

struct DealingArgs {
  const int32_t* keys;  // [requests], of each; the first is number `request` of its sequence
  int32_t requests;
  DealtKeys* out;  // [CTAs]
};

/// A kernel that deals splits to CTAs of `warps` warps, no more than `capacity` to a request: 4 and
/// 128, 8 and 256, or 12 and 64.
simt::Kernel deal_splits_kernel(int warps);
inline constexpr int capacity_of(int warps) { return warps == 4 ? 128 : warps == 8 ? 256 : 64; }

}  // namespace muse::simt_test
