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
  std::string driver;        ///< host: kernel release
  std::string clock_policy;  ///< "free" or "locked <MHz>"; host: cpufreq governor or "unknown"
  bool operator==(const DeviceInstance&) const = default;
};

DeviceInstance host_device_instance();

}  // namespace muse::profiler
