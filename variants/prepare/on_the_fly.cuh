// SPDX-License-Identifier: Apache-2.0
// prepare/on_the_fly: prepare/warp without the table of cosines and sines. Each lane computes those
// of one pair; nothing is loaded that depends on a position.
#pragma once

#include "variants/device/angles.cuh"
#include "variants/device/prepare_args.h"
#include "variants/device/token_rows.cuh"

namespace muse::prepare_on_the_fly {

struct Args {
  device::PrepareArgs prepare;
  float inv_freq[device::kHeadDim / 2];  // of each pair, as the table has it
};

#if defined(MUSE_DEVICE_CODE)

/// This lane's four pairs. Every lane of the warp calls it.
__device__ __forceinline__ device::Rotation compute_rotation(const Args& args, int64_t position) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // The angle is rounded to f32 as the table's is: a more accurate one is another function.
  const auto own = device::cos_sin_of(static_cast<float>(position) * args.inv_freq[lane]);
  device::Rotation rotation;
#pragma unroll
  for (int i = 0; i < device::kSlice / 2; ++i) {
    const int pair = lane % device::kRowLanes * (device::kSlice / 2) + i;
    rotation.cosine[i] = __shfl_sync(device::kWholeWarp, own.cosine, pair);
    rotation.sine[i] = __shfl_sync(device::kWholeWarp, own.sine, pair);
  }
  return rotation;
}

template <class C>
__global__ void __launch_bounds__(32 * C::warps * C::tokens)
    prepare(const __grid_constant__ Args block) {
  const device::PrepareArgs& args = block.prepare;
  device::wait_for_predecessor();
  if constexpr (C::early != 0) device::allow_successor();
  const device::TokenPlace at = device::token_place<C::warps, C::tokens>();
  if (at.token >= args.tokens) return;                      // whole warps
  constexpr int kInFlight = (5 + C::warps - 1) / C::warps;  // 5 groups: 16 q, 2 k and 2 v heads
  device::prepare_token<C::warps, kInFlight>(args, at.token, at.share, [&] {
    return compute_rotation(block, __ldg(args.positions + at.token));
  });
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::prepare_on_the_fly
