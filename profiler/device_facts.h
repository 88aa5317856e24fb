// SPDX-License-Identifier: Apache-2.0
// What the CUDA runtime says of a device before anything runs on it.
#pragma once

#include <cstdint>
#include <string>

namespace muse::profiler {

/// How many devices are visible, or the cudaError_t of asking.
struct DeviceCount {
  int devices = 0;
  int error = 0;
};
DeviceCount count_devices();

/// Versions as CUDA numbers them: 13000 for 13.0. The driver's is 0 without one.
struct CudaVersions {
  int driver = 0, runtime = 0;
};
CudaVersions cuda_versions();

struct DeviceFacts {
  std::string name, uuid;  ///< "GPU-..."
  int cc = 0;              ///< compute capability * 10
  int sm_count = 0;
  int64_t l2_bytes = 0, memory_bytes = 0;
  double sm_clock_hz = 0;         ///< the highest; 0 where the driver does not tell
  double memory_bytes_per_s = 0;  ///< in theory: bus width * memory clock * 2, as data comes twice
                                  ///< a clock; 0 where the driver does not tell
};
/// Makes no context on the device. Throws DeviceError.
DeviceFacts device_facts(int ordinal);

/// Makes the device current and its context. Throws DeviceError.
void use_device(int ordinal);
/// Of the current device. Throws DeviceError.
int64_t free_device_bytes();

}  // namespace muse::profiler
