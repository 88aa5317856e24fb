// SPDX-License-Identifier: Apache-2.0
#include "profiler/device_cache.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "profiler/device_error.h"
#include "profiler/device_kernels.h"

namespace muse::profiler {
namespace {

/// The launch grid reads in steps of this; also room for the word that keeps the sum alive.
constexpr int64_t kGranularity = int64_t{1} << 20;

}  // namespace

DeviceCache::DeviceCache(CUstream_st* stream) : stream_(stream) {
  int device = 0, l2_bytes = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device),
             "cudaDeviceGetAttribute");
  bytes_ = (2 * int64_t{l2_bytes} + kGranularity - 1) / kGranularity * kGranularity;
  check_cuda(cudaMalloc(&data_, static_cast<size_t>(bytes_ + kGranularity)), "cudaMalloc");
  launch_write(stream_, data_, bytes_);
}

DeviceCache::~DeviceCache() { cudaFree(data_); }

void DeviceCache::flush() {
  auto* sink = reinterpret_cast<uint32_t*>(static_cast<std::byte*>(data_) + bytes_);
  launch_read(stream_, data_, bytes_, sink);
}

std::string DeviceCache::recipe() const { return fmt::format("read {} bytes", bytes_); }

}  // namespace muse::profiler
