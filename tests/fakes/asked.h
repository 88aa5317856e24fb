// SPDX-License-Identifier: Apache-2.0
// Problems and shapes as a caller of the C interface asks for them.
#pragma once

#include <cstdint>
#include <string>

#include "variants/problem.h"
#include "variants/runtime/muse_attention.hpp"

namespace muse::fakes {

/// The key of a shape whose requests all have `context` tokens.
inline std::string uniform_shape(int64_t batch, int64_t context, const std::string& q_len = "l1",
                                 const std::string& heads = "h16x2_d64_ps16",
                                 const std::string& rest = "w0_rope0_kv1") {
  return "b" + std::to_string(batch) + "_" + q_len + "_" + heads + "_" + rest + "_t" +
         std::to_string(context) + "_uniform_random_s1";
}

inline muse_attention_problem problem_of(const Problem& problem) {
  muse_attention_problem asked = attention_problem();
  asked.batch = problem.batch;
  asked.q_len = problem.q_len;
  asked.num_q_heads = problem.num_q_heads;
  asked.num_kv_heads = problem.num_kv_heads;
  asked.head_dim = problem.head_dim;
  asked.page_size = problem.page_size;
  asked.max_pages = problem.max_pages();
  asked.window = problem.window;
  asked.rope_theta = problem.rope_theta;
  asked.qk_scale_factor = problem.qk_scale_factor;
  asked.sm_scale = problem.sm_scale;
  asked.scaled = problem.scaled() ? 1 : 0;
  return asked;
}

}  // namespace muse::fakes
