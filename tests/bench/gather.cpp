// SPDX-License-Identifier: Apache-2.0
// What of the gather the host can say by itself.
#include "tests/bench/gather.h"

#include <cstring>

namespace muse::bench {

std::vector<GatherGeometry> gather_geometries() {
  std::vector<GatherGeometry> all;
  for (const int unroll : {2, 4})
    for (const int threads : {128, 256, 512})
      for (const int waves : {1, 2, 4}) all.push_back({unroll, threads, waves});
  return all;
}

int64_t rows_at_once(const GatherGeometry& geometry) {
  return geometry.threads * int64_t{16} / kGatherRowBytes;
}

uint32_t sum_of_rows(const std::vector<int32_t>& page_table, const GatherCaches& caches,
                     const std::vector<uint8_t>& cache, const std::vector<TokenRange>& ranges) {
  uint32_t sum = 0;
  for (size_t b = 0; b < ranges.size(); ++b) {
    const int32_t* pages = &page_table[b * static_cast<size_t>(caches.max_pages)];
    for (int64_t t = ranges[b].first; t < ranges[b].end; ++t) {
      const int64_t row = pages[t / caches.page_size] * caches.page_size + t % caches.page_size;
      const uint8_t* at = &cache[static_cast<size_t>(row * kGatherRowBytes)];
      for (int64_t i = 0; i < kGatherRowBytes; i += 4) {
        uint32_t word = 0;
        std::memcpy(&word, at + i, sizeof(word));
        sum += word;
      }
    }
  }
  return sum;
}

}  // namespace muse::bench
