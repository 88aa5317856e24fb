// SPDX-License-Identifier: Apache-2.0
// The profiler's own kernels and their launches: nothing, a spin, reads, writes, copies, gathers.
#include <cuda_runtime.h>

#include <algorithm>

#include "profiler/device_error.h"
#include "profiler/device_kernels.h"

namespace muse::profiler {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;        // loads of 16 bytes in flight per thread
constexpr int kGatherUnroll = 2;  // rows, each of K and of V: the same number of loads
constexpr int kRowBytes = 128;
constexpr int kLineBytes = 128;  // of the L2
/// No sum of one repeated byte: its four bytes differ. XOR of equal words gives 0 or the word.
constexpr uint32_t kNeverSummed = 0x01020408;

__device__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ void allow_successor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ void spend(int64_t cycles) {
  const int64_t start = clock64();
  while (clock64() - start < cycles) {
  }
}

__device__ uint32_t fold(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }

__device__ void consume(uint32_t sum, uint32_t* sink) {
  if (sum == kNeverSummed) *sink = sum;
}

/// Of what the grid's threads read together by `load`, this thread's part.
template <class Load>
__device__ uint32_t sum_of(const uint4* data, int64_t count, Load load) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  uint32_t sum = 0;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kUnroll - 1) * stride < count; i += kUnroll * stride) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = load(data + i + u * stride);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum ^= fold(v[u]);
  }
  for (; i < count; i += stride) sum ^= fold(load(data + i));
  return sum;
}

}  // namespace

// Not in the unnamed namespace: the symbols are looked for by name in records.

__global__ void null_kernel() {
  // Without it a chain of programmatic launches would have no order at all.
  wait_for_predecessor();
}

__global__ void spin_kernel(int64_t cycles) { spend(cycles); }

__global__ void link_kernel(int64_t cycles) {
  allow_successor();
  spend(cycles / 2);
  wait_for_predecessor();
  spend(cycles - cycles / 2);
}

__global__ void __launch_bounds__(kThreads)
    read_kernel(const uint4* __restrict__ data, int64_t count, uint32_t* sink) {
  consume(sum_of(data, count, [](const uint4* at) { return __ldcg(at); }), sink);
}

__global__ void __launch_bounds__(kThreads)
    keeping_read_kernel(const uint4* __restrict__ data, int64_t count, uint32_t* sink) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  const auto load = [policy](const uint4* at) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at), "l"(policy));
    return v;
  };
  consume(sum_of(data, count, load), sink);
}

__global__ void __launch_bounds__(kThreads) demote_kernel(const uint8_t* data, int64_t lines) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < lines; i += stride) {
    asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(data + i * kLineBytes));
  }
}

__global__ void __launch_bounds__(kThreads) write_kernel(uint4* data, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    data[i] = make_uint4(0x01010101, 0x01010101, 0x01010101, 0x01010101);
  }
}

__global__ void __launch_bounds__(kThreads)
    copy_kernel(uint4* __restrict__ target, const uint4* __restrict__ source, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kUnroll - 1) * stride < count; i += kUnroll * stride) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = __ldcg(source + i + u * stride);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) target[i + u * stride] = v[u];
  }
  for (; i < count; i += stride) target[i] = __ldcg(source + i);
}

/// kLanes threads of 16 bytes read one row.
template <int kLanes>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const uint4* __restrict__ k_pool, const uint4* __restrict__ v_pool,
                  const int32_t* __restrict__ table, int64_t rows, uint32_t* sink) {
  constexpr int kRowsPerBlock = kThreads / kLanes;
  constexpr int64_t kRowWords = kRowBytes / 16;
  const int lane = threadIdx.x % kLanes;
  const int64_t stride = int64_t{gridDim.x} * kRowsPerBlock;
  uint32_t sum = 0;
  int64_t i = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kLanes;
  for (; i + (kGatherUnroll - 1) * stride < rows; i += kGatherUnroll * stride) {
    int64_t row[kGatherUnroll];
    uint4 k[kGatherUnroll], v[kGatherUnroll];
#pragma unroll
    for (int u = 0; u < kGatherUnroll; ++u)
      row[u] = __ldg(table + i + u * stride) * kRowWords + lane;
#pragma unroll
    for (int u = 0; u < kGatherUnroll; ++u) k[u] = __ldcg(k_pool + row[u]);
#pragma unroll
    for (int u = 0; u < kGatherUnroll; ++u) v[u] = __ldcg(v_pool + row[u]);
#pragma unroll
    for (int u = 0; u < kGatherUnroll; ++u) sum ^= fold(k[u]) ^ fold(v[u]);
  }
  for (; i < rows; i += stride) {
    const int64_t row = __ldg(table + i) * kRowWords + lane;
    sum ^= fold(__ldcg(k_pool + row)) ^ fold(__ldcg(v_pool + row));
  }
  consume(sum, sink);
}

namespace {

const void* entry(OwnKernel kernel) {
  switch (kernel) {
    case OwnKernel::kNull:
      return reinterpret_cast<const void*>(null_kernel);
    case OwnKernel::kSpin:
      return reinterpret_cast<const void*>(spin_kernel);
    case OwnKernel::kLink:
      return reinterpret_cast<const void*>(link_kernel);
    case OwnKernel::kRead:
      return reinterpret_cast<const void*>(read_kernel);
    case OwnKernel::kKeepingRead:
      return reinterpret_cast<const void*>(keeping_read_kernel);
    case OwnKernel::kDemote:
      return reinterpret_cast<const void*>(demote_kernel);
    case OwnKernel::kWrite:
      return reinterpret_cast<const void*>(write_kernel);
    case OwnKernel::kCopy:
      return reinterpret_cast<const void*>(copy_kernel);
    case OwnKernel::kGather128:
      return reinterpret_cast<const void*>(gather_kernel<8>);
    case OwnKernel::kGather64:
      return reinterpret_cast<const void*>(gather_kernel<4>);
  }
  return nullptr;
}

void launch(CUstream_st* stream, OwnKernel kernel, int blocks, int threads, void** args,
            bool programmatic = false) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = programmatic ? 1 : 0;
  check_cuda(cudaLaunchKernelExC(&config, entry(kernel), args), "launch");
}

/// One wave of blocks, or as many as the work has.
void launch_wave(CUstream_st* stream, OwnKernel kernel, int64_t threads_of_work, void** args) {
  int device = 0, multiprocessors = 0, blocks_per_multiprocessor = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_multiprocessor,
                                                           entry(kernel), kThreads, 0),
             "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  const int64_t needed = (threads_of_work + kThreads - 1) / kThreads;
  const int64_t wave = int64_t{multiprocessors} * blocks_per_multiprocessor;
  launch(stream, kernel, static_cast<int>(std::max<int64_t>(1, std::min(needed, wave))), kThreads,
         args);
}

}  // namespace

void launch_null(CUstream_st* stream, bool programmatic) {
  launch(stream, OwnKernel::kNull, 1, 32, nullptr, programmatic);
}

void launch_spin(CUstream_st* stream, int64_t cycles) {
  void* args[] = {&cycles};
  launch(stream, OwnKernel::kSpin, 1, 1, args);
}

void launch_link(CUstream_st* stream, int64_t cycles, bool programmatic) {
  void* args[] = {&cycles};
  launch(stream, OwnKernel::kLink, 1, 32, args, programmatic);
}

void launch_read(CUstream_st* stream, const void* data, int64_t bytes, uint32_t* sink) {
  int64_t count = bytes / 16;
  void* args[] = {&data, &count, &sink};
  launch_wave(stream, OwnKernel::kRead, count, args);
}

void launch_keeping_read(CUstream_st* stream, const void* data, int64_t bytes, uint32_t* sink) {
  int64_t count = bytes / 16;
  void* args[] = {&data, &count, &sink};
  launch_wave(stream, OwnKernel::kKeepingRead, count, args);
}

void launch_demote(CUstream_st* stream, const void* data, int64_t bytes) {
  int64_t lines = bytes / kLineBytes;
  void* args[] = {&data, &lines};
  launch_wave(stream, OwnKernel::kDemote, lines, args);
}

void launch_write(CUstream_st* stream, void* data, int64_t bytes) {
  int64_t count = bytes / 16;
  void* args[] = {&data, &count};
  launch_wave(stream, OwnKernel::kWrite, count, args);
}

void launch_copy(CUstream_st* stream, void* target, const void* source, int64_t bytes) {
  int64_t count = bytes / 16;
  void* args[] = {&target, &source, &count};
  launch_wave(stream, OwnKernel::kCopy, count, args);
}

void launch_gather(CUstream_st* stream, const GatherArgs& args) {
  GatherArgs a = args;
  void* list[] = {&a.k_pool, &a.v_pool, &a.table, &a.rows, &a.sink};
  const bool whole = a.row_bytes == kRowBytes;
  launch_wave(stream, whole ? OwnKernel::kGather128 : OwnKernel::kGather64,
              a.rows * (whole ? 8 : 4), list);
}

std::string symbol(OwnKernel kernel) {
  const char* name = nullptr;
  check_cuda(cudaFuncGetName(&name, entry(kernel)), "cudaFuncGetName");
  return name;
}

}  // namespace muse::profiler
