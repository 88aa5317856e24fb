// SPDX-License-Identifier: Apache-2.0
// prepare/fake_planted: right, or with one planted fault.
#pragma once

#include "tests/fakes/misbehaving/wrong_step.cuh"

namespace muse::prepare_fake_planted {

using namespace fakes;

#if defined(MUSE_DEVICE_CODE)

__device__ inline float rounded(float x, bool skip) { return skip ? x : round_to_bf16(x); }

/// Element d of a q or k head after norm and RoPE.
template <int kFault>
__device__ float rotated(const WrongStep& step, const uint16_t* row, int token, int d) {
  const float r = wrong_rsqrt_mean(row);
  const auto y = [&](int j) {
    return rounded(bf16_to_f32(row[j]) * r, kFault == kNoRoundingAfterNorm);
  };
  if (step.cos_sin == nullptr) return y(d);
  constexpr int kHalf = kWrongDim / 2;
  constexpr bool kHalves = kFault == kWrongInterleave;
  const int64_t position = kFault == kPositionsFromSeqLens
                               ? step.seq_lens[token / step.q_len] + token % step.q_len
                               : step.positions[token];
  const float* table = step.cos_sin + position * kWrongDim;
  const int pair = kHalves ? d % kHalf : d / 2;
  const bool even = kHalves ? d < kHalf : d % 2 == 0;
  const float c = table[pair], s = table[kHalf + pair];
  const float a = y(kHalves ? pair : 2 * pair), b = y(kHalves ? pair + kHalf : 2 * pair + 1);
  return rounded(even ? a * c - b * s : b * c + a * s, kFault == kNoRoundingAfterRope);
}

template <int kFault>
__device__ uint8_t stored(const WrongStep& step, float x, float scale) {
  if (step.scaled != 0) {
    const float quotient = kFault == kReciprocal ? x * (1 / scale) : x / scale;
    x = rounded(quotient, kFault == kNoRoundingBeforeStore);
  }
  if (kFault == kSaturationToNan && (x > 464 || x < -464)) return kE4m3Nan;
  return f32_to_e4m3(x);
}

__device__ inline void clobber_foreign_row(const WrongStep& step) {
  int64_t row = 0;
  for (int n = 0; n < step.tokens(); ++n) {
    if (step.cache_loc[n] != row) continue;
    ++row;
    n = -1;  // from the first one on again
  }
  step.v_cache[row * step.kv_heads * kWrongDim] = 0;
}

/// A block for each token and each head of q, k and v.
template <class C>
__global__ void __launch_bounds__(kWrongDim) prepare(const __grid_constant__ WrongStep step) {
  const int heads = step.q_heads + 2 * step.kv_heads;
  const int token = static_cast<int>(blockIdx.x) / heads;
  const int head = static_cast<int>(blockIdx.x) % heads, d = static_cast<int>(threadIdx.x);
  const uint16_t* row = step.qkv + token * step.qkv_width() + head * kWrongDim;
  const int request = token / step.q_len, kv_head = head - step.q_heads;
  const bool value = kv_head >= step.kv_heads;
  const float x = value ? bf16_to_f32(row[d]) : rotated<C::fault>(step, row, token, d);
  if (kv_head < 0) {
    step.q8[(int64_t{token} * step.q_heads + head) * kWrongDim + d] = f32_to_e4m3(x);
  } else {
    const int64_t target =
        C::fault == kCacheLocFromPageTable
            ? page_row(step, request, step.seq_lens[request] + token % step.q_len)
            : step.cache_loc[token];
    const int64_t at = (target * step.kv_heads + kv_head % step.kv_heads) * kWrongDim + d;
    uint8_t* cache = value ? step.v_cache : step.k_cache;
    cache[at] = stored<C::fault>(step, x, value ? *step.v_scale : *step.k_scale);
  }
  if (blockIdx.x > 0 || d > 0) return;
  if (C::fault == kForeignRowClobbered) clobber_foreign_row(step);
  if (C::fault == kQ8StoreBehind) step.q8[int64_t{step.tokens()} * step.q_heads * kWrongDim] = 1;
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::prepare_fake_planted
