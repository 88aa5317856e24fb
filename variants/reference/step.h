// SPDX-License-Identifier: Apache-2.0
// One decode step in host memory: made-up data of a shape that was measured, and what it must come
// to. For programs that have the library but not the tuner.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "variants/buffers.h"
#include "variants/problem.h"

namespace muse::reference {

/// Shapes as in Buffers.
struct Step {
  Problem problem;
  int64_t mean_context = 0;  ///< over the requests, tokens with the new ones, rounded up
  std::vector<uint16_t> qkv;
  std::vector<int64_t> positions, cache_loc;
  std::vector<int32_t> seq_lens, cache_seqlens, cu_seqlens_q, page_table;
  std::vector<float> cos_sin;  ///< empty without RoPE
  float kv_scale = 1;
  std::vector<uint8_t> k_cache, v_cache;  ///< the step's own rows hold NaN

  /// Of this memory; `out` and hand-offs are null.
  Buffers buffers();
};

/// Normal data of a seed for a shape by its key. nullopt with the reason where the key names none,
/// or where the step takes more than `max_bytes`.
std::optional<Step> make_step(std::string_view shape, int64_t max_bytes, uint64_t seed,
                              std::string& reason);

/// Of the heads that the reference was computed for: all of them where that is not too much work.
struct ExpectedStep {
  std::vector<uint8_t> k_rows, v_rows;  ///< e4m3 [T, Hkv, D]: what the step writes to the caches
  std::vector<int64_t> offsets;         ///< of each head's D elements in `out`
  std::vector<double> out;              ///< [offsets, D]
};

/// Writes the step's rows to its caches.
ExpectedStep expected_step(Step& step);

struct StepVerdict {
  double rel_rms = 0, cosine = 1;
  std::string failure;  ///< empty = right
};

/// `out` bf16 [T, Hq * D], poisoned with NaN before the step; rows of the caches [T, Hkv, D]. Right
/// where no element is NaN, relRMS is at most 3e-2, the cosine at least 0.998, and of the caches'
/// codes at most 2e-5 of them (at least two) differ, by one step each.
StepVerdict judge_step(const Step& step, const ExpectedStep& expected, const uint16_t* out,
                       const uint8_t* k_rows, const uint8_t* v_rows);

}  // namespace muse::reference
