// SPDX-License-Identifier: Apache-2.0
// The part of CUDA C++ that kernels use, for a host compiler; included before everything else.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/simt/machine.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
// One block at a time on an OS thread. The emulator poisons the library's thread_local memory.
#define __shared__ static thread_local
#define __align__(bytes) __attribute__((aligned(bytes)))

// __thread: no wrapper function for an initialiser, which these do not have.
#define MUSE_SIMT_INDEX extern __thread muse::simt::Index
MUSE_SIMT_INDEX threadIdx __attribute__((tls_model("initial-exec")));
MUSE_SIMT_INDEX blockIdx __attribute__((tls_model("initial-exec")));
MUSE_SIMT_INDEX blockDim __attribute__((tls_model("initial-exec")));
MUSE_SIMT_INDEX gridDim __attribute__((tls_model("initial-exec")));
inline constexpr int warpSize = muse::simt::kWarp;

namespace muse::simt {

struct Shuffle {
  uint64_t value = 0, result = 0;
  unsigned source = 0;  ///< lane
};
inline void shuffle_lanes(Shuffle* const* lanes, unsigned /*mask*/) {
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if (!lanes[lane]) continue;
    const Shuffle* source = lanes[lanes[lane]->source];
    // What a lane that does not take part would have given is undefined: poison.
    lanes[lane]->result = source ? source->value : ~uint64_t{0};
  }
}
template <class T>
T shuffle(const char* operation, unsigned mask, T value, unsigned source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
  Shuffle operand;
  operand.source = source;
  std::memcpy(&operand.value, &value, sizeof value);
  warp_collective<Shuffle, shuffle_lanes>(operation, mask, operand);
  std::memcpy(&value, &operand.result, sizeof value);
  return value;
}
inline unsigned segment_begin(int width) { return lane_id() & ~(static_cast<unsigned>(width) - 1); }
inline unsigned segment_last(int width) { return lane_id() | (static_cast<unsigned>(width) - 1); }

struct Vote {
  bool predicate = false;
  unsigned ballot = 0;
};
inline void vote_lanes(Vote* const* lanes, unsigned /*mask*/) {
  unsigned ballot = 0;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if (lanes[lane] && lanes[lane]->predicate) ballot |= 1U << lane;
  }
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if (lanes[lane]) lanes[lane]->ballot = ballot;
  }
}
inline unsigned vote(const char* operation, unsigned mask, bool predicate) {
  Vote operand;
  operand.predicate = predicate;
  warp_collective<Vote, vote_lanes>(operation, mask, operand);
  return operand.ballot;
}

struct Nothing {};
inline void no_lanes(Nothing* const*, unsigned) {}

inline float rsqrt_f32(float x) { return 1.0F / std::sqrt(x); }

}  // namespace muse::simt

inline void __syncthreads() { muse::simt::block_barrier(0); }
inline int __syncthreads_count(int predicate) { return muse::simt::block_barrier(predicate); }
inline int __syncthreads_or(int predicate) { return muse::simt::block_barrier(predicate) != 0; }
inline void __syncwarp(unsigned mask = muse::simt::kAllLanes) {
  muse::simt::Nothing nothing;
  muse::simt::warp_collective<muse::simt::Nothing, muse::simt::no_lanes>("__syncwarp", mask,
                                                                         nothing);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize) {
  const unsigned within = static_cast<unsigned>(source) & (static_cast<unsigned>(width) - 1);
  return muse::simt::shuffle("__shfl_sync", mask, value, muse::simt::segment_begin(width) | within);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
  const unsigned lane = muse::simt::lane_id();
  const bool outside = lane < muse::simt::segment_begin(width) + delta;
  return muse::simt::shuffle("__shfl_up_sync", mask, value, outside ? lane : lane - delta);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
  const unsigned lane = muse::simt::lane_id();
  const bool outside = lane + delta > muse::simt::segment_last(width);
  return muse::simt::shuffle("__shfl_down_sync", mask, value, outside ? lane : lane + delta);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize) {
  const unsigned lane = muse::simt::lane_id();
  const unsigned source = lane ^ static_cast<unsigned>(lane_mask);
  const bool outside = source > muse::simt::segment_last(width);
  return muse::simt::shuffle("__shfl_xor_sync", mask, value, outside ? lane : source);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return muse::simt::vote("__ballot_sync", mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) {
  return muse::simt::vote("__any_sync", mask, predicate != 0) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return muse::simt::vote("__all_sync", mask, predicate == 0) == 0;
}

/// Blocks run on several OS threads.
inline int atomicAdd(int* address, int value) {
  return __atomic_fetch_add(address, value, __ATOMIC_ACQ_REL);
}
inline unsigned atomicAdd(unsigned* address, unsigned value) {
  return __atomic_fetch_add(address, value, __ATOMIC_ACQ_REL);
}

template <class T>
T __ldg(const T* address) {
  return *address;
}

// A macro: newer C libraries have a function of this name.
#define rsqrtf(x) muse::simt::rsqrt_f32(x)
