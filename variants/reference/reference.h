// SPDX-License-Identifier: Apache-2.0
// What is right: the emulation of prepare to the byte, and float64 attention, combine and gate. All
// pointers in Buffers are host memory here.
#pragma once

#include <cstdint>
#include <vector>

#include "variants/buffers.h"
#include "variants/lengths.h"
#include "variants/problem.h"

namespace muse::reference {

/// q8 [T, Hq, D], k8 and v8 [T, Hkv, D] of the step's tokens; the cache is not touched.
struct Prepared {
  std::vector<uint8_t> q8, k8, v8;
};
/// Roundings as the kernels must have them (f32 arithmetic, bf16 after norm, RoPE and division).
Prepared prepare(const Problem& problem, const Buffers& in);

/// Writes k8, v8 to rows cache_loc of in.k_cache, in.v_cache.
void store(const Problem& problem, const Prepared& prepared, const Buffers& in);

/// One (request, query head) pair: L output rows.
struct Pair {
  int64_t request;
  int64_t head;
  auto operator<=>(const Pair&) const = default;
};

/// All pairs where the work (sum of attended keys over pairs and queries) is at most `budget`; else
/// a seeded sample of about that much work plus every pair of every request of at most 64 tokens.
/// At least one pair of the longest request is in it. Ordered.
std::vector<Pair> sample_pairs(const Problem& problem, const Buffers& in, int64_t budget,
                               uint64_t seed);

/// Attention of the pairs: o double [pairs, L, D] before any rounding, lse double base 2 [pairs, L]
/// (-inf and 0 for a fully masked query). Reads q8 and the cache after the store, attended rows
/// only.
struct Attention {
  std::vector<double> o;
  std::vector<double> lse;
};
Attention attention(const Problem& problem, const Buffers& in, const uint8_t* q8,
                    const std::vector<Pair>& pairs);

/// The same at FA3's precision: P = E4(exp2((s - max) * log2 e + 8)), f32 accumulation and row sum,
/// one split, output rounded to bf16. Its error is the yardstick of gate 3.
Attention attention_fa3(const Problem& problem, const Buffers& in, const uint8_t* q8,
                        const std::vector<Pair>& pairs);

/// O from Partials in float64: [T, Hq, D]; splits at or beyond n_splits[b] are not read, partials
/// of empty splits (lse = -inf) neither; 0 where all are empty, NaN where n_splits[b] is not
/// in 1..S.
std::vector<double> combine(const Problem& problem, const Buffers& in);

/// out from O and qkv in float64: [T, Hq, D].
std::vector<double> gate(const Problem& problem, const Buffers& in, const uint16_t* o);

}  // namespace muse::reference
