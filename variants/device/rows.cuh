// SPDX-License-Identifier: Apache-2.0
// Rows of heads, 64 elements, as eight lanes hold them: loads, stores and the arithmetic of prepare
// and gate.
#pragma once

#include "variants/device/ptx.cuh"

namespace muse::device {

inline constexpr int kHeadDim = 64;
inline constexpr int kSlice = 8;  // consecutive elements of one lane: 16 bytes of bf16
inline constexpr int kRowLanes = kHeadDim / kSlice;

#if defined(MUSE_DEVICE_CODE)

inline constexpr uint32_t kWholeWarp = 0xFFFFFFFFU;
inline constexpr float kLog2E = 1.44269504F;

/// The row a thread works on, of tokens * heads rows in memory order, and its place in it.
struct RowPlace {
  int token, head;
  int lane;     // of the row's lanes
  bool exists;  // where not, token and head are 0, so that loads are harmless and shuffles whole
};
template <int kThreads, int kLanes = kRowLanes>
__device__ __forceinline__ RowPlace row_place(int tokens, int heads) {
  static_assert(kThreads % 32 == 0 && 32 % kLanes == 0, "a row lies within one warp");
  const int row = blockIdx.x * (kThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  if (row >= tokens * heads) return {0, 0, lane, false};
  return {row / heads, row % heads, lane, true};
}

/// The first element of a token's head in an array of rows, `heads` to a token.
__device__ __forceinline__ int64_t row_start(int64_t token, int heads, int head) {
  return (token * heads + head) * kHeadDim;
}

/// One lane's share of a row. Lane l of eight holds elements 8*l to 8*l + 7.
struct Slice {
  float x[kSlice];
};

__device__ __forceinline__ Slice unpack_bf16(const Words4& words) {
  Slice slice;
#pragma unroll
  for (int i = 0; i < kSlice / 2; ++i) {
    const F32x2 pair = bf16x2_to_f32x2(words.word[i]);
    slice.x[2 * i] = pair.low;
    slice.x[2 * i + 1] = pair.high;
  }
  return slice;
}

__device__ __forceinline__ Words4 pack_bf16(const Slice& slice) {
  Words4 words;
#pragma unroll
  for (int i = 0; i < kSlice / 2; ++i) {
    words.word[i] = f32x2_to_bf16x2(slice.x[2 * i], slice.x[2 * i + 1]);
  }
  return words;
}

/// RN_bf16 of each element, widened again.
__device__ __forceinline__ Slice round_bf16(const Slice& slice) {
  return unpack_bf16(pack_bf16(slice));
}

__device__ __forceinline__ Slice load_bf16(const uint16_t* slice) {
  return unpack_bf16(load_words4(slice));
}

__device__ __forceinline__ Slice load_f32(const float* slice) {
  const Words4 low = load_words4(slice);
  const Words4 high = load_words4(slice + kSlice / 2);
  Slice result;
#pragma unroll
  for (int i = 0; i < kSlice / 2; ++i) {
    result.x[i] = f32_from_bits(low.word[i]);
    result.x[kSlice / 2 + i] = f32_from_bits(high.word[i]);
  }
  return result;
}

__device__ __forceinline__ void store_bf16(uint16_t* out, const Slice& slice) {
  store_words4(out, pack_bf16(slice));
}

/// E4 of each element.
__device__ __forceinline__ Words2 quantised(const Slice& slice) {
  Words2 words;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float* x = slice.x + 4 * i;
    const uint32_t high = f32x2_to_e4m3x2(x[2], x[3]);
    words.word[i] = f32x2_to_e4m3x2(x[0], x[1]) | high << 16;
  }
  return words;
}
__device__ __forceinline__ void store_e4m3(uint8_t* out, const Slice& slice) {
  store_words2(out, quantised(slice));
}

/// Over the eight lanes of a row; every lane of the warp calls it, every lane gets the sum.
__device__ __forceinline__ float row_sum(float value) {
#pragma unroll
  for (int distance = 1; distance < kRowLanes; distance *= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, distance);
  }
  return value;
}

/// 1 / sqrt(mean(x^2) + 1e-5) of the row; every lane of the warp calls it.
__device__ __forceinline__ float reciprocal_rms(const Slice& slice) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kSlice; ++i) squares += slice.x[i] * slice.x[i];
  return rsqrtf(row_sum(squares) * (1.0F / kHeadDim) + 1e-5F);
}

/// RN_bf16(x * factor).
__device__ __forceinline__ Slice scaled(const Slice& slice, float factor) {
  Slice result;
#pragma unroll
  for (int i = 0; i < kSlice; ++i) result.x[i] = slice.x[i] * factor;
  return round_bf16(result);
}

/// RN_bf16(x / divisor). A true division: the product with the reciprocal rounds elsewhere.
__device__ __forceinline__ Slice divided(const Slice& slice, float divisor) {
  Slice result;
#pragma unroll
  for (int i = 0; i < kSlice; ++i) result.x[i] = slice.x[i] / divisor;
  return round_bf16(result);
}

/// Cosines and sines of the pairs that a lane's slice holds.
struct Rotation {
  float cosine[kSlice / 2], sine[kSlice / 2];
};

__device__ __forceinline__ Rotation as_rotation(const Words4& cosines, const Words4& sines) {
  Rotation rotation;
#pragma unroll
  for (int i = 0; i < kSlice / 2; ++i) {
    rotation.cosine[i] = f32_from_bits(cosines.word[i]);
    rotation.sine[i] = f32_from_bits(sines.word[i]);
  }
  return rotation;
}

/// cos_sin: the position's row, f32 [D], cosines of the pairs in the first half, sines in the
/// second.
__device__ __forceinline__ Rotation load_rotation(const float* cos_sin, int lane) {
  const float* cosines = cos_sin + lane * (kSlice / 2);
  return as_rotation(load_words4(cosines), load_words4(cosines + kHeadDim / 2));
}

/// RoPE on interleaved pairs (2j, 2j+1), rounded to bf16.
__device__ __forceinline__ Slice rotated(const Slice& y, const Rotation& rotation) {
  Slice z;
#pragma unroll
  for (int i = 0; i < kSlice / 2; ++i) {
    const float c = rotation.cosine[i];
    const float s = rotation.sine[i];
    const float even = y.x[2 * i];
    const float odd = y.x[2 * i + 1];
    z.x[2 * i] = even * c - odd * s;
    z.x[2 * i + 1] = odd * c + even * s;
  }
  return round_bf16(z);
}
__device__ __forceinline__ Slice rotated(const Slice& y, const float* cos_sin, int lane) {
  return rotated(y, load_rotation(cos_sin, lane));
}

/// The gate's slice of a token's head in qkv: bf16 [T, (2*Hq+2*Hkv)*D], gates behind q, k and v.
__device__ __forceinline__ Slice load_gate(const uint16_t* qkv, int q_heads, int kv_heads,
                                           int token, int head, int slice) {
  const int before = q_heads + 2 * kv_heads;
  return load_bf16(qkv + row_start(token, before + q_heads, before + head) + slice * kSlice);
}

/// 1 / (1 + exp(-g)) by exp(-|g|), which cannot overflow: far below 0 it keeps its digits. To a few
/// ulp, without the code that an exact division brings.
__device__ __forceinline__ float sigmoid(float g) {
  const float e = exp2f((g < 0 ? g : -g) * kLog2E);  // subnormals count
  return (g < 0 ? e : 1.0F) * reciprocal_approx(1.0F + e);
}

/// The row of O over its rms, times the sigmoid of its gate; every lane of the warp calls it.
__device__ __forceinline__ Slice gated(const Slice& o, const Slice& gate) {
  const float r = reciprocal_rms(o);
  Slice result;
#pragma unroll
  for (int i = 0; i < kSlice; ++i) result.x[i] = o.x[i] * r * sigmoid(gate.x[i]);
  return result;
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::device
