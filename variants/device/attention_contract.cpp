// SPDX-License-Identifier: Apache-2.0
// The common contract of CUDA attention families.
#include "variants/device/attention_contract.h"

#include <fmt/format.h>

#include <bit>
#include <limits>

#include "variants/contract.h"
#include "variants/device/contract.h"
#include "variants/device/epilogue_contract.h"

namespace muse::device {

void set_attention_contract(Variant& variant) {
  variant.target = {.kind = TargetKind::kCuda, .minimum_cc = kMinimumCc};
  variant.span = [](const Configuration& configuration) {
    return EpilogueChoice(configuration).span();
  };
  variant.produces = [](const Problem&, const Configuration& configuration) {
    return EpilogueChoice(configuration).handoff();
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes(HandoffKind::kQ8, handoff);
  };
}

Support check_attention(const Problem& problem, const DeviceClass& device) {
  if (const Support support = check_cuda(problem, device); !support.ok()) return support;
  if (const Support support = check_page_size(problem); !support.ok()) return support;
  if (problem.q_len > kMaxQueryTokens) {
    return Support::no(fmt::format("q_len {}: at most {}", problem.q_len, kMaxQueryTokens));
  }
  constexpr int64_t kGridLimit = 65535;
  if (problem.batch > kGridLimit || problem.num_kv_heads > kGridLimit) {
    return Support::no(fmt::format("batch {} or num_kv_heads {}: at most {}", problem.batch,
                                   problem.num_kv_heads, kGridLimit));
  }
  // Keys are counted in 32 bits, with room for a tile beyond the last one.
  constexpr int64_t kKeyLimit = std::numeric_limits<int32_t>::max() / 2;
  if (problem.max_context > kKeyLimit || problem.window > kKeyLimit) {
    return Support::no(fmt::format("max_context {} or window {}: at most {}", problem.max_context,
                                   problem.window, kKeyLimit));
  }
  return Support::yes();
}

Support check_shared_memory(int64_t bytes, const DeviceClass& device) {
  if (bytes <= device.smem_per_block_bytes) return Support::yes();
  return Support::no(fmt::format("{} bytes of shared memory, but a CTA here has at most {}", bytes,
                                 device.smem_per_block_bytes));
}

AttentionArgs attention_args(const Problem& problem, const Buffers& buffers) {
  return {.batch = static_cast<int32_t>(problem.batch),
          .q_len = static_cast<int32_t>(problem.q_len),
          .num_q_heads = static_cast<int32_t>(problem.num_q_heads),
          .num_kv_heads = static_cast<int32_t>(problem.num_kv_heads),
          .group = static_cast<int32_t>(problem.group()),
          .page_shift = std::countr_zero(static_cast<uint64_t>(problem.page_size)),
          .window = static_cast<int32_t>(problem.window),
          .max_pages = static_cast<int32_t>(problem.max_pages()),
          .softmax_scale = problem.softmax_scale(),
          .cache_seqlens = buffers.cache_seqlens,
          .page_table = buffers.page_table,
          .k_scale = buffers.k_scale,
          .v_scale = buffers.v_scale,
          .k_cache = buffers.k_cache,
          .v_cache = buffers.v_cache,
          .q8 = buffers.q8,
          .o = buffers.o,
          .partial_o = buffers.partial_o,
          .partial_lse = buffers.partial_lse,
          .n_splits = buffers.n_splits,
          .qkv = buffers.qkv,
          .out = buffers.out,
          .o_tap = buffers.o_tap,
          .part_o = nullptr,
          .part_stats = nullptr,
          .tickets = nullptr};
}

}  // namespace muse::device
