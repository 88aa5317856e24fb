// SPDX-License-Identifier: Apache-2.0
// What the driver's management library (NVML) knows of a GPU. Read only: nothing is ever set.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "profiler/clock_reading.h"

namespace muse::profiler {

/// Why the clock is not higher: NVML's clock event reasons that hold it back in spite of work.
inline constexpr int64_t kSlowdownBits = 0x8 | 0x20 | 0x40 | 0x80;
/// Holds the clock back to stay within the power limit.
inline constexpr int64_t kPowerCapBit = 0x4;

/// "HW thermal slowdown, SW power cap"; "none" for 0.
std::string clock_reasons(int64_t bits);

/// What one card says of itself; nullopt where NVML or the card does not tell.
struct GpuState {
  std::string uuid, name;
  std::optional<double> max_sm_mhz, max_memory_mhz;
  std::optional<double> application_sm_mhz, default_application_sm_mhz;
  std::optional<bool> mig, ecc, persistence;
  std::optional<std::vector<unsigned>> processes;  ///< ids of those with a CUDA context on it
};

/// The library, loaded and initialised.
class Nvml {
 public:
  /// Of this process, loaded at the first call and kept. The error tells why and the remedy.
  static const tl::expected<std::unique_ptr<Nvml>, std::string>& instance();
  ~Nvml();

  /// The driver's version, "580.65.06"; empty where it is not told.
  std::string driver() const;
  /// Of every card this process may see, ordered as NVML numbers them.
  std::vector<std::string> uuids() const;
  /// nullopt where no card has this UUID.
  std::optional<GpuState> state(const std::string& uuid) const;
  /// The few reads of a moment; all unknown where no card has this UUID.
  ClockReading clock(const std::string& uuid) const;

 private:
  struct Api;
  explicit Nvml(std::unique_ptr<Api> api);
  static tl::expected<std::unique_ptr<Nvml>, std::string> load();
  std::unique_ptr<Api> api_;
};

}  // namespace muse::profiler
