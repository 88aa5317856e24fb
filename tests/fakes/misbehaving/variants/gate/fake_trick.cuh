// SPDX-License-Identifier: Apache-2.0
// gate/fake_trick: the gate under twelve names, and with ways to look faster or slower than it is.
#pragma once

#include "variants/device/rows.cuh"

namespace muse::gate_fake_trick {

/// The tunable `trick`.
enum Trick : int {
  kHonest = 0,
  kKeepsOutput = 1,  // computes what is not there yet
  kSlowStart = 2,    // its first launch with a workspace takes longer
};
inline constexpr int kTricks = 3;
inline constexpr int kNames = 12;  // the tunable `name`, which changes nothing
inline constexpr int kThreads = 128;
inline constexpr uint64_t kSlowNs = 1000000;

struct Args {
  const uint16_t* qkv;  // bf16 [T, (2*Hq+2*Hkv)*D]
  const uint16_t* o;    // bf16 [T, Hq, D]
  uint16_t* out;        // bf16 [T, Hq*D]
  int32_t* launches;    // [1] with this half of the workspace so far; kSlowStart only
  int32_t tokens, num_q_heads, num_kv_heads;
};

#if defined(MUSE_DEVICE_CODE)

__device__ __forceinline__ uint64_t global_time_ns() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

template <class C>
__global__ void __launch_bounds__(kThreads) gate(const __grid_constant__ Args args) {
  const int heads = args.num_q_heads;
  const device::RowPlace row = device::row_place<kThreads>(args.tokens, heads);
  const int64_t at = device::row_start(row.token, heads, row.head) + row.lane * device::kSlice;
  if constexpr (C::trick == kSlowStart) {
    if (blockIdx.x == 0 && threadIdx.x == 0 && atomicAdd(args.launches, 1) == 0) {
      for (const uint64_t start = global_time_ns(); global_time_ns() - start < kSlowNs;) {
      }
    }
  }
  if constexpr (C::trick == kKeepsOutput) {
    if ((args.out[at] & 0x7FFF) <= 0x7F80) return;  // a number: no NaN of poison
  }
  const device::Slice gate =
      device::load_gate(args.qkv, heads, args.num_kv_heads, row.token, row.head, row.lane);
  const device::Slice out = device::gated(device::load_bf16(args.o + at), gate);
  if (row.exists) device::store_bf16(args.out + at, out);
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::gate_fake_trick
