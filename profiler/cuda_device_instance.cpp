// SPDX-License-Identifier: Apache-2.0
// Which GPU this is.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "profiler/device_error.h"
#include "profiler/device_instance.h"
#include "profiler/nvml.h"

namespace muse::profiler {
namespace {

/// Locked clocks cannot be read back; application clocks can.
std::string clock_policy(const GpuState& state) {
  if (!state.application_sm_mhz) return "free";
  const bool usual = !state.default_application_sm_mhz ||
                     *state.application_sm_mhz == *state.default_application_sm_mhz;
  return usual ? "free" : fmt::format("application {:.0f}", *state.application_sm_mhz);
}

std::string newest_cuda() {
  int version = 0;
  check_cuda(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  return fmt::format("cuda {}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

DeviceInstance cuda_device_instance(const std::string& uuid, const std::string& name) {
  DeviceInstance instance{
      .kind = "cuda", .uuid = uuid, .name = name, .driver = "", .clock_policy = "unknown"};
  if (const auto& nvml = Nvml::instance()) {
    instance.driver = (*nvml)->driver();
    if (const auto state = (*nvml)->state(uuid)) instance.clock_policy = clock_policy(*state);
  }
  if (instance.driver.empty()) instance.driver = newest_cuda();
  return instance;
}

}  // namespace muse::profiler
