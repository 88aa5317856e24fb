// SPDX-License-Identifier: Apache-2.0
// Kernels that deal and do nothing else.
#include "tests/simt/dealing_test_kernels.h"

#include "variants/device/dealt_splits.cuh"

namespace muse::simt_test {
namespace {

template <int kWarps>
__global__ void __launch_bounds__(kWarps * 32)
    deal_splits(const __grid_constant__ DealingArgs args) {
  using Dealer = device::SplitDealer<kWarps, capacity_of(kWarps)>;
  __shared__ typename Dealer::Scratch scratch;
  __shared__ device::DealtPiece piece;
  Dealer::deal(
      static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), args.requests,
      [&](int request) {
        return device::larger(1, device::ceil_div(args.keys[request], kUnitKeys));
      },
      scratch, &piece);
  if (threadIdx.x != 32) return;  // not of the warp that found it
  device::KeyRange keys = {0, 0};
  if (piece.count > 0) {
    const int begin = piece.request;
    keys = device::dealt_keys<kUnitKeys>({begin, begin + args.keys[piece.request]}, piece);
  }
  args.out[blockIdx.x] = {piece.request, piece.index, piece.count,
                          piece.total,   keys.begin,  keys.end};
}

}  // namespace

simt::Kernel deal_splits_kernel(int warps) {
  if (warps == 4) return simt::KernelOf<&deal_splits<4>>::kernel();
  if (warps == 8) return simt::KernelOf<&deal_splits<8>>::kernel();
  return simt::KernelOf<&deal_splits<12>>::kernel();
}

}  // namespace muse::simt_test
