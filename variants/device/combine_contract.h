// SPDX-License-Identifier: Apache-2.0
// What the contracts of CUDA variants that start at combine have in common.
#pragma once

#include <vector>

#include "variants/device/combine.cuh"
#include "variants/variant.h"

namespace muse::device {

/// Splits that a combine takes at most: beyond, its passes over them cost more than they can save.
inline constexpr int64_t kMaxSplits = 256;

inline CombineInputs combine_inputs(const Problem& problem, const Buffers& buffers) {
  return {.partial_o = buffers.partial_o,
          .partial_lse = buffers.partial_lse,
          .n_splits = buffers.n_splits,
          .tokens = static_cast<int32_t>(problem.tokens()),
          .q_len = static_cast<int32_t>(problem.q_len),
          .num_q_heads = static_cast<int32_t>(problem.num_q_heads),
          .bf16_partials = buffers.partial_type == PartialType::kBf16};
}

/// threads of a block; lanes of a row, eight of them or a warp; splits whose loads overlap.
inline std::vector<Tunable> combine_tunables() {
  return {{.name = "threads", .values = {128, 256}, .default_value = 128},
          {.name = "lanes", .values = {8, 32}, .default_value = 32},
          {.name = "splits_per_step", .values = {1, 4}, .default_value = 4}};
}

}  // namespace muse::device
