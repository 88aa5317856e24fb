// SPDX-License-Identifier: Apache-2.0
// The gather of a decode step's rows by its page table, in a few geometries.
#include <cuda_runtime.h>

#include <stdexcept>

#include "profiler/device_error.h"
#include "tests/bench/gather.h"

namespace muse::bench {
namespace {

using profiler::check_cuda;

struct Arguments {
  const uint4* k_cache;
  const uint4* v_cache;
  const int32_t* page_table;
  int64_t max_pages;
  int page_shift;
  const GatherPiece* pieces;
  uint32_t* sink;
};

constexpr int kLanes = kGatherRowBytes / sizeof(uint4);

__device__ uint32_t added(const uint4& v) { return v.x + v.y + v.z + v.w; }

/// Pages of the next step are looked up while the rows of this one are under way.
template <int kUnroll, int kThreads, bool kSummed>
__global__ void __launch_bounds__(kThreads)
    paged_gather_kernel(const __grid_constant__ Arguments args) {
  constexpr int kRows = kThreads / kLanes;
  const GatherPiece piece = args.pieces[blockIdx.x];
  const int32_t* pages = args.page_table + piece.request * args.max_pages;
  const int lane = threadIdx.x % kLanes;
  const int in_page = (1 << args.page_shift) - 1;

  int32_t page[kUnroll];
  const auto look_up = [&](int token) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int t = token + u * kRows;
      page[u] = t < piece.count ? __ldg(pages + ((piece.first + t) >> args.page_shift)) : 0;
    }
  };
  int token = threadIdx.x / kLanes;
  look_up(token);
  uint32_t sum = 0;
  for (; token < piece.count; token += kUnroll * kRows) {
    uint4 k[kUnroll], v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      k[u] = v[u] = make_uint4(0, 0, 0, 0);
      const int t = token + u * kRows;
      if (t < piece.count) {
        const int64_t row = (int64_t{page[u]} << args.page_shift) + ((piece.first + t) & in_page);
        k[u] = __ldcg(args.k_cache + row * kLanes + lane);
        v[u] = __ldcg(args.v_cache + row * kLanes + lane);
      }
    }
    look_up(token + kUnroll * kRows);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum += added(k[u]) + added(v[u]);
  }
  if (kSummed) {
    atomicAdd(args.sink, sum);
  } else if (sum == 0x9E3779B9u) {  // hardly ever, but the loads cannot be left out
    *args.sink = sum;
  }
}

using Kernel = void (*)(Arguments);

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

int shift_of(int64_t page_size) {
  int shift = 0;
  while ((int64_t{1} << shift) < page_size) ++shift;
  return shift;
}

void launch(CUstream_st* stream, Kernel kernel, int threads, const GatherCaches& caches,
            const GatherPiece* pieces, int64_t count, uint32_t* sink) {
  const Arguments args{static_cast<const uint4*>(caches.k_cache),
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

std::vector<GatherGeometry> gather_geometries() {
  std::vector<GatherGeometry> all;
  for (const int unroll : {2, 4})
    for (const int threads : {128, 256, 512})
      for (const int waves : {1, 2, 4}) all.push_back({unroll, threads, waves});
  return all;
}

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
