// SPDX-License-Identifier: Apache-2.0
// prepare/separate: the stage as three kernels in a row, the simplest of all: norm and RoPE of the
// q and k heads into a workspace, k and v into the cache, q into Q8. Eight lanes take one row
// of 64.
#pragma once

#include "variants/device/prepare_args.h"
#include "variants/device/rows.cuh"

namespace muse::prepare_separate {

inline constexpr int kThreads = 128;

struct Args {
  device::PrepareArgs prepare;
  uint16_t* z;  // bf16 [T, Hq+Hkv, D] workspace: q and k heads after norm and RoPE
};

#if defined(MUSE_DEVICE_CODE)

using device::row_place;
using device::row_start;
using device::RowPlace;
using device::Slice;

template <class C>
__global__ void __launch_bounds__(kThreads) norm_rope(const __grid_constant__ Args block) {
  const device::PrepareArgs& args = block.prepare;
  const int heads = args.num_q_heads + args.num_kv_heads;
  const RowPlace row = row_place<kThreads>(args.tokens, heads);
  device::wait_for_predecessor();
  device::allow_successor();
  const int64_t from = row_start(row.token, 2 * heads, row.head);
  Slice x = device::load_bf16(args.qkv + from + row.lane * device::kSlice);
  x = device::scaled(x, device::reciprocal_rms(x));
  if (args.cos_sin != nullptr) {
    const float* cos_sin = args.cos_sin + args.positions[row.token] * device::kHeadDim;
    x = device::rotated(x, cos_sin, row.lane);
  }
  if (!row.exists) return;
  device::store_bf16(block.z + row_start(row.token, heads, row.head) + row.lane * device::kSlice,
                     x);
}

template <class C>
__global__ void __launch_bounds__(kThreads) store(const __grid_constant__ Args block) {
  const device::PrepareArgs& args = block.prepare;
  const int q_heads = args.num_q_heads;
  const int kv_heads = args.num_kv_heads;
  const RowPlace row = row_place<kThreads>(args.tokens, 2 * kv_heads);  // k heads, then v heads
  device::wait_for_predecessor();
  device::allow_successor();
  if (!row.exists) return;
  const int heads = q_heads + kv_heads;
  const bool is_value = row.head >= kv_heads;
  const uint16_t* from = is_value ? args.qkv + row_start(row.token, 2 * heads, q_heads + row.head)
                                  : block.z + row_start(row.token, heads, q_heads + row.head);
  Slice x = device::load_bf16(from + row.lane * device::kSlice);
  if (args.scaled) x = device::divided(x, is_value ? *args.v_scale : *args.k_scale);
  uint8_t* cache = is_value ? args.v_cache : args.k_cache;
  const int64_t to = row_start(args.cache_loc[row.token], kv_heads, row.head % kv_heads);
  device::store_e4m3(cache + to + row.lane * device::kSlice, x);
}

template <class C>
__global__ void __launch_bounds__(kThreads) quantise(const __grid_constant__ Args block) {
  const device::PrepareArgs& args = block.prepare;
  const int q_heads = args.num_q_heads;
  const RowPlace row = row_place<kThreads>(args.tokens, q_heads);
  device::wait_for_predecessor();
  device::allow_successor();
  if (!row.exists) return;
  const int64_t from = row_start(row.token, q_heads + args.num_kv_heads, row.head);
  const int64_t to = row_start(row.token, q_heads, row.head);
  device::store_e4m3(args.q8 + to + row.lane * device::kSlice,
                     device::load_bf16(block.z + from + row.lane * device::kSlice));
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::prepare_separate
