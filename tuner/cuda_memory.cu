// SPDX-License-Identifier: Apache-2.0
// A block a piece, 16 bytes a thread and turn where addresses allow; of differences the least
// position is kept by an atomic.
#include <cuda_runtime.h>

#include "tuner/cuda_memory.h"

namespace muse::tuner {
namespace {

constexpr int kThreads = 256;

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

__device__ uint4 spread(uint32_t byte, const uint4&) {
  const uint32_t word = byte * 0x01010101U;
  return {word, word, word, word};
}
__device__ uint8_t spread(uint32_t byte, const uint8_t&) { return static_cast<uint8_t>(byte); }

/// Calls visit(at, wanted word at) for the piece's words of that type from byte `begin` to `end`.
template <class Word, class Visit>
__device__ void each(const MemoryPiece& piece, uint32_t begin, uint32_t end, const Visit& visit) {
  const auto* source = static_cast<const uint8_t*>(piece.source);
  for (uint32_t at = begin + threadIdx.x * sizeof(Word); at + sizeof(Word) <= end;
       at += kThreads * sizeof(Word)) {
    const Word wanted =
        source ? *reinterpret_cast<const Word*>(source + at) : spread(piece.byte, Word());
    if (!visit(at, wanted)) return;
  }
}

/// The bytes up to which words of 16 go.
__device__ uint32_t whole_words(const MemoryPiece& piece) {
  const auto addresses =
      reinterpret_cast<uintptr_t>(piece.target) | reinterpret_cast<uintptr_t>(piece.source);
  return addresses % sizeof(uint4) == 0 ? piece.bytes / 16 * 16 : 0;
}

__global__ void __launch_bounds__(kThreads) put(const MemoryPiece* pieces) {
  const MemoryPiece piece = pieces[blockIdx.x];
  auto* target = static_cast<uint8_t*>(piece.target);
  const uint32_t whole = whole_words(piece);
  each<uint4>(piece, 0, whole, [&](uint32_t at, const uint4& wanted) {
    *reinterpret_cast<uint4*>(target + at) = wanted;
    return true;
  });
  each<uint8_t>(piece, whole, piece.bytes, [&](uint32_t at, uint8_t wanted) {
    target[at] = wanted;
    return true;
  });
}

__global__ void __launch_bounds__(kThreads)
    compare(const MemoryPiece* pieces, unsigned long long* result) {
  const MemoryPiece piece = pieces[blockIdx.x];
  const auto* got = static_cast<const uint8_t*>(piece.target);
  const uint32_t whole = whole_words(piece);
  // A thread's later words lie behind its first difference.
  const auto found = [&](uint32_t at, int byte) {
    if (byte < 0) return true;
    atomicMin(result, static_cast<unsigned long long>(piece.position + at + byte));
    return false;
  };
  each<uint4>(piece, 0, whole, [&](uint32_t at, const uint4& wanted) {
    return found(at, first_byte(*reinterpret_cast<const uint4*>(got + at), wanted));
  });
  each<uint8_t>(piece, whole, piece.bytes, [&](uint32_t at, uint8_t wanted) {
    return found(at, first_byte(got[at], wanted));
  });
}

}  // namespace

int enqueue_put(const MemoryPiece* pieces, int64_t count, CUstream_st* stream) {
  put<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(pieces);
  return cudaGetLastError();
}

int enqueue_first_difference(const MemoryPiece* pieces, int64_t count, unsigned long long* result,
                             CUstream_st* stream) {
  compare<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(pieces, result);
  return cudaGetLastError();
}

}  // namespace muse::tuner
