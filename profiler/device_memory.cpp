// SPDX-License-Identifier: Apache-2.0
// Allocates and frees memory of the current device.
#include "profiler/device_memory.h"

#include <cuda_runtime_api.h>

#include "profiler/device_error.h"

namespace muse::profiler {

DeviceMemory::DeviceMemory(int64_t bytes) : bytes_(bytes) {
  check_cuda(cudaMalloc(&data_, static_cast<size_t>(bytes)), "cudaMalloc");
}

DeviceMemory::~DeviceMemory() { cudaFree(data_); }

}  // namespace muse::profiler
