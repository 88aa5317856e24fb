// SPDX-License-Identifier: Apache-2.0
// The gather's kernel compiled for the emulator.
#include "tests/bench/gather_emulated.h"

#include <stdexcept>

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
template <class T>
T __ldcg(const T* address) {
  return *address;
}

#include "tests/bench/gather_kernel.cuh"

namespace muse::bench {
namespace {

template <int kUnroll, int kThreads>
simt::Kernel kernel() {
  return simt::KernelOf<&paged_gather_kernel<kUnroll, kThreads, true>>::kernel();
}

simt::Kernel kernel_of(const GatherGeometry& geometry) {
  switch (geometry.unroll * 1000 + geometry.threads) {
    case 2128:
      return kernel<2, 128>();
    case 2256:
      return kernel<2, 256>();
    case 2512:
      return kernel<2, 512>();
    case 4128:
      return kernel<4, 128>();
    case 4256:
      return kernel<4, 256>();
    case 4512:
      return kernel<4, 512>();
    default:
      throw std::invalid_argument("no gather of this geometry");
  }
}

}  // namespace

uint32_t emulated_sum(const GatherGeometry& geometry, const GatherCaches& caches,
                      const std::vector<GatherPiece>& pieces) {
  uint32_t sum = 0;
  const GatherArguments args{static_cast<const uint4*>(caches.k_cache),
                             static_cast<const uint4*>(caches.v_cache),
                             caches.page_table,
                             caches.max_pages,
                             shift_of(caches.page_size),
                             pieces.data(),
                             &sum};
  simt::LaunchShape shape;
  shape.grid.x = static_cast<unsigned>(pieces.size());
  shape.block.x = static_cast<unsigned>(geometry.threads);
  simt::launch(kernel_of(geometry), &args, shape, 1);
  return sum;
}

}  // namespace muse::bench
