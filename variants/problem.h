// SPDX-License-Identifier: Apache-2.0
// What is asked of the kernels: structure and capacity of one decode step, without the lengths.
#pragma once

#include <cstdint>

namespace muse {

/// Structure and capacity of one problem. `supports` and `geometry` of a variant see this and
/// nothing of the lengths, so that a captured graph stays right for any length up to the capacity.
struct Problem {
  int64_t batch = 1;         ///< B, requests
  int64_t q_len = 1;         ///< L, query tokens per request
  int64_t num_q_heads = 16;  ///< Hq
  int64_t num_kv_heads = 2;  ///< Hkv, divides Hq
  int64_t head_dim = 64;     ///< D
  int64_t page_size = 1;     ///< ps, cache rows per page
  int64_t window = 0;        ///< tokens a query sees, itself included; 0 = all
  double rope_theta = 0;     ///< 0 = no RoPE
  double qk_scale_factor = 5.473;
  double sm_scale = 0.125;
  double kv_scale = 1;      ///< value of k_scale and v_scale
  int64_t max_context = 0;  ///< capacity in tokens = max_pages * page_size

  bool operator==(const Problem&) const = default;

  int64_t tokens() const { return batch * q_len; }               ///< T
  int64_t group() const { return num_q_heads / num_kv_heads; }   ///< G
  int64_t max_pages() const { return max_context / page_size; }  ///< columns of page_table
  int64_t qkv_width() const { return (2 * num_q_heads + 2 * num_kv_heads) * head_dim; }
  bool windowed() const { return window > 0; }
  bool rope() const { return rope_theta != 0; }
  bool scaled() const { return kv_scale != 1; }
  /// c of the softmax without k_scale: f32(sm_scale * qk_scale_factor).
  float softmax_scale() const { return static_cast<float>(sm_scale * qk_scale_factor); }
};

}  // namespace muse
