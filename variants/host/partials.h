// SPDX-License-Identifier: Apache-2.0
// The hand-off between attention and combine as host variants pass it.
#pragma once

#include <cstdint>

#include "variants/buffers.h"

namespace muse::host {

/// Pointers and sizes of Partials. Rows are counted over [S, T, Hq].
struct Partials {
  PartialType type;
  int64_t capacity;   // S
  void* o;            // f32 or bf16 [S, T, Hq, D] normalised
  float* lse;         // [S, T, Hq] base 2
  int32_t* n_splits;  // [B]

  float* f32(int64_t row, int64_t dim) const { return static_cast<float*>(o) + row * dim; }
  uint16_t* bf16(int64_t row, int64_t dim) const { return static_cast<uint16_t*>(o) + row * dim; }
};

inline Partials partials_of(const Buffers& buffers) {
  return {.type = buffers.partial_type,
          .capacity = buffers.split_capacity,
          .o = buffers.partial_o,
          .lse = buffers.partial_lse,
          .n_splits = buffers.n_splits};
}

}  // namespace muse::host
