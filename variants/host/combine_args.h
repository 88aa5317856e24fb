// SPDX-License-Identifier: Apache-2.0
// What a host combine reads and writes, and the weights of its splits.
#pragma once

#include <array>
#include <cstdint>

#include "variants/host/partials.h"
#include "variants/variant.h"

namespace muse::host {

inline constexpr int64_t kMaxSplits = 64;

struct CombineArgs {
  int64_t batch, q_len, num_q_heads, head_dim;
  Partials partials;
  uint16_t* o;  // bf16 [T, Hq, D]
  int threads;

  int64_t tokens() const { return batch * q_len; }
  /// Row of partials of a split, token and head.
  int64_t row(int64_t split, int64_t token, int64_t head) const {
    return (split * tokens() + token) * num_q_heads + head;
  }
};

inline CombineArgs combine_args(const Problem& problem, const Buffers& buffers, int64_t threads) {
  return {.batch = problem.batch,
          .q_len = problem.q_len,
          .num_q_heads = problem.num_q_heads,
          .head_dim = problem.head_dim,
          .partials = partials_of(buffers),
          .o = buffers.o,
          .threads = static_cast<int>(threads)};
}

/// The splits' weights for one token and head: 2^(lse - max) over their sum, exactly 0 for a split
/// whose log-sum-exp is -infinity; such a split's partial must not be read. All 0 where every one
/// is.
struct SplitWeights {
  int64_t count;
  std::array<float, kMaxSplits> weight;
};
SplitWeights split_weights(const CombineArgs& args, int64_t token, int64_t head);

}  // namespace muse::host
