// SPDX-License-Identifier: Apache-2.0
// The common checks and the launch of variants on direct_rows.cuh.
#include "variants/device/direct_contract.h"

#include <fmt/format.h>

#include "variants/contract.h"
#include "variants/device/attention_contract.h"
#include "variants/device/direct_rows.cuh"
#include "variants/device/epilogue_contract.h"

namespace muse::device {

Support check_direct(const Problem& problem, const Configuration& configuration,
                     const DeviceClass& device, int64_t shared_bytes) {
  Support support = check_attention(problem, device);
  if (support.ok()) support = check_epilogue(configuration, device);
  if (!support.ok()) return support;
  if (problem.q_len > 2) {
    return Support::no(fmt::format("q_len {}: registers hold the rows of 2", problem.q_len));
  }
  if (problem.q_len == 2 && value(configuration, "warps") > kMostWarpsOf2Tokens) {
    return Support::no(fmt::format("q_len 2 and {} warps: registers suffice for {}",
                                   value(configuration, "warps"), kMostWarpsOf2Tokens));
  }
  constexpr int64_t kMostFilling = int64_t{16} << 24;  // direct_split() counts units below 2^24
  if (EpilogueChoice(configuration).fills && problem.max_context > kMostFilling) {
    return Support::no(fmt::format("max_context {} and splits that fill the chip: at most {}",
                                   problem.max_context, kMostFilling));
  }
  constexpr int64_t kQueryHeads = kDirectKvHeads * kDirectGroup;
  if (problem.num_q_heads != kQueryHeads || problem.num_kv_heads != kDirectKvHeads) {
    return Support::no(fmt::format("{} query and {} kv heads: built for {} and {}",
                                   problem.num_q_heads, problem.num_kv_heads, kQueryHeads,
                                   kDirectKvHeads));
  }
  return check_shared_memory(shared_bytes, device);
}

Geometry direct_geometry(const std::string& entry, const Problem& problem,
                         const Configuration& configuration, int64_t shared_bytes,
                         const DeviceClass& device, int64_t ctas_per_sm) {
  const int64_t heads = value(configuration, "heads_per_cta");
  Launch launch = epilogue_launch(entry, problem, configuration, heads, device, ctas_per_sm);
  launch.block = {.x = value(configuration, "warps") * 32};
  launch.smem_bytes = shared_bytes;
  return {.launches = {launch}, .workspace = epilogue_workspace(problem, configuration, heads)};
}

}  // namespace muse::device
