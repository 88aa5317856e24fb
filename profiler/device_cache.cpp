// SPDX-License-Identifier: Apache-2.0
// Flushes the L2 of the current device by reading a buffer of twice its size, as lines to be
// evicted last: those that kernels asked it to keep outlive an ordinary read in part.
#include "profiler/device_cache.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "profiler/device_error.h"
#include "profiler/device_kernels.h"

namespace muse::profiler {
namespace {

constexpr int64_t kMegabyte = int64_t{1} << 20;

int64_t flush_bytes() {
  int device = 0, l2_bytes = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device),
             "cudaDeviceGetAttribute");
  return (2 * int64_t{l2_bytes} + kMegabyte - 1) / kMegabyte * kMegabyte;
}

}  // namespace

void reset_persisting() {
  check_cuda(cudaCtxResetPersistingL2Cache(), "cudaCtxResetPersistingL2Cache");
  size_t set_aside = 0;
  check_cuda(cudaDeviceGetLimit(&set_aside, cudaLimitPersistingL2CacheSize), "cudaDeviceGetLimit");
  if (set_aside == 0) return;  // to set it is the costly part
  check_cuda(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 0), "cudaDeviceSetLimit");
}

DeviceCache::DeviceCache(CUstream_st* stream)
    : stream_(stream), bytes_(flush_bytes()), data_(bytes_ + 16) {
  launch_write(stream_, data_.data(), bytes_);
}

void DeviceCache::flush() {
  launch_keeping_read(stream_, data_.data(), bytes_, data_.as<uint32_t>(bytes_));
  launch_demote(stream_, data_.data(), bytes_);
}

std::string DeviceCache::recipe() const {
  return fmt::format(
      "no persisting lines, none set aside; read {} bytes to be evicted last, made ordinary",
      bytes_);
}

}  // namespace muse::profiler
