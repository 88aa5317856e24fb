// SPDX-License-Identifier: Apache-2.0
// Vectorised prepare of one token: all its heads, the cache rows included.
#pragma once

#include <cstdint>

#include "variants/buffers.h"
#include "variants/host/row_kernels.h"

namespace muse::host {

/// What prepare reads and writes, and the sizes it needs.
struct PrepareInputs {
  int64_t tokens, num_q_heads, num_kv_heads, head_dim, qkv_width;
  const uint16_t* qkv;       // bf16 [T, (2*Hq+2*Hkv)*D]
  const int64_t* positions;  // [T]
  const int64_t* cache_loc;  // [T]
  const float* k_scale;      // [1]
  const float* v_scale;      // [1]
  const float* cos_sin;      // f32 [positions, D], null without RoPE
  uint8_t* k_cache;          // e4m3 [pages, ps, Hkv, D]
  uint8_t* v_cache;          // e4m3 [pages, ps, Hkv, D]
  uint8_t* q8;               // e4m3 [T, Hq, D]
};

inline PrepareInputs prepare_inputs(const Problem& problem, const Buffers& buffers, uint8_t* q8) {
  return {.tokens = problem.tokens(),
          .num_q_heads = problem.num_q_heads,
          .num_kv_heads = problem.num_kv_heads,
          .head_dim = problem.head_dim,
          .qkv_width = problem.qkv_width(),
          .qkv = buffers.qkv,
          .positions = buffers.positions,
          .cache_loc = buffers.cache_loc,
          .k_scale = buffers.k_scale,
          .v_scale = buffers.v_scale,
          .cos_sin = problem.rope() ? buffers.cos_sin : nullptr,
          .k_cache = buffers.k_cache,
          .v_cache = buffers.v_cache,
          .q8 = q8};
}

inline void prepare_token(const RowKernels& kernels, const PrepareInputs& in, int64_t token) {
  const int64_t dim = in.head_dim;
  const uint16_t* q = in.qkv + token * in.qkv_width;
  const uint16_t* k = q + in.num_q_heads * dim;
  const uint16_t* v = k + in.num_kv_heads * dim;
  const float* cos_sin = in.cos_sin == nullptr ? nullptr : in.cos_sin + in.positions[token] * dim;
  for (int64_t head = 0; head < in.num_q_heads; ++head) {
    kernels.norm_rope_quantise(q + head * dim, cos_sin, 1.0F, dim,
                               in.q8 + (token * in.num_q_heads + head) * dim);
  }
  const int64_t row = in.cache_loc[token] * in.num_kv_heads * dim;
  for (int64_t head = 0; head < in.num_kv_heads; ++head) {
    kernels.norm_rope_quantise(k + head * dim, cos_sin, *in.k_scale, dim,
                               in.k_cache + row + head * dim);
    kernels.quantise(v + head * dim, *in.v_scale, dim, in.v_cache + row + head * dim);
  }
}

}  // namespace muse::host
