// SPDX-License-Identifier: Apache-2.0
// Ranges of tokens and their pieces.
#include "tests/bench/gather_pieces.h"

#include <algorithm>

namespace muse::bench {

std::vector<TokenRange> attended(const std::vector<int64_t>& contexts, int64_t q_len,
                                 int64_t window) {
  std::vector<TokenRange> ranges;
  for (const int64_t context : contexts) {
    const int64_t first_query = context - q_len;
    ranges.push_back({window == 0 ? 0 : std::max<int64_t>(0, first_query + 1 - window), context});
  }
  return ranges;
}

int64_t tokens(const std::vector<TokenRange>& ranges) {
  int64_t sum = 0;
  for (const TokenRange& range : ranges) sum += range.count();
  return sum;
}

std::vector<GatherPiece> cut(const std::vector<TokenRange>& ranges, int64_t blocks,
                             int64_t rows_at_once) {
  std::vector<GatherPiece> pieces;
  const int64_t all = std::max<int64_t>(tokens(ranges), 1);
  for (size_t b = 0; b < ranges.size(); ++b) {
    const TokenRange& range = ranges[b];
    if (range.count() == 0) continue;
    // Rounded down: one block more than the chip holds would run alone behind all others.
    const int64_t share = std::max<int64_t>(1, range.count() * blocks / all);
    const int64_t useful = (range.count() + rows_at_once - 1) / rows_at_once;
    const int64_t parts = std::min(share, useful);
    const int64_t whole = (range.count() + parts - 1) / parts;
    const int64_t size = (whole + rows_at_once - 1) / rows_at_once * rows_at_once;
    for (int64_t first = range.first; first < range.end; first += size) {
      pieces.push_back({static_cast<int32_t>(b), static_cast<int32_t>(first),
                        static_cast<int32_t>(std::min(size, range.end - first))});
    }
  }
  return pieces;
}

}  // namespace muse::bench
