// SPDX-License-Identifier: Apache-2.0
// gate/separate: O to out in one CUDA kernel of its own.
#include "variants/gate/separate.cuh"

#include "variants/contract.h"
#include "variants/device/contract.h"
#include "variants/registry.h"

namespace muse::gate_separate {
namespace {

Variant make_variant() {
  Variant variant;
  variant.name = "gate/separate";
  variant.target = {.kind = TargetKind::kCuda, .minimum_cc = device::kMinimumCc};
  variant.tunables = {{.name = "threads", .values = {128, 256}, .default_value = 128}};
  variant.declared = {.batch_invariant = true};
  variant.entries = {"gate"};
  variant.supports = [](const Problem& problem, const Configuration&, const DeviceClass& device) {
    return device::check_cuda(problem, device);
  };
  variant.span = [](const Configuration&) { return Span{Stage::kGate, Stage::kGate}; };
  variant.produces = [](const Problem&, const Configuration&) {
    return Handoff{.kind = HandoffKind::kOut};
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes(HandoffKind::kO, handoff);
  };
  variant.geometry = [](const Problem& problem, const Configuration& configuration,
                        const DeviceClass&) {
    return Geometry{
        .launches = {device::row_launch("gate", problem.tokens() * problem.num_q_heads,
                                        device::kRowLanes, value(configuration, "threads"))}};
  };
  variant.bind = [](const Problem& problem, const Configuration&, const Buffers& buffers, void*,
                    const TensorMapEncoder&, int) {
    return Arguments::of(Args{.qkv = buffers.qkv,
                              .o = buffers.o,
                              .out = buffers.out,
                              .tokens = static_cast<int32_t>(problem.tokens()),
                              .num_q_heads = static_cast<int32_t>(problem.num_q_heads),
                              .num_kv_heads = static_cast<int32_t>(problem.num_kv_heads)});
  };
  return variant;
}

}  // namespace
}  // namespace muse::gate_separate

MUSE_REGISTER_VARIANT(gate, separate, gate_separate::make_variant())
