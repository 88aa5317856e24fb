// SPDX-License-Identifier: Apache-2.0
// Pieces of requests dealt out over CTAs that know the number of each request's pieces and their
// own place among all CTAs, and nothing else.
#pragma once

#include "variants/device/ptx.cuh"
#include "variants/device/rows.cuh"
#include "variants/device/types.h"

namespace muse::device {

/// A piece of a request: number `index` of its `count`. Where there are fewer pieces than the CTA's
/// place asks for, count is 0.
struct alignas(16) DealtPiece {
  int32_t request, index, count;
  int32_t total;  // pieces of all requests
};

#if defined(MUSE_DEVICE_CODE)

/// Requests that a lane looks at together, in turns of 32 lanes: their numbers differ by 32.
inline constexpr int kDealtTogether = 4;
inline constexpr int kDealtInTurn = 32 * kDealtTogether;

/// Piece number `place` of all requests' pieces, for one whole warp: lane l counts those of
/// requests l, l + 32, ..., and lanes follow one another. count(request): pieces of it, at least 1,
/// and 0 from `requests` on; asked twice. The lane that finds the piece writes it to `piece`, in
/// shared memory. Written for few instructions: it runs once.
template <class Count>
__device__ __forceinline__ void deal_piece(int place, int requests, const Count& count,
                                           DealtPiece* piece) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int own = 0;
#pragma unroll 1
  for (int first = lane; first < requests; first += kDealtInTurn) {
#pragma unroll
    for (int i = 0; i < kDealtTogether; ++i) own += count(first + 32 * i);
  }
  int after = own;  // all before the next lane's
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int below = __shfl_up_sync(kWholeWarp, after, distance);
    if (lane >= distance) after += below;
  }
  const int total = __shfl_sync(kWholeWarp, after, 31);
  int index = place - (after - own);
  if (lane == 0 && place >= total) *piece = {0, 0, 0, total};
  if (index < 0 || index >= own) return;
  int request = -1, pieces = 0;
#pragma unroll 1
  for (int first = lane; request < 0; first += kDealtInTurn) {
    int of[kDealtTogether];
#pragma unroll
    for (int i = 0; i < kDealtTogether; ++i) of[i] = count(first + 32 * i);
#pragma unroll
    for (int i = 0; i < kDealtTogether; ++i) {
      if (request >= 0) continue;
      if (index < of[i]) {
        request = first + 32 * i;
        pieces = of[i];
      } else {
        index -= of[i];
      }
    }
  }
  *piece = {request, index, pieces, total};
}

/// The same, its request in a register that the whole warp shares: as the compiler knows, a sum over
/// the warp is the same in all lanes.
__device__ __forceinline__ DealtPiece same_in_warp(DealtPiece piece) {
  piece.request = sum_of_warp(threadIdx.x % 32 == 0 ? piece.request : 0);
  return piece;
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::device
