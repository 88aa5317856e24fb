// SPDX-License-Identifier: Apache-2.0
// prepare/fused: norm, RoPE, quantise and store in one CUDA kernel.
#include "variants/prepare/fused.cuh"

#include "variants/contract.h"
#include "variants/device/contract.h"
#include "variants/device/prepare_contract.h"
#include "variants/registry.h"

namespace muse::prepare_fused {
namespace {

Arguments bind(const Problem& problem, const Configuration&, const Buffers& buffers,
               void* /*workspace*/, const TensorMapEncoder&, int /*launch*/) {
  return Arguments::of(Args{.prepare = device::prepare_args(problem, buffers, buffers.q8)});
}

Variant make_variant() {
  Variant variant;
  variant.name = "prepare/fused";
  variant.target = {.kind = TargetKind::kCuda, .minimum_cc = device::kMinimumCc};
  variant.tunables = {{.name = "threads", .values = {64, 128, 256}, .default_value = 128}};
  variant.declared = {.batch_invariant = true};
  variant.entries = {"prepare"};
  variant.supports = [](const Problem& problem, const Configuration&, const DeviceClass& device) {
    return device::check_cuda(problem, device);
  };
  variant.span = [](const Configuration&) { return Span{Stage::kPrepare, Stage::kPrepare}; };
  variant.produces = [](const Problem&, const Configuration&) {
    return Handoff{.kind = HandoffKind::kQ8};
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes(HandoffKind::kQkv, handoff);
  };
  variant.geometry = [](const Problem& problem, const Configuration& configuration,
                        const DeviceClass&) {
    const int64_t rows = problem.tokens() * (problem.num_q_heads + 2 * problem.num_kv_heads);
    return Geometry{.launches = {device::row_launch("prepare", rows, device::kRowLanes,
                                                    value(configuration, "threads"))}};
  };
  variant.bind = bind;
  return variant;
}

}  // namespace
}  // namespace muse::prepare_fused

MUSE_REGISTER_VARIANT(prepare, fused, prepare_fused::make_variant())
