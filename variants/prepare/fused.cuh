// SPDX-License-Identifier: Apache-2.0
// prepare/fused: the whole stage in one kernel. Eight lanes take one row of 64: a q, k or v head of
// one token; what differs between them is decided by row, so lanes of a row never part.
#pragma once

#include "variants/device/prepare_args.h"
#include "variants/device/rows.cuh"

namespace muse::prepare_fused {

struct Args {
  device::PrepareArgs prepare;
};

#if defined(MUSE_DEVICE_CODE)

template <class C>
__global__ void __launch_bounds__(C::threads) prepare(const __grid_constant__ Args block) {
  const device::PrepareArgs& args = block.prepare;
  const int q_heads = args.num_q_heads;
  const int kv_heads = args.num_kv_heads;
  const int heads = q_heads + 2 * kv_heads;  // q, k and v as they lie in a token's qkv row
  const device::RowPlace row = device::row_place<C::threads>(args.tokens, heads);
  const int first = row.lane * device::kSlice;
  const bool is_query = row.head < q_heads;
  const bool is_value = row.head >= q_heads + kv_heads;

  device::wait_for_predecessor();
  device::allow_successor();
  device::Slice x =
      device::load_bf16(args.qkv + device::row_start(row.token, heads + q_heads, row.head) + first);
  const float r = device::reciprocal_rms(x);  // v rows too: shuffles need the whole warp
  if (!is_value) {
    x = device::scaled(x, r);
    if (args.cos_sin != nullptr) {
      x = device::rotated(x, args.cos_sin + args.positions[row.token] * device::kHeadDim, row.lane);
    }
  }
  if (!row.exists) return;
  if (is_query) {
    device::store_e4m3(args.q8 + device::row_start(row.token, q_heads, row.head) + first, x);
    return;
  }
  if (args.scaled) x = device::divided(x, is_value ? *args.v_scale : *args.k_scale);
  uint8_t* cache = is_value ? args.v_cache : args.k_cache;
  const int kv_head = (row.head - q_heads) % kv_heads;
  device::store_e4m3(
      cache + device::row_start(args.cache_loc[row.token], kv_heads, kv_head) + first, x);
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::prepare_fused
