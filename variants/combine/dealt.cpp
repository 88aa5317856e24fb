// SPDX-License-Identifier: Apache-2.0
// combine/dealt: combine and gate in one CUDA kernel whose CTAs are dealt pieces of requests.
#include "variants/combine/dealt.cuh"

#include <algorithm>

#include "variants/contract.h"
#include "variants/device/combine_contract.h"
#include "variants/device/contract.h"
#include "variants/registry.h"

namespace muse::combine_dealt {
namespace {

/// As many CTAs as the chip holds at a time: pieces beyond are taken in turns.
Geometry geometry(const Problem& problem, const Configuration&, const DeviceClass& device) {
  const int64_t rows = problem.tokens() * problem.num_q_heads;
  return {.launches = {{.entry = "combine",
                        .grid = {.x = std::min<int64_t>(device.sm_count * kCtasPerSm, rows)},
                        .block = {.x = kThreads},
                        .cluster = {},
                        .pdl = true}},
          .workspace = {}};
}

Variant make_variant() {
  Variant variant;
  variant.name = "combine/dealt";
  variant.target = {.kind = TargetKind::kCuda, .minimum_cc = device::kMinimumCc};
  variant.tunables = {{.name = "few", .values = {4, 8}, .default_value = 4}};
  variant.declared = {.batch_invariant = true};
  variant.entries = {"combine"};
  variant.supports = [](const Problem& problem, const Configuration&, const DeviceClass& device) {
    return device::check_cuda(problem, device);
  };
  variant.span = [](const Configuration&) { return Span{Stage::kCombine, Stage::kGate}; };
  variant.produces = [](const Problem&, const Configuration&) {
    return Handoff{.kind = HandoffKind::kOut};
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes_partials(handoff, device::kMaxSplits);
  };
  variant.geometry = geometry;
  variant.bind = [](const Problem& problem, const Configuration&, const Buffers& buffers, void*,
                    const TensorMapEncoder&, int) {
    return Arguments::of(Args{.in = device::combine_inputs(problem, buffers),
                              .qkv = buffers.qkv,
                              .out = buffers.out,
                              .o_tap = buffers.o_tap,
                              .batch = static_cast<int32_t>(problem.batch),
                              .num_kv_heads = static_cast<int32_t>(problem.num_kv_heads)});
  };
  return variant;
}

}  // namespace
}  // namespace muse::combine_dealt

MUSE_REGISTER_VARIANT(combine, dealt, combine_dealt::make_variant())
