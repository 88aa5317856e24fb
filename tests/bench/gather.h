// SPDX-License-Identifier: Apache-2.0
// A kernel that reads the cache rows of a decode step and does nothing with them: what attention on
// the same rows can reach at best. Also read by nvcc: C++17.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/bench/gather_pieces.h"

struct CUstream_st;

namespace muse::bench {

/// Eight lanes read a row of K and one of V, 16 bytes each; one row is all heads of a token.
inline constexpr int64_t kGatherRowBytes = 128;

struct GatherGeometry {
  int unroll = 2;  ///< tokens in flight per eight lanes: a row of K and one of V each
  int threads = 256;
  int waves = 1;  ///< blocks over those that the chip holds at once
};
/// Those that can be launched.
std::vector<GatherGeometry> gather_geometries();
/// By one block, of K and of V each, in one step.
int64_t rows_at_once(const GatherGeometry& geometry);

/// Where the rows lie, on the device; fewer than 2^29 of them.
struct GatherCaches {
  const void* k_cache;        // [pages, page_size, 128]
  const void* v_cache;        // [pages, page_size, 128]
  const int32_t* page_table;  // [requests, max_pages]
  int64_t max_pages;
  int64_t page_size;  ///< a power of two
};

/// log2 of a page size.
inline int shift_of(int64_t page_size) {
  int shift = 0;
  while ((int64_t{1} << shift) < page_size) ++shift;
  return shift;
}
/// The sum of all 32-bit words in one cache's rows of these tokens: what a gather must have read.
/// Everything on the host; of `caches` the sizes are taken.
uint32_t sum_of_rows(const std::vector<int32_t>& page_table, const GatherCaches& caches,
                     const std::vector<uint8_t>& cache, const std::vector<TokenRange>& ranges);

// In a build with CUDA, on the current device: ---------------------------------------------------

/// How many blocks the current device holds at once.
int64_t resident_blocks(const GatherGeometry& geometry);

/// One block per piece; `pieces` lies on the device. Enqueued on `stream`. Throws DeviceError.
void launch_gather(CUstream_st* stream, const GatherGeometry& geometry, const GatherCaches& caches,
                   const GatherPiece* pieces, int64_t count, uint32_t* sink);
/// The same, and the sum of all 32-bit words it has read is added to `sum`.
void launch_summed_gather(CUstream_st* stream, const GatherGeometry& geometry,
                          const GatherCaches& caches, const GatherPiece* pieces, int64_t count,
                          uint32_t* sum);

}  // namespace muse::bench
