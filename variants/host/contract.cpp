// SPDX-License-Identifier: Apache-2.0
// The common checks and values.
#include "variants/host/contract.h"

#include <fmt/format.h>

namespace muse::host {

Tunable threads_tunable() { return {.name = "threads", .values = {1, 2, 4}, .default_value = 1}; }

Support check_host(const Problem& problem, const DeviceClass& device, int64_t threads,
                   int64_t dim_multiple) {
  if (!device.host) return Support::no("runs on the host only");
  if (threads > device.sm_count) {
    return Support::no(
        fmt::format("{} threads, but this process may use {} CPUs", threads, device.sm_count));
  }
  if (problem.num_q_heads % problem.num_kv_heads != 0) {
    return Support::no(fmt::format("num_q_heads {} is no multiple of num_kv_heads {}",
                                   problem.num_q_heads, problem.num_kv_heads));
  }
  if (problem.head_dim % dim_multiple != 0 || problem.head_dim > 256) {
    return Support::no(
        fmt::format("head_dim {}: only multiples of {} up to 256", problem.head_dim, dim_multiple));
  }
  return Support::yes();
}

Geometry one_launch(const std::string& label, int64_t threads, int64_t workspace_bytes) {
  Launch launch;
  launch.entry = label;
  launch.block.x = threads;
  return {.launches = {launch}, .workspace = {.bytes = workspace_bytes}};
}

}  // namespace muse::host
