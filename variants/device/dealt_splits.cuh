// SPDX-License-Identifier: Apache-2.0
// Splits of all requests dealt out over the CTAs that a chip has room for: longer requests get more
// of them. Each CTA finds its own from the lengths alone, before it does anything else.
#pragma once

#include "variants/device/attention_keys.cuh"
#include "variants/device/dealing.cuh"

namespace muse::device {

/// Their units wait in shared memory that the loop has other use for.
inline constexpr int kMostDealtRequests = 1024;
/// Units of all requests together: so 32 bits count their sums.
inline constexpr int64_t kMostDealtUnits = int64_t{1} << 30;

#if defined(MUSE_DEVICE_CODE)

/// How many pieces a request of `units` units makes, at so many units to a piece (`per_unit` is the
/// reciprocal; 0: one piece); none without units. Exact up to 2^21 units and off by little beyond,
/// but the same for all that ask: which is what counts.
__device__ __forceinline__ int dealt_pieces(int units, float per_unit, int capacity) {
  const float pieces = (static_cast<float>(units) - 0.5F) * per_unit;
  return units == 0 ? 0 : smaller(capacity, 1 + static_cast<int>(pieces));
}

/// Split number piece.index of the piece.count that its request's keys are cut into: whole units of
/// kTokens keys, their numbers differ by one at most.
template <int kTokens>
__device__ __forceinline__ KeyRange dealt_keys(KeyRange keys, const DealtPiece& piece) {
  const auto units = static_cast<uint32_t>(ceil_div(keys.end - keys.begin, kTokens));
  const auto count = static_cast<uint32_t>(piece.count);
  const int each = static_cast<int>(units / count), more = static_cast<int>(units % count);
  const int begin = keys.begin + (piece.index * each + smaller(piece.index, more)) * kTokens;
  return {begin, smaller(begin + (each + (piece.index < more ? 1 : 0)) * kTokens, keys.end)};
}

/// Of a CTA of kWarps warps. A request has kCapacity splits at most, and no more than give every
/// warp a unit.
template <int kWarps, int kCapacity>
class SplitDealer {
 public:
  /// In shared memory, until deal() has returned.
  struct Scratch {
    float per_unit[32];  // of each size that is tried
    int32_t ctas[32];    // that it takes
    int32_t units[kMostDealtRequests];
  };

  /// The split of CTA number `place` of `ctas`, which are no fewer than the requests; in all
  /// threads of the CTA. units(request): at least 1. `piece` too lies in shared memory, behind
  /// `scratch`.
  template <class Units>
  static __device__ __forceinline__ void deal(int place, int ctas, int requests, const Units& units,
                                              Scratch& scratch, DealtPiece* piece) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (int first = thread; first < whole_turns(requests); first += 2 * 32 * kWarps) {
      const int second = first + 32 * kWarps;  // both on their way at a time: no branch before
      const int of_first = units(smaller(first, requests - 1));
      const int of_second = units(smaller(second, requests - 1));
      scratch.units[first] = first < requests ? of_first : 0;
      if (second < whole_turns(requests)) scratch.units[second] = second < requests ? of_second : 0;
    }
    __syncthreads();
    try_sizes(bounds(ctas, requests, scratch), requests, scratch);
    __syncthreads();
    if (thread < 32) {
      const bool too_many = thread < kSizes && scratch.ctas[thread] > ctas;
      const int smallest = sum_of_warp(too_many ? 1 : 0);  // sizes grow, what they take does not
      const float per_unit = smallest < kSizes ? scratch.per_unit[smallest] : 0.0F;
      deal_piece(
          place, requests,
          [&](int request) { return dealt_pieces(scratch.units[request], per_unit, kCapacity); },
          piece);
    }
    __syncthreads();
  }

 private:
  static constexpr int kEach = kWarps < 16 ? (16 + kWarps - 1) / kWarps : 1;
  static constexpr int kSizes = kEach * kWarps;  // that are tried, at even distances
  static_assert(kSizes >= 16 && kSizes <= 32, "a lane reads what one takes");
  static_assert(kMostDealtRequests % kDealtInTurn == 0, "requests are looked at in whole turns");

  /// Units are kept for so many requests; those that do not exist have none.
  static __device__ __forceinline__ int whole_turns(int requests) {
    return ceil_div(requests, kDealtInTurn) * kDealtInTurn;
  }

  struct Sizes {
    float smallest, step;
    /// In whole units.
    __device__ __forceinline__ float size(int i) const {
      return static_cast<float>(static_cast<int>(smallest + static_cast<float>(i) * step));
    }
  };

  /// body(units) of this lane's requests.
  template <class Body>
  static __device__ __forceinline__ void for_each(int requests, const Scratch& scratch,
                                                  const Body& body) {
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x) % 32; first < requests; first += kDealtInTurn) {
#pragma unroll
      for (int i = 0; i < kDealtTogether; ++i) body(scratch.units[first + 32 * i]);
    }
  }

  /// From what all CTAs have on average, which is too little unless it comes out even, to what
  /// suffices, as every request is rounded up by less than one piece.
  static __device__ __forceinline__ Sizes bounds(int ctas, int requests, const Scratch& scratch) {
    int own = 0;
    for_each(requests, scratch, [&](int units) { own += units; });
    const auto all = static_cast<float>(sum_of_warp(own));
    const float average = all * reciprocal_approx(static_cast<float>(ctas));
    const float enough = all * reciprocal_approx(static_cast<float>(larger(1, ctas - requests)));
    const float smallest = fmaxf(average, static_cast<float>(kWarps));
    return {smallest, (fmaxf(enough, smallest) + 1.0F - smallest) * (1.0F / (kSizes - 1))};
  }

  /// Each warp tries kEach sizes.
  static __device__ __forceinline__ void try_sizes(const Sizes& sizes, int requests,
                                                   Scratch& scratch) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first = static_cast<int>(threadIdx.x) / 32 * kEach;
    float per_unit[kEach];
    int taken[kEach] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) per_unit[i] = reciprocal_approx(sizes.size(first + i));
    for_each(requests, scratch, [&](int units) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) taken[i] += dealt_pieces(units, per_unit[i], kCapacity);
    });
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      taken[i] = sum_of_warp(taken[i]);
      if (lane == 0) {
        scratch.per_unit[first + i] = per_unit[i];
        scratch.ctas[first + i] = taken[i];
      }
    }
  }
};

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::device
