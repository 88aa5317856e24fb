// SPDX-License-Identifier: Apache-2.0
// muse_selfcheck on a GPU: device memory, and events around a captured graph behind a read that
// leaves nothing of the step in the L2.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "selfcheck_machine.h"

namespace selfcheck {
namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

constexpr int kThreads = 256;
constexpr int64_t kLineBytes = 128;

// As lines to be evicted last, for those that a kernel asked the L2 to keep outlive an ordinary
// read; then made ordinary again.
__global__ void __launch_bounds__(kThreads)
    read_kernel(const uint4* __restrict__ data, int64_t count, uint32_t* sink) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  uint32_t sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(data + i), "l"(policy));
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 1) *sink = sum;  // never: the data are zeros
}

__global__ void __launch_bounds__(kThreads) demote_kernel(const uint8_t* data, int64_t lines) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < lines; i += stride) {
    asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(data + i * kLineBytes));
  }
}

/// Reads twice the L2.
class Flush {
 public:
  Flush() : bytes_(size()), data_(static_cast<std::size_t>(bytes_ + kLineBytes)) {
    check(cudaMemset(data_.data(), 0, static_cast<std::size_t>(bytes_ + kLineBytes)), "cudaMemset");
  }
  void operator()(cudaStream_t stream) const {
    const auto* bytes = static_cast<const uint8_t*>(data_.data());
    auto* sink = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(data_.data()) + bytes_);
    read_kernel<<<kBlocks, kThreads, 0, stream>>>(static_cast<const uint4*>(data_.data()),
                                                  bytes_ / 16, sink);
    demote_kernel<<<kBlocks, kThreads, 0, stream>>>(bytes, bytes_ / kLineBytes);
    check(cudaGetLastError(), "flushing the L2");
  }

 private:
  static constexpr int kBlocks = 1024;
  static int64_t size() {
    int device = 0, l2_bytes = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device),
          "cudaDeviceGetAttribute");
    return 2 * int64_t{l2_bytes} / kLineBytes * kLineBytes;
  }
  int64_t bytes_;
  Memory data_;
};

struct Stream {
  cudaStream_t stream = nullptr;
  Stream() { check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~Stream() { cudaStreamDestroy(stream); }
};

struct Event {
  cudaEvent_t event = nullptr;
  Event() { check(cudaEventCreate(&event), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event); }
};

struct Graph {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  Graph(const Run& run, cudaStream_t stream) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin of capture");
    run(stream);
    check(cudaStreamEndCapture(stream, &graph), "end of capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  }
  ~Graph() {
    if (exec != nullptr) cudaGraphExecDestroy(exec);
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
};

}  // namespace

void choose_device(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }

const char* clock_name() { return "CUDA events around a captured graph, the L2 flushed before"; }
const char* comparison() {
  return "These are two clocks: compare them in order of magnitude only.";
}

Memory::Memory(std::size_t bytes) : data_(nullptr) {
  check(cudaMalloc(&data_, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
}
Memory::~Memory() { cudaFree(data_); }

void upload(void* target, const void* host, std::size_t bytes) {
  check(cudaMemcpy(target, host, bytes, cudaMemcpyHostToDevice), "copy to the device");
}
void download(void* host, const void* target, std::size_t bytes) {
  check(cudaMemcpy(host, target, bytes, cudaMemcpyDeviceToHost), "copy from the device");
}

void run_once(const Run& run) {
  const Stream stream;
  check(cudaDeviceSynchronize(), "copies before a step");  // the stream does not wait for them
  run(stream.stream);
  check(cudaStreamSynchronize(stream.stream), "a step");
}

std::vector<double> times_us(const Run& run, int count) {
  static const Flush flush;
  const Stream stream;
  const Event start, end;
  check(cudaDeviceSynchronize(), "copies before a step");
  const Graph graph(run, stream.stream);
  std::vector<double> times;
  for (int i = -1; i < count; ++i) {  // the first loads what is loaded late
    flush(stream.stream);
    check(cudaEventRecord(start.event, stream.stream), "cudaEventRecord");
    check(cudaGraphLaunch(graph.exec, stream.stream), "cudaGraphLaunch");
    check(cudaEventRecord(end.event, stream.stream), "cudaEventRecord");
    check(cudaStreamSynchronize(stream.stream), "a graph of a step");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start.event, end.event), "cudaEventElapsedTime");
    if (i >= 0) times.push_back(1000.0 * static_cast<double>(milliseconds));
  }
  return times;
}

}  // namespace selfcheck
