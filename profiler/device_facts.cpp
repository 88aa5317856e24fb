// SPDX-License-Identifier: Apache-2.0
// Asks the CUDA runtime for devices, versions and properties, and makes a device current.
#include "profiler/device_facts.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "profiler/device_error.h"

namespace muse::profiler {
namespace {

/// GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, as NVML writes it.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    const bool new_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    text += fmt::format("{}{:02x}", new_group ? "-" : "", static_cast<uint8_t>(uuid.bytes[i]));
  }
  return text;
}

int attribute(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, ordinal), "cudaDeviceGetAttribute");
  return value;
}

double memory_bytes_per_s(int ordinal) {
  const double bytes_a_transfer = attribute(cudaDevAttrGlobalMemoryBusWidth, ordinal) / 8.0;
  const double clocks_a_second = attribute(cudaDevAttrMemoryClockRate, ordinal) * 1e3;
  return 2 * clocks_a_second * bytes_a_transfer;
}

}  // namespace

DeviceCount count_devices() {
  DeviceCount count;
  count.error = cudaGetDeviceCount(&count.devices);
  cudaGetLastError();
  return count;
}

CudaVersions cuda_versions() {
  CudaVersions versions;
  cudaDriverGetVersion(&versions.driver);
  cudaRuntimeGetVersion(&versions.runtime);
  return versions;
}

DeviceFacts device_facts(int ordinal) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  return {.name = properties.name,
          .uuid = uuid_text(properties.uuid),
          .cc = 10 * properties.major + properties.minor,
          .sm_count = properties.multiProcessorCount,
          .l2_bytes = properties.l2CacheSize,
          .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
          .sm_clock_hz = attribute(cudaDevAttrClockRate, ordinal) * 1e3,
          .memory_bytes_per_s = memory_bytes_per_s(ordinal)};
}

void use_device(int ordinal) { check_cuda(cudaSetDevice(ordinal), "cudaSetDevice"); }

int64_t free_device_bytes() {
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

}  // namespace muse::profiler
