// SPDX-License-Identifier: Apache-2.0
// What a host gate reads and writes.
#pragma once

#include <cstdint>

#include "variants/buffers.h"

namespace muse::host {

struct GateArgs {
  int64_t tokens, num_q_heads, num_kv_heads, head_dim, qkv_width;
  const uint16_t* qkv;  // bf16 [T, (2*Hq+2*Hkv)*D]
  const uint16_t* o;    // bf16 [T, Hq, D]
  uint16_t* out;        // bf16 [T, Hq*D]
  int threads;

  /// The gate of a token's head, behind its q, k and v heads.
  const uint16_t* gate(int64_t token, int64_t head) const {
    return qkv + token * qkv_width + (num_q_heads + 2 * num_kv_heads + head) * head_dim;
  }
};

inline GateArgs gate_args(const Problem& problem, const Buffers& buffers, int64_t threads) {
  return {.tokens = problem.tokens(),
          .num_q_heads = problem.num_q_heads,
          .num_kv_heads = problem.num_kv_heads,
          .head_dim = problem.head_dim,
          .qkv_width = problem.qkv_width(),
          .qkv = buffers.qkv,
          .o = buffers.o,
          .out = buffers.out,
          .threads = static_cast<int>(threads)};
}

}  // namespace muse::host
