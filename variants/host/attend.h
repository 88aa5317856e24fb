// SPDX-License-Identifier: Apache-2.0
// Vectorised attention of one request and one kv head over a range of keys: online softmax over
// tiles, all query rows of the group on the same decoded K and V.
#pragma once

#include <cstddef>
#include <cstdint>

#include "variants/host/attended.h"
#include "variants/host/row_kernels.h"

namespace muse::host {

/// Memory of one thread, carved from a workspace. Rows: the G * L query rows of a kv head, row i*G
/// + h being query i, head h of the group.
class AttendScratch {
 public:
  static int64_t bytes(int64_t rows, int64_t dim, int64_t tile_kv);
  AttendScratch(std::byte* memory, int64_t rows, int64_t dim, int64_t tile_kv);

  SoftmaxState* states;  // [rows]
  float* acc;            // [rows, D] sum of p * V, not yet divided by the sum of p
  float* query;          // [rows, D]
  float* factors;        // [rows]
  float* keys;           // [D, tile]
  float* values;         // [tile, D]
  float* scores;         // [rows, tile]
  int64_t* offsets;      // [tile] of this tile
  int64_t* ahead;        // [tile] of the next one, being fetched
};

/// Fills scratch.acc and scratch.states from the keys in `range`; a row that attends none of them
/// keeps sum 0. tile_kv: multiple of kKeyBlock.
void attend(const RowKernels& kernels, const AttentionInputs& in, int64_t b, int64_t kv_head,
            KeyRange range, int64_t tile_kv, AttendScratch& scratch);

/// What a row of acc has to be multiplied with: v_scale / sum, 0 for a row without keys.
inline float output_factor(const SoftmaxState& state, float v_scale) {
  return state.sum == 0 ? 0.0F : v_scale / state.sum;
}

/// Log-sum-exp in base 2; -infinity for a row without keys.
float log_sum_exp2(const SoftmaxState& state);

}  // namespace muse::host
