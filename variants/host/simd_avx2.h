// SPDX-License-Identifier: Apache-2.0
// Row kernels for AVX2 with FMA and F16C: vectors of 32 bytes.
#pragma once

#if defined(__x86_64__)

#include <cstdint>

#include "variants/host/intrinsics.h"
#include "variants/host/row_kernels.h"

#define MUSE_TARGET __attribute__((target("avx2,fma,f16c")))
#define MUSE_VECTOR_BYTES 32
namespace muse::host::avx2 {
#include "variants/host/vector.inl"

constexpr int kDimVectors = 2;

struct Decoder {
  /// By way of f16: moved to its place, exponent and mantissa read 2^-8 too small (biases 7 and
  /// 15), for subnormals too. NaN needs all exponent bits set.
  MUSE_INLINE F load(const uint8_t* x) const {
    const __m128i codes = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x)));
    const __m128i magnitude = _mm_and_si128(codes, _mm_set1_epi16(0x7F));
    const __m128i nan =
        _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7F)), _mm_set1_epi16(0x7E00));
    const __m128i sign = _mm_slli_epi16(_mm_xor_si128(codes, magnitude), 8);
    const __m128i half = _mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign), nan);
    return reinterpret_cast<F>(_mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0F)));
  }

  /// out[d * stride + lane] = element d of the row at base + offsets[lane].
  MUSE_INLINE void load_transposed(const uint8_t* base, const int64_t* offsets, int64_t dim,
                                   int64_t stride, float* out) const {
    for (int64_t d = 0; d < dim; d += kLanes) {
      __m256 rows[kLanes];
      MUSE_UNROLL
      for (int lane = 0; lane < kLanes; ++lane) {
        rows[lane] = reinterpret_cast<__m256>(load(base + offsets[lane] + d));
      }
      transpose(rows);
      MUSE_UNROLL
      for (int column = 0; column < kLanes; ++column) {
        _mm256_storeu_ps(out + (d + column) * stride, rows[column]);
      }
    }
  }

  /// 8 x 8: pairs of rows, pairs of pairs, then the two halves.
  MUSE_INLINE static void transpose(__m256 (&rows)[8]) {
    __m256 pairs[8];
    MUSE_UNROLL
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    __m256 quads[8];
    MUSE_UNROLL
    for (int i = 0; i < 8; i += 4) {
      quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
      quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
      quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
      quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
    }
    MUSE_UNROLL
    for (int i = 0; i < 4; ++i) {
      rows[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
      rows[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
    }
  }
};

MUSE_INLINE float sum(F x) {
  const __m256 all = reinterpret_cast<__m256>(x);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

MUSE_INLINE float maximum(F x) {
  const __m256 all = reinterpret_cast<__m256>(x);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

#include "variants/host/row_kernels.inl"
}  // namespace muse::host::avx2
#undef MUSE_VECTOR_BYTES
#undef MUSE_TARGET

#endif  // __x86_64__
