// SPDX-License-Identifier: Apache-2.0
// Row kernels for AVX-512 with VBMI (Ice Lake, Zen 4 and later): vectors of 64 bytes.
#pragma once

#if defined(__x86_64__)

#include <array>
#include <cstdint>

#include "variants/host/intrinsics.h"
#include "variants/host/row_kernels.h"
#include "variants/numerics.h"

#define MUSE_TARGET \
  __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")))
#define MUSE_VECTOR_BYTES 64
namespace muse::host::avx512 {
#include "variants/host/vector.inl"

constexpr int kDimVectors = 4;

/// The upper two bytes of the f32 value of each e4m3 magnitude; the lower two are 0.
struct ByteTables {
  std::array<uint8_t, 128> low{}, high{};
};

inline const ByteTables& byte_tables() {
  static const ByteTables tables = [] {
    ByteTables made;
    for (size_t code = 0; code < 128; ++code) {
      const uint32_t bits = f32_bits(e4m3_to_f32(static_cast<uint8_t>(code)));
      made.low[code] = static_cast<uint8_t>(bits >> 16);
      made.high[code] = static_cast<uint8_t>(bits >> 24);
    }
    return made;
  }();
  return tables;
}

/// Looks codes up in registers: a table of 128 bytes is one instruction, and both upper bytes of an
/// f32 are a function of the seven bits below the sign.
struct Decoder {
  const ByteTables& tables = byte_tables();
  __m512i low0, low1, high0, high1;

  MUSE_INLINE Decoder() {
    low0 = _mm512_loadu_si512(tables.low.data());
    low1 = _mm512_loadu_si512(tables.low.data() + 64);
    high0 = _mm512_loadu_si512(tables.high.data());
    high1 = _mm512_loadu_si512(tables.high.data() + 64);
  }

  /// Each 32-bit lane holds its code in byte 2 and in byte 3.
  MUSE_INLINE F look_up(__m512i codes) const {
    const __m512i low = _mm512_maskz_permutex2var_epi8(0x4444444444444444U, low0, codes, low1);
    const __m512i high = _mm512_maskz_permutex2var_epi8(0x8888888888888888U, high0, codes, high1);
    const __m512i sign = _mm512_and_si512(codes, _mm512_set1_epi32(INT32_MIN));
    return reinterpret_cast<F>(_mm512_ternarylogic_epi32(low, high, sign, 0xFE));  // or of three
  }

  MUSE_INLINE F load(const uint8_t* x) const {
    const __m512i all =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    const __m512i spread =
        _mm512_set_epi32(0x0F0F0000, 0x0E0E0000, 0x0D0D0000, 0x0C0C0000, 0x0B0B0000, 0x0A0A0000,
                         0x09090000, 0x08080000, 0x07070000, 0x06060000, 0x05050000, 0x04040000,
                         0x03030000, 0x02020000, 0x01010000, 0x00000000);
    return look_up(_mm512_shuffle_epi8(all, spread));
  }

  /// out[d * stride + lane] = element d of the row at base + offsets[lane].
  MUSE_INLINE void load_transposed(const uint8_t* base, const int64_t* offsets, int64_t dim,
                                   int64_t stride, float* out) const {
    for (int64_t d = 0; d < dim; d += 64) {
      __m512i rows[16];
      MUSE_UNROLL
      for (int lane = 0; lane < 16; ++lane) {
        rows[lane] = _mm512_loadu_si512(base + offsets[lane] + d);
      }
      transpose(rows);
      MUSE_UNROLL
      for (int column = 0; column < 16; ++column) {
        float* four = out + (d + 4 * column) * stride;
        store(four, look_up(byte_of_each<0>(rows[column])));
        store(four + stride, look_up(byte_of_each<1>(rows[column])));
        store(four + 2 * stride, look_up(byte_of_each<2>(rows[column])));
        store(four + 3 * stride, look_up(byte_of_each<3>(rows[column])));
      }
    }
  }

  /// Byte `Byte` of each 32-bit lane to bytes 2 and 3.
  template <int Byte>
  MUSE_INLINE static __m512i byte_of_each(__m512i lanes) {
    constexpr int kOne = (Byte << 24) | (Byte << 16);
    const __m128i spread =
        _mm_set_epi32(kOne + 0x0C0C0000, kOne + 0x08080000, kOne + 0x04040000, kOne);
    return _mm512_shuffle_epi8(lanes, _mm512_broadcast_i32x4(spread));
  }

  /// 16 x 16 of 32 bits: pairs of rows, pairs of pairs, then the 4 x 4 quarters.
  MUSE_INLINE static void transpose(__m512i (&rows)[16]) {
    __m512i pairs[16];
    MUSE_UNROLL
    for (int i = 0; i < 16; i += 2) {
      pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    __m512i quads[16];
    MUSE_UNROLL
    for (int i = 0; i < 16; i += 4) {
      quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
      quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
      quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
      quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    MUSE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const __m512i even0 = _mm512_shuffle_i32x4(quads[i], quads[4 + i], 0x88);
      const __m512i even1 = _mm512_shuffle_i32x4(quads[8 + i], quads[12 + i], 0x88);
      const __m512i odd0 = _mm512_shuffle_i32x4(quads[i], quads[4 + i], 0xDD);
      const __m512i odd1 = _mm512_shuffle_i32x4(quads[8 + i], quads[12 + i], 0xDD);
      rows[i] = _mm512_shuffle_i32x4(even0, even1, 0x88);
      rows[4 + i] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
      rows[8 + i] = _mm512_shuffle_i32x4(even0, even1, 0xDD);
      rows[12 + i] = _mm512_shuffle_i32x4(odd0, odd1, 0xDD);
    }
  }
};

MUSE_INLINE float sum(F x) { return _mm512_reduce_add_ps(reinterpret_cast<__m512>(x)); }
MUSE_INLINE float maximum(F x) { return _mm512_reduce_max_ps(reinterpret_cast<__m512>(x)); }

#include "variants/host/row_kernels.inl"
}  // namespace muse::host::avx512
#undef MUSE_VECTOR_BYTES
#undef MUSE_TARGET

#endif  // __x86_64__
