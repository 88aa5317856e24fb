// SPDX-License-Identifier: Apache-2.0
// From whole tensors to the (request, head) pairs that a reference covers.
#pragma once

#include <vector>

#include "tuner/gates.h"
#include "variants/numerics.h"

namespace muse::tuner {

/// Every pair, as a target orders them that computes all.
inline std::vector<reference::Pair> all_pairs(const Problem& p) {
  std::vector<reference::Pair> pairs;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.num_q_heads; ++h) pairs.push_back({b, h});
  }
  return pairs;
}

/// Elements of a [T, Hq, D] buffer in the order of the pairs, [pairs, L, D]; value(i) is element i.
template <class Value>
std::vector<double> of_pairs(const Problem& problem, const std::vector<reference::Pair>& pairs,
                             const Value& value) {
  const auto length = static_cast<size_t>(problem.q_len * problem.head_dim);
  std::vector<double> out(pairs.size() * length);
  double* to = out.data();
  for (const reference::Pair& pair : pairs) {
    for (int64_t i = 0; i < problem.q_len; ++i) {
      const auto from = static_cast<size_t>(head_offset(problem, pair, i));
      for (size_t d = 0; d < static_cast<size_t>(problem.head_dim); ++d) *to++ = value(from + d);
    }
  }
  return out;
}

/// The gate of the exact O, by pair; `in`: the host's inputs.
inline std::vector<double> gated(const Problem& problem, const Buffers& in,
                                 const AttentionTruth& truth) {
  std::vector<uint16_t> o(
      static_cast<size_t>(problem.tokens() * problem.num_q_heads * problem.head_dim));
  size_t next = 0;
  of_pairs(problem, truth.pairs, [&](size_t i) {
    o[i] = f32_to_bf16(static_cast<float>(truth.exact.o[next++]));
    return 0.0;
  });
  const std::vector<double> all = reference::gate(problem, in, o.data());
  return of_pairs(problem, truth.pairs, [&](size_t i) { return all[i]; });
}

}  // namespace muse::tuner
