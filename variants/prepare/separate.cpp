// SPDX-License-Identifier: Apache-2.0
// prepare/separate: norm and RoPE, store, quantise as three CUDA kernels.
#include "variants/prepare/separate.cuh"

#include "variants/contract.h"
#include "variants/device/contract.h"
#include "variants/device/prepare_contract.h"
#include "variants/registry.h"

namespace muse::prepare_separate {
namespace {

Geometry geometry(const Problem& problem, const Configuration&, const DeviceClass&) {
  const int64_t q_rows = problem.tokens() * problem.num_q_heads;
  const int64_t kv_rows = problem.tokens() * problem.num_kv_heads;
  const auto launch = [](const char* entry, int64_t rows) {
    return device::row_launch(entry, rows, device::kRowLanes, kThreads);
  };
  return {.launches = {launch("norm_rope", q_rows + kv_rows), launch("store", 2 * kv_rows),
                       launch("quantise", q_rows)},
          .workspace = {.bytes = (q_rows + kv_rows) * problem.head_dim *
                                 static_cast<int64_t>(sizeof(uint16_t))}};
}

Arguments bind(const Problem& problem, const Configuration&, const Buffers& buffers,
               void* workspace, const TensorMapEncoder&, int /*launch*/) {
  return Arguments::of(Args{.prepare = device::prepare_args(problem, buffers, buffers.q8),
                            .z = static_cast<uint16_t*>(workspace)});
}

Variant make_variant() {
  Variant variant;
  variant.name = "prepare/separate";
  variant.abi = 2;
  variant.target = {.kind = TargetKind::kCuda, .minimum_cc = device::kMinimumCc};
  variant.declared = {.batch_invariant = true};
  variant.entries = {"norm_rope", "store", "quantise"};
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
  variant.geometry = geometry;
  variant.bind = bind;
  return variant;
}

}  // namespace
}  // namespace muse::prepare_separate

MUSE_REGISTER_VARIANT(prepare, separate, prepare_separate::make_variant())
