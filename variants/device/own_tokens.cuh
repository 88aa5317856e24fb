// SPDX-License-Identifier: Apache-2.0
// The step's own tokens straight from qkv, by a warp: copied to shared memory, then K8 and V8 in
// registers, laid out as the operands of direct_rows.cuh are. The arithmetic is that of rows.cuh in
// the same order, so that the bytes are those that a prepare of its own stores.
//
// With g = lane / 4 and t = lane % 4 a lane holds dims 16t..16t+15 of K of kv head g % kHeads, and
// dims 8g..8g+7 of V of each kv head: whichever place of its unit a key has, the lanes that hold it
// there have it.
#pragma once

#include "variants/device/prepare_args.h"
#include "variants/device/rows.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

__device__ __forceinline__ int64_t load_position(const PrepareArgs& args, int token) {
  const Words2 words = load_constant_words2(args.positions + token);
  return static_cast<int64_t>(words.word[0] | static_cast<uint64_t>(words.word[1]) << 32);
}

/// Head `head` of a token in qkv, q, k, v and gate heads counted through.
__device__ __forceinline__ const uint16_t* qkv_row(const PrepareArgs& args, int token, int head) {
  return args.qkv + row_start(token, 2 * (args.num_q_heads + args.num_kv_heads), head);
}

struct LaneSlices {
  Slice half[2];
};

/// Norm and RoPE of dims 16t..16t+15 of a row for each quad. Every lane of the warp calls it.
__device__ __forceinline__ LaneSlices normed_and_rotated(const PrepareArgs& args,
                                                         const uint16_t* row,
                                                         const float* cos_sin) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  LaneSlices x{{load_bf16(row + t * 2 * kSlice), load_bf16(row + t * 2 * kSlice + kSlice)}};
  float sum[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < kSlice; ++i) sum[h] += x.half[h].x[i] * x.half[h].x[i];
  }
  float squares = sum[0] + sum[1];
  squares += __shfl_xor_sync(kWholeWarp, squares, 1);
  squares += __shfl_xor_sync(kWholeWarp, squares, 2);
  const float r = rsqrtf(squares * (1.0F / kHeadDim) + 1e-5F);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    x.half[h] = scaled(x.half[h], r);
    if (args.cos_sin != nullptr) {
      x.half[h] = rotated(x.half[h], load_rotation(cos_sin, 2 * t + h));
    }
  }
  return x;
}

__device__ __forceinline__ Words4 quantised(const LaneSlices& x) {
  const Words2 low = quantised(x.half[0]), high = quantised(x.half[1]);
  return {{low.word[0], low.word[1], high.word[0], high.word[1]}};
}

/// K8 of the lane's sixteen dims of one row.
__device__ __forceinline__ Words4 key_codes(const PrepareArgs& args, const uint16_t* row,
                                            const float* cos_sin, float k_scale) {
  LaneSlices x = normed_and_rotated(args, row, cos_sin);
  if (args.scaled) {
#pragma unroll
    for (int h = 0; h < 2; ++h) x.half[h] = divided(x.half[h], k_scale);
  }
  return quantised(x);
}

/// V8 of eight dims.
__device__ __forceinline__ Words2 value_codes(const PrepareArgs& args, const Words4& loaded,
                                              float v_scale) {
  const Slice x = unpack_bf16(loaded);
  return quantised(args.scaled ? divided(x, v_scale) : x);
}

/// What a new token is made of, in shared memory, so that no registers wait for it: K and then V of
/// the CTA's kv heads, bf16; the row of cos_sin of its position; its flat cache row.
template <int kHeads>
struct alignas(16) OwnStage {
  uint16_t row[2 * kHeads][kHeadDim];
  float cos_sin[kHeadDim];
  int64_t slot;
  float k_scale, v_scale;
};
/// Its codes.
template <int kHeads>
struct OwnCodes {
  Words4 key;
  Words2 value[kHeads];
};

/// Starts to copy it there. The whole warp calls it; nothing is read of cos_sin without RoPE.
template <int kHeads>
__device__ __forceinline__ void copy_own(const PrepareArgs& args, int token, int64_t position,
                                         int first_head, OwnStage<kHeads>& stage) {
  constexpr int kPieces = kHeadDim / kSlice;  // of 16 bytes, in a row
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < 2 * kHeads * kPieces) {
    const int row = lane / kPieces, dim = lane % kPieces * kSlice;
    const int first = args.num_q_heads + (row < kHeads ? 0 : args.num_kv_heads) + first_head;
    copy_async_16(stage.row[row] + dim, qkv_row(args, token, first + row % kHeads) + dim, true);
  }
  constexpr int kFloats = 4;
  if (args.cos_sin != nullptr && lane < kHeadDim / kFloats) {
    copy_async_16(stage.cos_sin + lane * kFloats,
                  args.cos_sin + position * kHeadDim + lane * kFloats, true);
  }
  if (lane < 2) {
    copy_async_4(reinterpret_cast<int32_t*>(&stage.slot) + lane,
                 reinterpret_cast<const int32_t*>(args.cache_loc + token) + lane);
  }
  if (lane == 2) copy_async_4(&stage.k_scale, args.k_scale);
  if (lane == 3) copy_async_4(&stage.v_scale, args.v_scale);
}

/// Once the copies are there: quantises the token and stores it to the cache, each byte once. Every
/// lane of the warp calls it.
template <int kHeads>
__device__ __forceinline__ OwnCodes<kHeads> store_own(const PrepareArgs& args,
                                                      const OwnStage<kHeads>& stage,
                                                      int first_head) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const int64_t row = row_start(stage.slot, args.num_kv_heads, first_head);
  OwnCodes<kHeads> codes;
  codes.key = key_codes(args, stage.row[g % kHeads], stage.cos_sin, stage.k_scale);
  if (g < kHeads) store_words4(args.k_cache + row + g * kHeadDim + t * 16, codes.key);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    codes.value[h] =
        value_codes(args, load_words4(stage.row[kHeads + h] + g * kSlice), stage.v_scale);
    if (t == 0) store_words2(args.v_cache + row + h * kHeadDim + g * 8, codes.value[h]);
  }
  return codes;
}

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
