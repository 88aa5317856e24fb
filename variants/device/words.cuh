// SPDX-License-Identifier: Apache-2.0
// Values of 4, 8 and 16 bytes as kernels move them: loads, stores and what is packed inside, in
// plain C++.
#pragma once

#include "variants/device/types.h"
#include "variants/numerics.h"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

struct alignas(8) Words2 {
  uint32_t word[2];
};
/// One 16-byte access of a lane: eight bf16, sixteen e4m3 or four f32.
struct alignas(16) Words4 {
  uint32_t word[4];
};
struct F32x2 {
  float low, high;  // low: the lower half of a packed word, the lower address in memory
};

__device__ __forceinline__ float minus_infinity() { return f32_from_bits(0xFF800000U); }

/// One access of 8 or 16 bytes to an address aligned to as many.
__device__ __forceinline__ Words2 load_words2(const void* address) {
  return *static_cast<const Words2*>(address);
}
__device__ __forceinline__ Words4 load_words4(const void* address) {
  return *static_cast<const Words4*>(address);
}
__device__ __forceinline__ void store_words2(void* address, const Words2& words) {
  *static_cast<Words2*>(address) = words;
}
__device__ __forceinline__ void store_words4(void* address, const Words4& words) {
  *static_cast<Words4*>(address) = words;
}

/// Exact.
__device__ __forceinline__ F32x2 bf16x2_to_f32x2(uint32_t packed) {
  return {f32_from_bits(packed << 16), f32_from_bits(packed & 0xFFFF0000U)};
}

/// The highest bit of each of four e4m3 that is NaN.
__device__ __forceinline__ uint32_t nan_codes(uint32_t codes) {
  return ((codes & 0x7F7F7F7FU) + 0x01010101U) & 0x80808080U;
}
/// Four e4m3 with 0 in place of NaN.
__device__ __forceinline__ uint32_t without_nan(uint32_t codes) {
  return codes & ~((nan_codes(codes) >> 7) * 0xFFU);
}

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
