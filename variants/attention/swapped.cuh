// SPDX-License-Identifier: Apache-2.0
// attention/swapped: attention/register_direct for one kv head to a CTA, with the operands of its
// products swapped.
#pragma once

#include "variants/device/attention_args.h"
#include "variants/device/direct_attention.cuh"
#include "variants/device/swapped_products.cuh"

namespace muse::attention_swapped {

struct Args {
  device::AttentionArgs attention;
};

#if defined(MUSE_DEVICE_CODE)

/// What the configuration leaves open for the shared code.
template <class C>
struct Choices : C {
  static constexpr int heads_per_cta = 1, depth = 1, fill = 0;
};

/// CTAs on an SM: warps whose registers hold their rows and a unit on its way.
template <class C>
MUSE_HOST_DEVICE constexpr int ctas_per_sm(int queries) {
  const int warps = queries == 1 ? 16 : 8;
  return warps < C::warps ? 1 : warps / C::warps;
}

// One kernel for each number of query tokens of a request.
template <class C>
__global__ void __launch_bounds__(C::warps * 32, ctas_per_sm<C>(1))
    attend_1_token(const __grid_constant__ Args block) {
  device::attend_split<Choices<C>, device::SwappedShape<Choices<C>, 1>>(block.attention);
}

template <class C>
__global__ void __launch_bounds__(C::warps * 32, ctas_per_sm<C>(2))
    attend_2_tokens(const __grid_constant__ Args block) {
  if constexpr (C::warps <= device::kMostWarpsOf2Tokens) {
    device::attend_split<Choices<C>, device::SwappedShape<Choices<C>, 2>>(block.attention);
  }
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::attention_swapped
