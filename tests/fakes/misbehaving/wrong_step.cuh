// SPDX-License-Identifier: Apache-2.0
// Faults planted into kernels for GPUs, by stage, and what those kernels share. Plain ones: a block
// of 64 threads for each row of a head, a thread for each element.
#pragma once

#include "variants/device/ptx.cuh"

namespace muse::fakes {

/// The tunable `fault` of <stage>/fake_planted.
enum Wrong : int {
  kRight = 0,

  kNoRoundingAfterNorm = 1,
  kNoRoundingAfterRope = 2,
  kNoRoundingBeforeStore = 3,
  kWrongInterleave = 4,
  kReciprocal = 5,
  kPositionsFromSeqLens = 6,
  kCacheLocFromPageTable = 7,
  kSaturationToNan = 8,
  kForeignRowClobbered = 9,
  kQ8StoreBehind = 10,

  kWindowTooWide = 20,
  kWindowTooNarrow = 21,
  kPageMinusOneTimesZero = 22,
  kRowLeftOfWindowTimesZero = 23,
  kTokenTwice = 24,
  kWrongKvHead = 25,
  kMissingVScale = 26,
  kLseBase = 27,
  kTruncatedSums = 28,  // to 13 fraction bits after each addition
  kPartialStoreBefore = 29,
  kLaterTokenTimesZero = 30,

  kLostSplit = 40,
  kEmptySplitTimesZero = 41,

  kStaleOutput = 60,
  kHalfWritten = 61,
  kNan = 62,
  kLastElement = 63,
  kDrifts = 64,
  kReadsTheBatch = 65,
  kInputModified = 66,
  kOutStoreBehind = 67,
};

template <int... kValues>
struct WrongList {};
using PrepareFaults = WrongList<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10>;
using AttentionFaults = WrongList<0, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30>;
using CombineFaults = WrongList<0, 40, 41>;
using GateFaults = WrongList<0, 60, 61, 62, 63, 64, 65, 66, 67>;

inline constexpr int kWrongSplits = 3;
inline constexpr int kWrongDim = 64;  // threads of a block, too

struct WrongStep {
  const uint16_t* qkv;           // bf16 [T, (2*Hq+2*Hkv)*D]
  const int64_t* positions;      // [T]
  const int64_t* cache_loc;      // [T]
  int32_t* seq_lens;             // [B], an input all the same
  const int32_t* cache_seqlens;  // [B]
  const int32_t* page_table;     // [B, max_pages]
  const float* k_scale;          // [1]
  const float* v_scale;          // [1]
  const float* cos_sin;          // [positions, D]; null without RoPE
  uint8_t* k_cache;              // e4m3 [pages, ps, Hkv, D]
  uint8_t* v_cache;              // e4m3 [pages, ps, Hkv, D]
  uint8_t* q8;                   // e4m3 [T, Hq, D]
  float* partial_o;              // [S, T, Hq, D]
  float* partial_lse;            // [S, T, Hq]
  int32_t* n_splits;             // [B]
  uint16_t* o;                   // bf16 [T, Hq, D]
  uint16_t* out;                 // bf16 [T, Hq, D]
  int32_t* runs;                 // [1] so far
  int32_t batch, q_len, q_heads, kv_heads, page_size, max_pages, window;
  int32_t scaled;  // 0: kv_scale is 1
  float c;         // softmax scale without k_scale

  MUSE_HOST_DEVICE int tokens() const { return batch * q_len; }
  MUSE_HOST_DEVICE int64_t qkv_width() const {
    return (2 * int64_t{q_heads} + 2 * kv_heads) * kWrongDim;
  }
};

#if defined(MUSE_DEVICE_CODE)

__device__ inline int64_t page_row(const WrongStep& step, int request, int key) {
  const int64_t page = step.page_table[int64_t{request} * step.max_pages + key / step.page_size];
  return page * step.page_size + key % step.page_size;
}

/// 1 / sqrt(mean(x^2) + 1e-5) of 64 bf16.
__device__ inline float wrong_rsqrt_mean(const uint16_t* row) {
  float sum = 0;
  for (int j = 0; j < kWrongDim; ++j) sum += bf16_to_f32(row[j]) * bf16_to_f32(row[j]);
  return rsqrtf(sum / kWrongDim + 1e-5F);
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::fakes
