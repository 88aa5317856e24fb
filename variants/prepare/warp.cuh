// SPDX-License-Identifier: Apache-2.0
// prepare/warp: `warps` warps take a token, four of its rows at a time. Positions, cosines and
// sines are loaded once per lane, and all rows are on their way before the first one is used.
#pragma once

#include "variants/device/prepare_args.h"
#include "variants/device/token_rows.cuh"

namespace muse::prepare_warp {

struct Args {
  device::PrepareArgs prepare;
};

#if defined(MUSE_DEVICE_CODE)

template <class C>
__global__ void __launch_bounds__(32 * C::warps * C::tokens)
    prepare(const __grid_constant__ Args block) {
  const device::PrepareArgs& args = block.prepare;
  device::wait_for_predecessor();
  if constexpr (C::early != 0) device::allow_successor();
  const device::TokenPlace at = device::token_place<C::warps, C::tokens>();
  if (at.token >= args.tokens) return;                      // whole warps
  constexpr int kInFlight = (5 + C::warps - 1) / C::warps;  // 5 groups: 16 q, 2 k and 2 v heads
  const int lane = static_cast<int>(threadIdx.x) % device::kRowLanes;
  device::prepare_token<C::warps, kInFlight>(args, at.token, at.share, [&] {
    return device::load_rotation(args.cos_sin + __ldg(args.positions + at.token) * device::kHeadDim,
                                 lane);
  });
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::prepare_warp
