// SPDX-License-Identifier: Apache-2.0
// attention/fake_planted: split-KV in three, right or with one planted fault.
#pragma once

#include "tests/fakes/misbehaving/wrong_step.cuh"

namespace muse::attention_fake_planted {

using namespace fakes;

#if defined(MUSE_DEVICE_CODE)

inline constexpr float kLog2e = 1.4426950408889634F;

/// Running sums of element d of one (token, head, split), base 2.
template <int kFault>
struct Softmax {
  float largest = f32_from_bits(0xFF800000U), sum = 0, o = 0;

  __device__ void add(float score, float weight, float v) {
    const float top = fmaxf(largest, score);
    const float keep = exp2f(largest - top), p = weight * exp2f(score - top);
    o = o * keep + p * v;
    if (kFault == kTruncatedSums) o = f32_from_bits(f32_bits(o) & 0xFFFFFC00U);
    sum = sum * keep + p;
    largest = top;
  }
};

struct Query {
  int token, request, head, kv_head, first, own;
};

template <int kFault>
__device__ Query query_of(const WrongStep& step, int row) {
  Query q{row / step.q_heads, row / step.q_heads / step.q_len, row % step.q_heads, 0, 0, 0};
  q.kv_head =
      kFault == kWrongKvHead ? q.head % step.kv_heads : q.head / (step.q_heads / step.kv_heads);
  q.own = step.cache_seqlens[q.request] - step.q_len + q.token % step.q_len;
  const int window =
      step.window + (kFault == kWindowTooWide ? 1 : 0) - (kFault == kWindowTooNarrow ? 1 : 0);
  if (step.window > 0 && q.own > window - 1) q.first = q.own - (window - 1);
  return q;
}

__device__ inline int64_t key_offset(const WrongStep& step, const Query& q, int key) {
  return (page_row(step, q.request, key) * step.kv_heads + q.kv_head) * kWrongDim;
}

__device__ inline float score_of(const WrongStep& step, const Query& q, int key) {
  const uint8_t* x = step.q8 + (int64_t{q.token} * step.q_heads + q.head) * kWrongDim;
  const uint8_t* k = step.k_cache + key_offset(step, q, key);
  float dot = 0;
  for (int j = 0; j < kWrongDim; ++j) dot += e4m3_to_f32(x[j]) * e4m3_to_f32(k[j]);
  return dot * step.c * *step.k_scale * kLog2e;
}

/// A block for each split of each token and head.
template <class C>
__global__ void __launch_bounds__(kWrongDim) attend(const __grid_constant__ WrongStep step) {
  __shared__ float scores[kWrongDim];
  const int rows = step.tokens() * step.q_heads, d = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x) % rows, split = static_cast<int>(blockIdx.x) / rows;
  const Query q = query_of<C::fault>(step, row);
  const int context = step.cache_seqlens[q.request];
  const int splits = context < kWrongSplits ? context : kWrongSplits;
  if (q.head == 0 && q.token % step.q_len == 0 && d == 0) step.n_splits[q.request] = splits;
  if (split >= splits) return;
  const int chunk = (q.own + 1 - q.first + kWrongSplits - 1) / kWrongSplits;
  const int begin = q.first + split * chunk;
  const int end = begin + chunk < q.own + 1 ? begin + chunk : q.own + 1;

  Softmax<C::fault> softmax;
  const auto value = [&](int key) {
    return e4m3_to_f32(step.v_cache[key_offset(step, q, key) + d]);
  };
  for (int tile = begin; tile < end; tile += kWrongDim) {
    if (tile + d < end) scores[d] = score_of(step, q, tile + d);
    __syncthreads();
    for (int k = 0; k < kWrongDim && tile + k < end; ++k) {
      softmax.add(scores[k], 1, value(tile + k));
    }
    __syncthreads();  // before the next tile's scores
  }
  const bool left = split == 0 && q.first > 0;
  const bool same_page = q.first % step.page_size > 0;
  if (C::fault == kTokenTwice && end == q.own + 1 && begin < end) {
    softmax.add(score_of(step, q, q.own), 1, value(q.own));
  }
  if ((C::fault == kPageMinusOneTimesZero && left) ||
      (C::fault == kRowLeftOfWindowTimesZero && left && same_page)) {
    softmax.add(softmax.largest, 0, value(q.first - 1));
  }
  if (C::fault == kLaterTokenTimesZero && split == 0 && q.own + 1 < context) {
    softmax.add(softmax.largest, 0, value(q.own + 1));
  }

  const int64_t slot = int64_t{split} * rows + row;
  const bool empty = begin >= end;
  if (d == 0) {
    const float lse = softmax.largest + log2f(softmax.sum);
    step.partial_lse[slot] =
        empty ? f32_from_bits(0xFF800000U) : (C::fault == kLseBase ? lse / kLog2e : lse);
  }
  if (empty) return;
  const float v_scale = C::fault == kMissingVScale ? 1 : *step.v_scale;
  step.partial_o[slot * kWrongDim + d] = softmax.o / softmax.sum * v_scale;
  if (C::fault == kPartialStoreBefore && blockIdx.x == 0 && d == 0) step.partial_o[-1] = 1;
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::attention_fake_planted
