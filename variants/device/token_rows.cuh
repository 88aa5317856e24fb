// SPDX-License-Identifier: Apache-2.0
// A token's q, k and v heads as one or several warps prepare them: four rows at a time, eight lanes
// to a row. A lane holds the same dims of every row, so that it needs one set of cosines and sines.
#pragma once

#include "variants/device/prepare_args.h"
#include "variants/device/rows.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

inline constexpr int kWarpRows = 32 / kRowLanes;

/// Norm, RoPE (where `rotation` is not null), quantise and store of one row, of which this lane
/// holds `x`; `slot`: the token's flat cache row. Every lane of the warp calls it; a lane whose row
/// does not exist stores nothing.
__device__ __forceinline__ void prepare_row(const PrepareArgs& args, int token, int head,
                                            bool exists, int64_t slot, Slice x,
                                            const Rotation* rotation) {
  const int q_heads = args.num_q_heads, kv_heads = args.num_kv_heads;
  const int first = static_cast<int>(threadIdx.x) % kRowLanes * kSlice;
  const bool is_query = head < q_heads;
  const bool is_value = head >= q_heads + kv_heads;
  const float r = reciprocal_rms(x);  // v rows too: shuffles need the whole warp
  if (!is_value) {
    x = scaled(x, r);
    if (rotation != nullptr) x = rotated(x, *rotation);
  }
  if (!exists) return;
  if (is_query) {
    store_e4m3(args.q8 + row_start(token, q_heads, head) + first, x);
    return;
  }
  if (args.scaled) x = divided(x, __ldg(is_value ? args.v_scale : args.k_scale));
  uint8_t* cache = is_value ? args.v_cache : args.k_cache;
  store_e4m3(cache + row_start(slot, kv_heads, (head - q_heads) % kv_heads) + first, x);
}

/// A warp's share of a token's rows: groups of four, the first one `share`, then each `shares`
/// further on. kInFlight of them are loaded before the first one is used.
/// `rotation`: a function that gives this lane's cosines and sines, called where there is RoPE.
template <int kShares, int kInFlight, class GetRotation>
__device__ __forceinline__ void prepare_token(const PrepareArgs& args, int token, int share,
                                              GetRotation get_rotation) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = args.num_q_heads + 2 * args.num_kv_heads;
  const uint16_t* qkv =
      args.qkv + row_start(token, heads + args.num_q_heads, 0) + lane % kRowLanes * kSlice;
  const int64_t slot = __ldg(args.cache_loc + token);
  Rotation rotation{};
  for (int group = share; group * kWarpRows < heads; group += kShares * kInFlight) {
    Words4 loaded[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int head = (group + i * kShares) * kWarpRows + lane / kRowLanes;
      loaded[i] = load_words4(qkv + (head < heads ? head : 0) * kHeadDim);
    }
    if (group == share && args.cos_sin != nullptr) rotation = get_rotation();
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if ((group + i * kShares) * kWarpRows >= heads) break;
      const int head = (group + i * kShares) * kWarpRows + lane / kRowLanes;
      prepare_row(args, token, head < heads ? head : 0, head < heads, slot, unpack_bf16(loaded[i]),
                  args.cos_sin != nullptr ? &rotation : nullptr);
    }
  }
}

/// Which token a warp works on, kWarps of them to a token, and which of its shares it takes.
struct TokenPlace {
  int token, share;
};
template <int kWarps, int kTokens>
__device__ __forceinline__ TokenPlace token_place() {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  return {static_cast<int>(blockIdx.x) * kTokens + warp / kWarps, warp % kWarps};
}

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
