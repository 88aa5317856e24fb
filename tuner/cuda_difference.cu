// SPDX-License-Identifier: Apache-2.0
// The first byte in which two pieces of device memory differ: 16 bytes a thread and turn, the least
// offset kept by an atomic.
#include <cuda_runtime.h>

#include "tuner/cuda_difference.h"

namespace muse::tuner {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlocks = 1024;  // enough to fill any device; the rest is the grid's stride

__device__ int first_byte(uint32_t difference) {
  return (__ffs(static_cast<int>(difference)) - 1) / 8;
}

__device__ int first_byte(const uint4& x, const uint4& y) {
  const uint32_t difference[4] = {x.x ^ y.x, x.y ^ y.y, x.z ^ y.z, x.w ^ y.w};
  for (int i = 0; i < 4; ++i) {
    if (difference[i] != 0) return 4 * i + first_byte(difference[i]);
  }
  return -1;
}

__device__ int first_byte(uint8_t x, uint8_t y) { return x == y ? -1 : 0; }

template <class Word>
__global__ void compare(const Word* a, const Word* b, int64_t words, int64_t offset,
                        unsigned long long* result) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += stride) {
    const int byte = first_byte(a[i], b[i]);
    if (byte < 0) continue;
    atomicMin(result, static_cast<unsigned long long>(offset + i * int64_t{sizeof(Word)} + byte));
    return;  // this thread's later words lie behind
  }
}

template <class Word>
int launch(const void* a, const void* b, int64_t begin, int64_t end, unsigned long long* result,
           cudaStream_t stream) {
  const int64_t words = (end - begin) / int64_t{sizeof(Word)};
  if (words == 0) return cudaSuccess;
  const int64_t wanted = (words + kThreads - 1) / kThreads;
  compare<<<static_cast<unsigned>(wanted < kBlocks ? wanted : kBlocks), kThreads, 0, stream>>>(
      reinterpret_cast<const Word*>(static_cast<const uint8_t*>(a) + begin),
      reinterpret_cast<const Word*>(static_cast<const uint8_t*>(b) + begin), words, begin, result);
  return cudaGetLastError();
}

}  // namespace

int enqueue_first_difference(const void* a, const void* b, int64_t bytes,
                             unsigned long long* result, CUstream_st* stream) {
  const bool aligned =
      (reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b)) % sizeof(uint4) == 0;
  const int64_t whole = aligned ? bytes / int64_t{sizeof(uint4)} * int64_t{sizeof(uint4)} : 0;
  const int error = launch<uint4>(a, b, 0, whole, result, stream);
  return error != cudaSuccess ? error : launch<uint8_t>(a, b, whole, bytes, result, stream);
}

}  // namespace muse::tuner
