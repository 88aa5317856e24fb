// SPDX-License-Identifier: Apache-2.0
// What the contracts of CUDA attention families have in common: what they take and leave behind, by
// the tunables of epilogue_contract.h as far as they have them, and their argument block.
#pragma once

#include "variants/device/attention_args.h"
#include "variants/variant.h"

namespace muse::device {

/// Query tokens per request that attention on CUDA is built for.
inline constexpr int64_t kMaxQueryTokens = 8;

/// Sets target, span, produces and consumes.
void set_attention_contract(Variant& variant);

/// What they all refuse: what check_cuda() and check_page_size() do, more than kMaxQueryTokens,
/// more requests or pages than a grid or 32 bits count.
Support check_attention(const Problem& problem, const DeviceClass& device);

/// Refuses what the device has not got.
Support check_shared_memory(int64_t bytes, const DeviceClass& device);

/// Without the workspace of an epilogue.
AttentionArgs attention_args(const Problem& problem, const Buffers& buffers);

}  // namespace muse::device
