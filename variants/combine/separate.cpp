// SPDX-License-Identifier: Apache-2.0
// combine/separate: partials to O in one CUDA kernel of its own.
#include "variants/combine/separate.cuh"

#include "variants/contract.h"
#include "variants/device/combine_contract.h"
#include "variants/device/contract.h"
#include "variants/registry.h"

namespace muse::combine_separate {
namespace {

Variant make_variant() {
  Variant variant;
  variant.name = "combine/separate";
  variant.target = {.kind = TargetKind::kCuda, .minimum_cc = device::kMinimumCc};
  variant.tunables = device::combine_tunables();
  variant.declared = {.batch_invariant = true};
  variant.entries = {"combine"};
  variant.supports = [](const Problem& problem, const Configuration&, const DeviceClass& device) {
    return device::check_cuda(problem, device);
  };
  variant.span = [](const Configuration&) { return Span{Stage::kCombine, Stage::kCombine}; };
  variant.produces = [](const Problem&, const Configuration&) {
    return Handoff{.kind = HandoffKind::kO};
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
    return Arguments::of(Args{.in = device::combine_inputs(problem, buffers), .o = buffers.o});
  };
  return variant;
}

}  // namespace
}  // namespace muse::combine_separate

MUSE_REGISTER_VARIANT(combine, separate, combine_separate::make_variant())
