// SPDX-License-Identifier: Apache-2.0
// attention/register_direct: a CTA takes a split of a request for heads_per_cta kv heads; its warps
// share out the split's units of keys and are merged through shared memory at the end.
#pragma once

#include "variants/device/attention_args.h"
#include "variants/device/direct_attention.cuh"

namespace muse::attention_register_direct {

struct Args {
  device::AttentionArgs attention;
};

/// Rows of two tokens beside two units of 8 KB are more than registers hold: refused.
MUSE_HOST_DEVICE constexpr bool holds_2_tokens(int tokens, int depth, int heads_per_cta) {
  return tokens * depth * heads_per_cta <= 64;
}

/// Warps of an SM whose registers hold their groups of rows and the keys, of one head, of units on
/// their way.
MUSE_HOST_DEVICE constexpr int warps_per_sm(int groups, int keys) {
  return groups > 2 || keys > 64 ? 8 : keys > 32 ? 12 : 16;
}

#if defined(MUSE_DEVICE_CODE)

template <class C>
MUSE_HOST_DEVICE constexpr int ctas_per_sm(int queries) {
  const int warps =
      warps_per_sm(C::heads_per_cta * queries, C::heads_per_cta * C::tokens * C::depth);
  return warps < C::warps ? 1 : warps / C::warps;
}

// One kernel for each number of query tokens of a request.
template <class C>
__global__ void __launch_bounds__(C::warps * 32, ctas_per_sm<C>(1))
    attend_1_token(const __grid_constant__ Args block) {
  device::attend_split<C, device::DirectShape<C, 1>>(block.attention);
}

template <class C>
__global__ void __launch_bounds__(C::warps * 32, ctas_per_sm<C>(2))
    attend_2_tokens(const __grid_constant__ Args block) {
  if constexpr (C::warps <= device::kMostWarpsOf2Tokens &&
                holds_2_tokens(C::tokens, C::depth, C::heads_per_cta)) {
    device::attend_split<C, device::DirectShape<C, 2>>(block.attention);
  }
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::attention_register_direct
