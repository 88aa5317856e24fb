// SPDX-License-Identifier: Apache-2.0
// The sum of a row's partials by their weights.
#pragma once

#include "variants/device/rows.cuh"

namespace muse::device {

struct CombineInputs {
  const void* partial_o;     // f32 or bf16 [S, T, Hq, D] normalised
  const float* partial_lse;  // [S, T, Hq] base 2
  const int32_t* n_splits;   // [B]; later splits are not read
  int32_t tokens, q_len, num_q_heads;
  bool bf16_partials;
};

#if defined(MUSE_DEVICE_CODE)

/// Over lanes whose numbers differ by `kFrom`, 2 * kFrom, ... below kLanes.
template <int kFrom, int kLanes>
__device__ __forceinline__ float sum_across(float value) {
#pragma unroll
  for (int distance = kFrom; distance < kLanes; distance *= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, distance);
  }
  return value;
}

/// The largest log-sum-exp of a row's splits, -infinity where all are empty.
template <int kLanes>
__device__ __forceinline__ float largest_lse(const float* lse, int64_t stride, int splits,
                                             int lane) {
  float largest = minus_infinity();
  for (int s = lane; s < splits; s += kLanes) largest = fmaxf(largest, lse[s * stride]);
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, distance));
  }
  return largest;
}

template <bool kBf16>
__device__ __forceinline__ Slice load_partial(const void* partials, int64_t element) {
  if constexpr (kBf16) {
    return load_bf16(static_cast<const uint16_t*>(partials) + element);
  } else {
    return load_f32(static_cast<const float*>(partials) + element);
  }
}

/// O of a row before rounding: each of its kLanes lanes holds the slice of lane % 8; each octet of
/// lanes takes every (kLanes / 8)th split, kStep of them at a time so that their loads overlap. The
/// order of additions depends on nothing but kLanes. All splits empty: 0.
template <int kLanes, int kStep, bool kBf16>
__device__ __forceinline__ Slice sum_partials(const CombineInputs& in, int64_t row, int splits,
                                              int lane) {
  constexpr int kOctets = kLanes / kRowLanes;
  const int64_t stride = static_cast<int64_t>(in.tokens) * in.num_q_heads;  // rows of a split
  const float* lse = in.partial_lse + row;
  const float largest = largest_lse<kLanes>(lse, stride, splits, lane);
  const int first = lane % kRowLanes * kSlice;
  Slice sum = {};
  float weights = 0;
  for (int base = lane / kRowLanes; base < splits; base += kStep * kOctets) {
    float weight[kStep];
    Slice partial[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const int s = base + i * kOctets;
      const float own = lse[(s < splits ? s : base) * stride];
      const float scale = exp2_approx(own - largest);
      weight[i] = s < splits && own != minus_infinity() ? scale : 0.0F;
    }
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const int64_t split = base + i * kOctets;
      partial[i] = {};
      // An empty split's partial holds anything, NaN too.
      if (weight[i] != 0) {
        partial[i] = load_partial<kBf16>(in.partial_o, (split * stride + row) * kHeadDim + first);
      }
    }
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      weights += weight[i];
#pragma unroll
      for (int j = 0; j < kSlice; ++j) sum.x[j] += weight[i] * partial[i].x[j];
    }
  }
  weights = sum_across<kRowLanes, kLanes>(weights);
  const float factor = weights == 0 ? 0.0F : 1.0F / weights;
#pragma unroll
  for (int j = 0; j < kSlice; ++j) sum.x[j] = sum_across<kRowLanes, kLanes>(sum.x[j]) * factor;
  return sum;
}

/// The same for the row of `place`, whatever the partials' type. Every lane of the warp calls it.
template <int kLanes, int kStep>
__device__ __forceinline__ Slice combined(const CombineInputs& in, const RowPlace& place) {
  const int64_t row = static_cast<int64_t>(place.token) * in.num_q_heads + place.head;
  const int splits = place.exists ? in.n_splits[place.token / in.q_len] : 0;
  return in.bf16_partials ? sum_partials<kLanes, kStep, true>(in, row, splits, place.lane)
                          : sum_partials<kLanes, kStep, false>(in, row, splits, place.lane);
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::device
