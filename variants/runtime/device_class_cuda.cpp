// SPDX-License-Identifier: Apache-2.0
// What the CUDA runtime says of a GPU, as a device class; empty in a build without the CUDA target.
#include "variants/runtime/device_class_cuda.h"

#if defined(MUSE_HAS_CUDA)
#include <cuda_runtime_api.h>

namespace muse {

tl::expected<DeviceClass, int> cuda_device_class(int ordinal) {
  cudaDeviceProp properties;
  int driver_version = 0;
  cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
  if (error == cudaSuccess) error = cudaDriverGetVersion(&driver_version);
  if (error != cudaSuccess) {
    cudaGetLastError();  // told here; the next call shall not tell it again
    return tl::unexpected(static_cast<int>(error));
  }
  const int cc = properties.major * 10 + properties.minor;
  return DeviceClass{
      .model = properties.name,
      .host = false,
      .cc = cc,
      .sm_count = properties.multiProcessorCount,
      .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
      .l2_bytes = properties.l2CacheSize,
      .smem_per_block_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin),
      .driver_version = driver_version,
      .isa = cuda_architecture(cc)};
}

}  // namespace muse
#endif
