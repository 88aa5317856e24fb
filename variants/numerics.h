// SPDX-License-Identifier: Apache-2.0
// Conversions between f32 and the formats in memory, bf16 and e4m3fn: the same bits on the host and
// in device code, which is why no standard and no toolkit header is included here.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define MUSE_HOST_DEVICE __host__ __device__
#else
#define MUSE_HOST_DEVICE
#endif

namespace muse {

static_assert(sizeof(unsigned int) == 4 && sizeof(unsigned short) == 2 && sizeof(float) == 4,
              "the bit patterns below are 32 and 16 bits wide");

inline constexpr unsigned char kE4m3Nan = 0x7F;
inline constexpr float kE4m3Max = 448.0F;

MUSE_HOST_DEVICE inline unsigned int f32_bits(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  unsigned int bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

MUSE_HOST_DEVICE inline float f32_from_bits(unsigned int bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

/// Exact.
MUSE_HOST_DEVICE inline float bf16_to_f32(unsigned short bits) {
  return f32_from_bits(static_cast<unsigned int>(bits) << 16);
}

/// To nearest even; overflow gives infinity, NaN stays a (quiet) NaN of the same sign.
MUSE_HOST_DEVICE inline unsigned short f32_to_bf16(float value) {
  const unsigned int bits = f32_bits(value);
  // Both paths are computed and one is selected, so that loops over rows vectorise.
  const unsigned int rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const unsigned int quiet_nan = (bits >> 16) | 0x40U;
  return static_cast<unsigned short>((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet_nan : rounded);
}

/// value rounded to bf16 and widened again: RN_bf16 of the formulas.
MUSE_HOST_DEVICE inline float round_to_bf16(float value) { return bf16_to_f32(f32_to_bf16(value)); }

/// Exact for all 256 codes; 0x7F and 0xFF are NaN, zero keeps its sign.
MUSE_HOST_DEVICE inline float e4m3_to_f32(unsigned char code) {
  const unsigned int sign = (code & 0x80U) << 24;
  const unsigned int magnitude = code & 0x7FU;
  // Moved to f32's place, exponent and mantissa read 2^-120 too small: biases 7 and 127. That holds
  // for subnormals too, but as f32 subnormals, which flush-to-zero would lose; their value is
  // mantissa * 2^-9.
  const float normal = f32_from_bits((magnitude << 20) + (120U << 23));
  const float subnormal = static_cast<float>(static_cast<int>(magnitude)) * 0.001953125F;
  const float finite = magnitude < 8U ? subnormal : normal;
  return f32_from_bits((magnitude == 0x7FU ? 0x7FC00000U : f32_bits(finite)) | sign);
}

/// E4(x): to nearest even with saturation; beyond 448 (infinities too) gives +-448, NaN stays NaN,
/// magnitudes up to 2^-10 give a zero of x's sign.
MUSE_HOST_DEVICE inline unsigned char f32_to_e4m3(float value) {
  const unsigned int bits = f32_bits(value);
  const unsigned int sign = (bits >> 24) & 0x80U;
  const unsigned int magnitude = bits & 0x7FFFFFFFU;
  // Normal results: drop 20 mantissa bits to nearest even, then move the bias from 127 to 7. A
  // carry out of the mantissa rises into the exponent, as it should.
  const unsigned int rounded = (magnitude + 0x7FFFFU + ((magnitude >> 20) & 1U)) >> 20;
  const unsigned int normal = rounded - (120U << 3);
  // Subnormal results are multiples of 2^-9. Added to 2^14, whose unit in the last place is 2^-9,
  // the sum is rounded to it (to nearest even, the default mode) and its low bits are the code; 8
  // is the smallest normal number.
  const unsigned int shifted = f32_bits(f32_from_bits(magnitude) + 16384.0F);
  const unsigned int subnormal = shifted - (141U << 23);
  unsigned int code = magnitude < (121U << 23) ? subnormal : normal;
  code = magnitude > 0x43E00000U ? 0x7EU : code;  // above 448
  code = magnitude > 0x7F800000U ? 0x7FU : code;
  return static_cast<unsigned char>(code | sign);
}

/// E4 as a value: value rounded to e4m3 and widened again.
MUSE_HOST_DEVICE inline float round_to_e4m3(float value) { return e4m3_to_f32(f32_to_e4m3(value)); }

}  // namespace muse
