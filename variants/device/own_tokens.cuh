// SPDX-License-Identifier: Apache-2.0
// The step's own tokens straight from qkv, by a warp and in registers: K8 and V8 of new keys, laid
// out as the operands of direct_rows.cuh are. The arithmetic is that of
// rows.cuh in the same order, so that the bytes are those that a prepare of its own stores.
//
// With g = lane / 4 and t = lane % 4 a lane holds dims 16t..16t+15 of K of kv head g % kHeads, and
// dims 8g..8g+7 of V of each kv head: whichever place of its unit a key has, the lanes that hold it
// there have it.
#pragma once

#include "variants/device/prepare_args.h"
#include "variants/device/rows.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

/// Sixteen dims of a row, bf16 as loaded: 16t..16t+15.
struct LaneRow {
  Words4 half[2];
};
/// Cosines and sines of the same dims.
struct LaneRotation {
  Rotation half[2];
};

// Loads stay where they are written: what comes first in a chain of loads is to be under way first.
__device__ __forceinline__ Words4 load_step_input(const void* address) {
  return load_constant_words4<LoadHint::kDefault>(address);
}

__device__ __forceinline__ LaneRow load_lane_row(const uint16_t* row) {
  const uint16_t* dims = row + static_cast<int>(threadIdx.x) % 4 * (2 * kSlice);
  return {{load_step_input(dims), load_step_input(dims + kSlice)}};
}

__device__ __forceinline__ int64_t load_position(const PrepareArgs& args, int token) {
  const Words2 words = load_constant_words2(args.positions + token);
  return static_cast<int64_t>(words.word[0] | static_cast<uint64_t>(words.word[1]) << 32);
}

/// Of a token's position; nothing is read without RoPE.
__device__ __forceinline__ LaneRotation load_lane_rotation(const PrepareArgs& args,
                                                           int64_t position) {
  LaneRotation rotation{};
  if (args.cos_sin != nullptr) {
    const float* cosines =
        args.cos_sin + position * kHeadDim + static_cast<int>(threadIdx.x) % 4 * kSlice;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Words4 c = load_step_input(cosines + h * (kSlice / 2));
      const Words4 s = load_step_input(cosines + kHeadDim / 2 + h * (kSlice / 2));
#pragma unroll
      for (int i = 0; i < kSlice / 2; ++i) {
        rotation.half[h].cosine[i] = f32_from_bits(c.word[i]);
        rotation.half[h].sine[i] = f32_from_bits(s.word[i]);
      }
    }
  }
  return rotation;
}

/// Head `head` of a token in qkv, q, k, v and gate heads counted through.
__device__ __forceinline__ const uint16_t* qkv_row(const PrepareArgs& args, int token, int head) {
  return args.qkv + row_start(token, 2 * (args.num_q_heads + args.num_kv_heads), head);
}

struct LaneSlices {
  Slice half[2];
};

/// Norm and RoPE of the rows that the warp's quads hold. Every lane of the warp calls it.
__device__ __forceinline__ LaneSlices normed_and_rotated(const PrepareArgs& args,
                                                         const LaneRow& row,
                                                         const LaneRotation& rotation) {
  LaneSlices x{{unpack_bf16(row.half[0]), unpack_bf16(row.half[1])}};
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
    if (args.cos_sin != nullptr) x.half[h] = rotated(x.half[h], rotation.half[h]);
  }
  return x;
}

__device__ __forceinline__ Words4 quantised(const LaneSlices& x) {
  const Words2 low = quantised(x.half[0]), high = quantised(x.half[1]);
  return {{low.word[0], low.word[1], high.word[0], high.word[1]}};
}

/// K8 of the lane's sixteen dims of one row.
__device__ __forceinline__ Words4 key_codes(const PrepareArgs& args, const LaneRow& row,
                                            const LaneRotation& rotation, float k_scale) {
  LaneSlices x = normed_and_rotated(args, row, rotation);
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

/// A new token as loaded: K of kv head g % kHeads, V of all, counted from the CTA's first one.
template <int kHeads>
struct OwnInputs {
  LaneRow key;
  Words4 value[kHeads];
  int64_t slot;  // flat cache row
};
/// Its codes.
template <int kHeads>
struct OwnCodes {
  Words4 key;
  Words2 value[kHeads];
};

template <int kHeads>
__device__ __forceinline__ OwnInputs<kHeads> load_own(const PrepareArgs& args, int token,
                                                      int first_head) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int key_head = args.num_q_heads + first_head;
  const int value_head = key_head + args.num_kv_heads;
  OwnInputs<kHeads> own;
  own.key = load_lane_row(qkv_row(args, token, key_head + lane / 4 % kHeads));
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    own.value[h] = load_step_input(qkv_row(args, token, value_head + h) + lane / 4 * kSlice);
  }
  own.slot = __ldg(args.cache_loc + token);
  return own;
}

/// Quantises it and stores it to the cache, each byte once. Every lane of the warp calls it.
template <int kHeads>
__device__ __forceinline__ OwnCodes<kHeads> store_own(const PrepareArgs& args,
                                                      const OwnInputs<kHeads>& own, int first_head,
                                                      const LaneRotation& rotation, float k_scale,
                                                      float v_scale) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const int64_t row = row_start(own.slot, args.num_kv_heads, first_head);
  OwnCodes<kHeads> codes;
  codes.key = key_codes(args, own.key, rotation, k_scale);
  if (g < kHeads) store_words4(args.k_cache + row + g * kHeadDim + t * 16, codes.key);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    codes.value[h] = value_codes(args, own.value[h], v_scale);
    if (t == 0) store_words2(args.v_cache + row + h * kHeadDim + g * 8, codes.value[h]);
  }
  return codes;
}

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
