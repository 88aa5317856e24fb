// SPDX-License-Identifier: Apache-2.0
// gate/scalar: RMSNorm of each head of O, times the sigmoid of its gate, one element after the
// other.
#include <cmath>

#include "variants/host/contract.h"
#include "variants/host/gate_args.h"
#include "variants/numerics.h"
#include "variants/registry.h"

namespace muse::gate_scalar {
namespace {

using host::GateArgs;

/// 1 / (1 + exp(-g)) by exp(-|g|), which cannot overflow: far below 0 it keeps its digits.
float sigmoid(float g) {
  const float e = std::exp(-std::fabs(g));
  return (g >= 0 ? 1.0F : e) / (1.0F + e);
}

void gate_head(const uint16_t* o, const uint16_t* g, int64_t dim, uint16_t* out) {
  float squares = 0;
  for (int64_t d = 0; d < dim; ++d) squares += bf16_to_f32(o[d]) * bf16_to_f32(o[d]);
  const float r = 1.0F / std::sqrt(squares / static_cast<float>(dim) + 1e-5F);
  for (int64_t d = 0; d < dim; ++d) {
    out[d] = f32_to_bf16(bf16_to_f32(o[d]) * r * sigmoid(bf16_to_f32(g[d])));
  }
}

void run(const Arguments& arguments, int /*launch*/) {
  const auto& args = arguments.as<GateArgs>();
  for (int64_t token = 0; token < args.tokens; ++token) {
    for (int64_t head = 0; head < args.num_q_heads; ++head) {
      const int64_t row = (token * args.num_q_heads + head) * args.head_dim;
      gate_head(args.o + row, args.gate(token, head), args.head_dim, args.out + row);
    }
  }
}

Variant make_variant() {
  Variant variant;
  variant.name = "gate/scalar";
  variant.declared = {.batch_invariant = true};
  variant.supports = [](const Problem& problem, const Configuration&, const DeviceClass& device) {
    return host::check_host(problem, device, 1, 2);
  };
  variant.span = [](const Configuration&) { return Span{Stage::kGate, Stage::kGate}; };
  variant.produces = [](const Problem&, const Configuration&) {
    return Handoff{.kind = HandoffKind::kOut};
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes(HandoffKind::kO, handoff);
  };
  variant.geometry = [](const Problem&, const Configuration&, const DeviceClass&) {
    return host::one_launch("gate_scalar", 1);
  };
  variant.bind = [](const Problem& problem, const Configuration&, const Buffers& buffers, void*,
                    const TensorMapEncoder&,
                    int) { return Arguments::of(host::gate_args(problem, buffers, 1)); };
  variant.host_entry = run;
  return variant;
}

}  // namespace
}  // namespace muse::gate_scalar

MUSE_REGISTER_VARIANT(gate, scalar, gate_scalar::make_variant())
