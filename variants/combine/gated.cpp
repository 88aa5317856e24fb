// SPDX-License-Identifier: Apache-2.0
// combine/gated: combine and gate in one CUDA kernel.
#include "variants/combine/gated.cuh"

#include "variants/contract.h"
#include "variants/device/combine_contract.h"
#include "variants/device/contract.h"
#include "variants/registry.h"

namespace muse::combine_gated {
namespace {

Variant make_variant() {
  Variant variant;
  variant.name = "combine/gated";
  variant.target = {.kind = TargetKind::kCuda, .minimum_cc = device::kMinimumCc};
  variant.tunables = device::combine_tunables();
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
  variant.geometry = [](const Problem& problem, const Configuration& configuration,
                        const DeviceClass&) {
    return Geometry{.launches = {device::row_launch(
                        "combine", problem.tokens() * problem.num_q_heads,
                        value(configuration, "lanes"), value(configuration, "threads"))}};
  };
  variant.bind = [](const Problem& problem, const Configuration&, const Buffers& buffers, void*,
                    const TensorMapEncoder&, int) {
    return Arguments::of(Args{.in = device::combine_inputs(problem, buffers),
                              .qkv = buffers.qkv,
                              .out = buffers.out,
                              .o_tap = buffers.o_tap,
                              .num_kv_heads = static_cast<int32_t>(problem.num_kv_heads)});
  };
  return variant;
}

}  // namespace
}  // namespace muse::combine_gated

MUSE_REGISTER_VARIANT(combine, gated, combine_gated::make_variant())
