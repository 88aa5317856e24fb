// SPDX-License-Identifier: Apache-2.0
// What the device's clocks did while a round ran.
#pragma once

#include <cstdint>
#include <string>

namespace muse::profiler {

/// Negative where unknown.
struct ClockReading {
  double cpu_mhz = -1;        ///< host: mean over the CPUs
  double load = -1;           ///< host: 1-minute load average
  double sm_mhz = -1;         ///< GPU
  double memory_mhz = -1;     ///< GPU
  double power_w = -1;        ///< GPU
  double temperature_c = -1;  ///< GPU
  int64_t reason_bits = 0;    ///< GPU: why the clock is not higher, as NVML numbers them
  bool operator==(const ClockReading&) const = default;
};

/// From /proc/cpuinfo or cpufreq, and /proc/loadavg.
ClockReading read_host_clock();

/// By NVML, of the GPU with this UUID ("GPU-..."). What cannot be read stays unknown; without NVML
/// that is everything.
ClockReading read_gpu_clock(const std::string& uuid);

}  // namespace muse::profiler
