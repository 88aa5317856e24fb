// SPDX-License-Identifier: Apache-2.0
// Row kernels for any CPU: vectors of 16 bytes, which every 64-bit target has.
#pragma once

#include <cstdint>

#include "variants/host/e4m3_table.h"
#include "variants/host/row_kernels.h"

#define MUSE_TARGET
#define MUSE_VECTOR_BYTES 16
namespace muse::host::baseline {
#include "variants/host/vector.inl"

constexpr int kDimVectors = 2;

struct Decoder {
  const float* table = e4m3_table();

  MUSE_INLINE F load(const uint8_t* x) const {
    return F{table[x[0]], table[x[1]], table[x[2]], table[x[3]]};
  }
  /// out[d * stride + lane] = element d of the row at base + offsets[lane].
  MUSE_INLINE void load_transposed(const uint8_t* base, const int64_t* offsets, int64_t dim,
                                   int64_t stride, float* out) const {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const uint8_t* row = base + offsets[lane];
      for (int64_t d = 0; d < dim; ++d) out[d * stride + lane] = table[row[d]];
    }
  }
};

MUSE_INLINE float sum(F x) { return (x[0] + x[2]) + (x[1] + x[3]); }

MUSE_INLINE float maximum(F x) {
  const float even = x[0] > x[2] ? x[0] : x[2];
  const float odd = x[1] > x[3] ? x[1] : x[3];
  return even > odd ? even : odd;
}

#include "variants/host/row_kernels.inl"
}  // namespace muse::host::baseline
#undef MUSE_VECTOR_BYTES
#undef MUSE_TARGET
