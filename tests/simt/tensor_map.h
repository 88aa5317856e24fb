// SPDX-License-Identifier: Apache-2.0
// What a tensor map is in the emulator. C++17, as device code is.
#pragma once

#include <cstdint>

namespace muse::simt {

inline constexpr uint32_t kTensorMap = 0x544D4150;

/// Of bytes, four dimensions, innermost first.
struct TensorMap {
  const unsigned char* base;
  int64_t extent[4];
  int64_t stride[4];  ///< bytes; 1 of the first
  int32_t box[4];
  int32_t swizzle_bytes;
  uint32_t valid;  ///< kTensorMap
};
static_assert(sizeof(TensorMap) <= 128);

}  // namespace muse::simt
