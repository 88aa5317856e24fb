// SPDX-License-Identifier: Apache-2.0
// The common contract of prepare on CUDA.
#include "variants/device/prepare_contract.h"

#include <cmath>

#include "variants/contract.h"
#include "variants/device/contract.h"

namespace muse::device {

void set_prepare_contract(Variant& variant) {
  variant.target = {.kind = TargetKind::kCuda, .minimum_cc = kMinimumCc};
  variant.supports = [](const Problem& problem, const Configuration&, const DeviceClass& device) {
    return check_cuda(problem, device);
  };
  variant.span = [](const Configuration&) { return Span{Stage::kPrepare, Stage::kPrepare}; };
  variant.produces = [](const Problem&, const Configuration&) {
    return Handoff{.kind = HandoffKind::kQ8};
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes(HandoffKind::kQkv, handoff);
  };
}

void set_token_launch(Variant& variant) {
  variant.tunables = {{.name = "warps", .values = {1, 2, 5}, .default_value = 5},
                      {.name = "tokens", .values = {1, 4, 8}, .default_value = 1},
                      {.name = "early", .values = {0, 1}, .default_value = 1}};
  variant.constraints = {{.expr = "warps * tokens <= 20",
                          .reason = "large CTAs leave SMs without one where tokens are few"}};
  variant.declared = {.batch_invariant = true};
  variant.geometry = [](const Problem& problem, const Configuration& configuration,
                        const DeviceClass&) {
    const int64_t lanes = 32 * value(configuration, "warps");
    return Geometry{.launches = {row_launch("prepare", problem.tokens(), lanes,
                                            lanes * value(configuration, "tokens"))}};
  };
}

PrepareArgs prepare_args(const Problem& problem, const Buffers& buffers, uint8_t* q8) {
  return {.qkv = buffers.qkv,
          .positions = buffers.positions,
          .cache_loc = buffers.cache_loc,
          .k_scale = buffers.k_scale,
          .v_scale = buffers.v_scale,
          .cos_sin = problem.rope() ? buffers.cos_sin : nullptr,
          .k_cache = buffers.k_cache,
          .v_cache = buffers.v_cache,
          .q8 = q8,
          .tokens = static_cast<int32_t>(problem.tokens()),
          .num_q_heads = static_cast<int32_t>(problem.num_q_heads),
          .num_kv_heads = static_cast<int32_t>(problem.num_kv_heads),
          .scaled = problem.scaled()};
}

float inverse_frequency(double rope_theta, int64_t head_dim, int64_t pair) {
  const double exponent = 2.0 * static_cast<double>(pair) / static_cast<double>(head_dim);
  return 1.0F / static_cast<float>(std::pow(rope_theta, exponent));
}

}  // namespace muse::device
