// SPDX-License-Identifier: Apache-2.0
// f16 in software: not every host compiler has the type.
#pragma once

#include <cstdint>

#include "variants/numerics.h"

namespace muse::simt {

/// Exact.
inline float f16_to_f32(uint32_t half) {
  const uint32_t sign = (half & 0x8000U) << 16;
  const uint32_t magnitude = half & 0x7FFFU;
  // Moved to f32's place, exponent and mantissa read 2^-112 too small: biases 15 and 127.
  const float normal = f32_from_bits((magnitude << 13) + (112U << 23));
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F;
  const uint32_t special = 0x7F800000U | (magnitude & 0x3FFU) << 13;
  const uint32_t finite = f32_bits(magnitude < 0x400U ? subnormal : normal);
  return f32_from_bits((magnitude >= 0x7C00U ? special : finite) | sign);
}

/// To nearest even; overflow gives infinity, NaN stays NaN.
inline uint32_t f32_to_f16(float value) {
  const uint32_t bits = f32_bits(value);
  const uint32_t sign = bits >> 16 & 0x8000U;
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return sign | 0x7E00U;
  if (magnitude >= 0x47800000U) return sign | 0x7C00U;  // 2^16 and above
  // Below 2^-14 results are multiples of 2^-24, the unit in the last place of 0.5.
  if (magnitude < 0x38800000U) {
    return sign | (f32_bits(f32_from_bits(magnitude) + 0.5F) - 0x3F000000U);
  }
  // A carry out of the mantissa rises into the exponent, up to infinity.
  return sign | (((magnitude + 0xFFFU + (magnitude >> 13 & 1U)) >> 13) - (112U << 10));
}

inline uint32_t pack_f16(float low, float high) { return f32_to_f16(low) | f32_to_f16(high) << 16; }

}  // namespace muse::simt
