// SPDX-License-Identifier: Apache-2.0
// The common checks and the launch over rows.
#include "variants/device/contract.h"

#include <fmt/format.h>

#include <limits>

#include "variants/device/rows.cuh"

namespace muse::device {

Support check_cuda(const Problem& problem, const DeviceClass& device, int minimum_cc) {
  if (device.host) return Support::no("runs on a CUDA device only");
  if (device.cc < minimum_cc) {
    return Support::no(fmt::format("compute capability {}.{}: runs from {}.{} on", device.cc / 10,
                                   device.cc % 10, minimum_cc / 10, minimum_cc % 10));
  }
  if (problem.head_dim != kHeadDim) {
    return Support::no(fmt::format("head_dim {}: only {}", problem.head_dim, kHeadDim));
  }
  if (problem.num_q_heads % problem.num_kv_heads != 0) {
    return Support::no(fmt::format("num_q_heads {} is no multiple of num_kv_heads {}",
                                   problem.num_q_heads, problem.num_kv_heads));
  }
  const int64_t heads = problem.qkv_width() / problem.head_dim;
  if (problem.tokens() > std::numeric_limits<int32_t>::max() / heads) {
    return Support::no(fmt::format("{} tokens of {} heads: more rows than 32 bits count",
                                   problem.tokens(), heads));
  }
  return Support::yes();
}

Support check_page_size(const Problem& problem) {
  const int64_t size = problem.page_size;
  if (size > 0 && (size & (size - 1)) == 0) return Support::yes();
  return Support::no(fmt::format("page_size {}: only powers of two", size));
}

Launch row_launch(const std::string& entry, int64_t rows, int64_t lanes, int64_t threads) {
  const int64_t rows_per_block = threads / lanes;
  return {.entry = entry,
          .grid = {.x = (rows + rows_per_block - 1) / rows_per_block},
          .block = {.x = threads},
          .pdl = true};
}

}  // namespace muse::device
