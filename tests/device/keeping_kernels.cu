// SPDX-License-Identifier: Apache-2.0
// Reads with an eviction hint, and their twins without.
#include <cuda_runtime.h>

#include "profiler/device_error.h"
#include "tests/device/keeping_kernels.h"

namespace muse::profiler {

constexpr int kKeepingThreads = 256;
constexpr int kKeepingBlocks = 1056;
constexpr uint32_t kNeverTheSum = 0x01020408;

template <bool kKeep>
__global__ void __launch_bounds__(kKeepingThreads)
    hinted_read(const uint4* data, int64_t count, uint32_t* sink) {
  uint64_t policy;
  if constexpr (kKeep) {
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  }
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * kKeepingThreads;
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * kKeepingThreads + threadIdx.x; i < count; i += stride) {
    uint4 v;
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(data + i), "l"(policy));
    sum ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == kNeverTheSum) *sink = sum;
}

void launch_hinted_read(CUstream_st* stream, const void* data, int64_t bytes, uint32_t* sink,
                        bool keep) {
  const auto* words = static_cast<const uint4*>(data);
  if (keep) {
    hinted_read<true><<<kKeepingBlocks, kKeepingThreads, 0, stream>>>(words, bytes / 16, sink);
  } else {
    hinted_read<false><<<kKeepingBlocks, kKeepingThreads, 0, stream>>>(words, bytes / 16, sink);
  }
  check_cuda(cudaGetLastError(), "launch");
}

const void* hinted_read_entry(bool keep) {
  return keep ? reinterpret_cast<const void*>(hinted_read<true>)
              : reinterpret_cast<const void*>(hinted_read<false>);
}

}  // namespace muse::profiler
