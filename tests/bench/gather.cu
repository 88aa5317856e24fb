// SPDX-License-Identifier: Apache-2.0
// Launches of the gather, in a few geometries.
#include <cuda_runtime.h>

#include <stdexcept>

#include "profiler/device_error.h"
#include "tests/bench/gather.h"
#include "tests/bench/gather_kernel.cuh"

namespace muse::bench {
namespace {

using profiler::check_cuda;

using Kernel = void (*)(GatherArguments);

template <bool kSummed>
Kernel kernel_of(const GatherGeometry& geometry) {
  switch (geometry.unroll * 1000 + geometry.threads) {
    case 2128:
      return paged_gather_kernel<2, 128, kSummed>;
    case 2256:
      return paged_gather_kernel<2, 256, kSummed>;
    case 2512:
      return paged_gather_kernel<2, 512, kSummed>;
    case 4128:
      return paged_gather_kernel<4, 128, kSummed>;
    case 4256:
      return paged_gather_kernel<4, 256, kSummed>;
    case 4512:
      return paged_gather_kernel<4, 512, kSummed>;
    default:
      throw std::invalid_argument("no gather of this geometry");
  }
}

void launch(CUstream_st* stream, Kernel kernel, int threads, const GatherCaches& caches,
            const GatherPiece* pieces, int64_t count, uint32_t* sink) {
  const GatherArguments args{static_cast<const uint4*>(caches.k_cache),
                             static_cast<const uint4*>(caches.v_cache),
                             caches.page_table,
                             caches.max_pages,
                             shift_of(caches.page_size),
                             pieces,
                             sink};
  kernel<<<static_cast<unsigned>(count), static_cast<unsigned>(threads), 0, stream>>>(args);
  check_cuda(cudaGetLastError(), "launch of the gather");
}

}  // namespace

int64_t resident_blocks(const GatherGeometry& geometry) {
  int device = 0, multiprocessors = 0, blocks = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  check_cuda(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(
          &blocks, reinterpret_cast<const void*>(kernel_of<false>(geometry)), geometry.threads, 0),
      "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return int64_t{multiprocessors} * blocks;
}

void launch_gather(CUstream_st* stream, const GatherGeometry& geometry, const GatherCaches& caches,
                   const GatherPiece* pieces, int64_t count, uint32_t* sink) {
  launch(stream, kernel_of<false>(geometry), geometry.threads, caches, pieces, count, sink);
}

void launch_summed_gather(CUstream_st* stream, const GatherGeometry& geometry,
                          const GatherCaches& caches, const GatherPiece* pieces, int64_t count,
                          uint32_t* sum) {
  launch(stream, kernel_of<true>(geometry), geometry.threads, caches, pieces, count, sum);
}

}  // namespace muse::bench
