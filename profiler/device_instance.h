// SPDX-License-Identifier: Apache-2.0
// This physical device: whose measurements may be compared with each other.
#pragma once

#include <cstdint>
#include <string>

namespace muse::profiler {

struct DeviceInstance {
  std::string kind;          ///< "host" or "cuda"
  std::string uuid;          ///< GPU UUID; host: stable hash of the machine id and the CPU model
  std::string name;          ///< marketing name
  std::string driver;        ///< GPU: the driver's version; host: kernel release
  std::string clock_policy;  ///< GPU: "free", "application <MHz>" or "unknown"; host: the governor
  bool operator==(const DeviceInstance&) const = default;
};

DeviceInstance host_device_instance();

/// The GPU with this UUID ("GPU-..."). Without NVML the driver is "cuda <version it supports>" and
/// the clock policy "unknown".
DeviceInstance cuda_device_instance(const std::string& uuid, const std::string& name);

}  // namespace muse::profiler
