// SPDX-License-Identifier: Apache-2.0
// Which cache rows a decode step's attention must read, cut into pieces for the blocks of a gather.
// Also read by nvcc: C++17.
#pragma once

#include <cstdint>
#include <vector>

namespace muse::bench {

/// Tokens [first, end) of one request, by logical position.
struct TokenRange {
  int64_t first = 0, end = 0;
  int64_t count() const { return end - first; }
};

/// Tokens of one request that one block reads, in this order.
struct GatherPiece {
  int32_t request = 0, first = 0, count = 0;
};

/// Per request of these contexts (tokens, new ones included) what the `q_len` last tokens attend
/// to; `window`: tokens that each sees, itself included; 0 = all.
std::vector<TokenRange> attended(const std::vector<int64_t>& contexts, int64_t q_len,
                                 int64_t window);

/// The ranges cut into at most `blocks` pieces (but one per request that reads anything), request
/// by request, each request into equal pieces by its share of the tokens; none smaller than
/// `rows_at_once` where the request is not.
std::vector<GatherPiece> cut(const std::vector<TokenRange>& ranges, int64_t blocks,
                             int64_t rows_at_once);

/// Sum over the ranges.
int64_t tokens(const std::vector<TokenRange>& ranges);

}  // namespace muse::bench
