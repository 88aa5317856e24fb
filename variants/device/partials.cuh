// SPDX-License-Identifier: Apache-2.0
// What attention leaves behind: O where one split is all, else a partial. A configuration says
// which by its tunables `splits` and `partial_bf16`.
#pragma once

#include "variants/device/attention_args.h"
#include "variants/device/ptx.cuh"
#include "variants/device/words.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

inline constexpr int kChunksPerRow = kHeadDim / 4;

struct alignas(16) F32x4 {
  float value[4];
};

/// Stands for the maximum of a row without keys: finite, so that no infinities are subtracted.
inline constexpr float kNoMaximum = -1e30F;

/// What has been summed of a row over some of its keys.
struct RowStats {
  float max;  // what scores were taken relative to, in units of log2
  float sum;  // of exp2(score - max)
};
/// Four dims of it.
struct RowPart {
  F32x4 o;  // sum of P * V
  RowStats stats;
};

/// Over kLanes neighbouring lanes, a power of two; each gets the result.
template <int kLanes>
__device__ __forceinline__ float max_of_lanes(float value) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, distance));
  }
  return value;
}
template <int kLanes>
__device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, distance);
  }
  return value;
}

/// `count` parts of a row's dims 4*chunk..4*chunk+3 as one, of kMost at most: stats(i) -> RowStats,
/// o(i) -> F32x4, each added in an order that depends on kMost alone. Whole warps call it, 16 lanes
/// to a row, of which each weighs every 16th part. `count`: at least 1, the same in the warp.
/// Written for a short way through: it runs once, at the end of everything. So all lanes read all
/// maxima and sums, rather than pass them on.
/// kRound: parts whose loads overlap, a power of two.
template <int kMost, int kRound, class Stats, class Chunk>
__device__ __forceinline__ RowPart merge_rounds(int count, int chunk, const Stats& stats,
                                                const Chunk& o) {
  static_assert(kRound <= kChunksPerRow, "a lane weighs one part of a round");
  constexpr RowStats kNone{kNoMaximum, 0.0F};
  RowPart all{{}, kNone};
#pragma unroll 1
  for (int first = 0; first < kMost && first < count; first += kRound) {
    const int weighed = first + chunk % kRound;
    const RowStats mine = weighed < count ? stats(weighed) : kNone;
    RowStats each[kRound];
    F32x4 part[kRound] = {};  // under way while the weights are found
#pragma unroll
    for (int j = 0; j < kRound; ++j) each[j] = first + j < count ? stats(first + j) : kNone;
#pragma unroll
    for (int j = 0; j < kRound; ++j) {
      if (first + j < count) part[j] = o(first + j);
    }
    float max = all.stats.max;
#pragma unroll
    for (int j = 0; j < kRound; ++j) max = fmaxf(max, each[j].max);
    const float weight = exp2_approx(mine.max - max), before = exp2_approx(all.stats.max - max);
    all.stats = {max, all.stats.sum * before};
#pragma unroll
    for (int d = 0; d < 4; ++d) all.o.value[d] *= before;
#pragma unroll
    for (int j = 0; j < kRound; ++j) {
      const float w = __shfl_sync(kWholeWarp, weight, j, kChunksPerRow);
      all.stats.sum += w * each[j].sum;
#pragma unroll
      for (int d = 0; d < 4; ++d) all.o.value[d] += w * part[j].value[d];
    }
  }
  return all;
}
template <int kMost, class Stats, class Chunk>
__device__ __forceinline__ RowPart merge_parts(int count, int chunk, const Stats& stats,
                                               const Chunk& o) {
  constexpr int kRound = kMost > 8 ? 16 : kMost > 4 ? 8 : kMost > 2 ? 4 : 2;
  // Where there may be many there are often few: the same sum by fewer instructions.
  constexpr int kFew = 4;
  if constexpr (kMost > 2 * kFew) {
    if (count <= kFew) return merge_rounds<kFew, kFew>(count, chunk, stats, o);
  }
  return merge_rounds<kMost, kRound>(count, chunk, stats, o);
}

/// Index into [S, T, Hq]; `head` counts over [T, Hq].
__device__ __forceinline__ int64_t partial_index(const AttentionArgs& args, int split,
                                                 int64_t head) {
  return static_cast<int64_t>(split) * args.batch * args.q_len * args.num_q_heads + head;
}

/// Four dims of an output row, chunk 0..15: normalised and times v_scale.
template <class C>
__device__ __forceinline__ void store_output(const AttentionArgs& args, int split, int64_t head,
                                             int chunk, const F32x4& o) {
  if constexpr (C::splits > 1 && C::partial_bf16 == 0) {
    auto* rows = static_cast<F32x4*>(args.partial_o);
    rows[partial_index(args, split, head) * kChunksPerRow + chunk] = o;
  } else {
    auto* rows = C::splits == 1 ? args.o : static_cast<uint16_t*>(args.partial_o);
    const int64_t row = C::splits == 1 ? head : partial_index(args, split, head);
    store_words2(rows + row * kHeadDim + chunk * 4, {{f32x2_to_bf16x2(o.value[0], o.value[1]),
                                                      f32x2_to_bf16x2(o.value[2], o.value[3])}});
  }
}

/// The log-sum-exp of a row's partial, base 2; minus infinity where it attends no key of the split.
/// `max` is in units of log2, `sum` that of exp2(score - max).
template <class C>
__device__ __forceinline__ void store_log_sum_exp(const AttentionArgs& args, int split,
                                                  int64_t head, float max, float sum) {
  if constexpr (C::splits > 1) {
    args.partial_lse[partial_index(args, split, head)] =
        sum == 0.0F ? minus_infinity() : max + log2f(sum);
  }
}

/// Once for each request.
template <class C>
__device__ __forceinline__ void store_split_count(const AttentionArgs& args, int request,
                                                  int count) {
  if constexpr (C::splits > 1) args.n_splits[request] = count;
}

/// Four dims of O, of row `head` of [T, Hq], through the gate; `gate`: bf16. o_tap may be null. All
/// 16 lanes of a row together, whole warps; rows that do not exist go along.
__device__ __forceinline__ void store_gated(uint16_t* out, uint16_t* o_tap, int64_t head,
                                            const Words2& gate, int chunk, const F32x4& o,
                                            bool exists) {
  // The gate takes O as it would lie in memory: rounded.
  const Words2 rounded{
      {f32x2_to_bf16x2(o.value[0], o.value[1]), f32x2_to_bf16x2(o.value[2], o.value[3])}};
  const F32x2 low = bf16x2_to_f32x2(rounded.word[0]), high = bf16x2_to_f32x2(rounded.word[1]);
  const float squares = sum_of_lanes<kChunksPerRow>(low.low * low.low + low.high * low.high +
                                                    high.low * high.low + high.high * high.high);
  const float r = rsqrtf(squares * (1.0F / kHeadDim) + 1e-5F);
  if (!exists) return;
  const int64_t to = head * kHeadDim + chunk * 4;
  const F32x2 g[2] = {bf16x2_to_f32x2(gate.word[0]), bf16x2_to_f32x2(gate.word[1])};
  const float s[4] = {sigmoid(g[0].low), sigmoid(g[0].high), sigmoid(g[1].low), sigmoid(g[1].high)};
  if (o_tap != nullptr) store_words2(o_tap + to, rounded);
  store_words2(out + to, {{f32x2_to_bf16x2(low.low * r * s[0], low.high * r * s[1]),
                           f32x2_to_bf16x2(high.low * r * s[2], high.high * r * s[3])}});
}

/// What a sum of p * V has to be multiplied with; 0 for a row without keys.
__device__ __forceinline__ float output_factor(float v_scale, float sum) {
  return sum == 0.0F ? 0.0F : v_scale * reciprocal_approx(sum);
}

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
