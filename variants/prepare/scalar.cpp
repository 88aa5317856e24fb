// SPDX-License-Identifier: Apache-2.0
// prepare/scalar: RMSNorm, RoPE, quantise and store, one element after the other. The variant to
// read first: it has every part of the contract and nothing else.
#include <array>
#include <cmath>

#include "variants/host/contract.h"
#include "variants/host/prepare_token.h"
#include "variants/numerics.h"
#include "variants/registry.h"

namespace muse::prepare_scalar {
namespace {

using host::PrepareInputs;
using Row = std::array<float, 256>;

/// RN_bf16(x / rms(x)).
Row normalised(const uint16_t* x, int64_t dim) {
  float squares = 0;
  for (int64_t d = 0; d < dim; ++d) squares += bf16_to_f32(x[d]) * bf16_to_f32(x[d]);
  const float r = 1.0F / std::sqrt(squares / static_cast<float>(dim) + 1e-5F);
  Row y;
  for (int64_t d = 0; d < dim; ++d) y[d] = round_to_bf16(bf16_to_f32(x[d]) * r);
  return y;
}

/// Interleaved pairs (2j, 2j+1), in place. cos_sin: cos in the first half, sin in the second.
void rotate(Row& y, const float* cos_sin, int64_t dim) {
  for (int64_t j = 0; j < dim / 2; ++j) {
    const float c = cos_sin[j];
    const float s = cos_sin[dim / 2 + j];
    const float even = y[2 * j];
    const float odd = y[2 * j + 1];
    y[2 * j] = round_to_bf16(even * c - odd * s);
    y[2 * j + 1] = round_to_bf16(odd * c + even * s);
  }
}

/// A query or key head. Dividing by a scale of 1 changes nothing, nor does rounding once more.
void norm_rope_quantise(const uint16_t* x, const float* cos_sin, float scale, int64_t dim,
                        uint8_t* out) {
  Row z = normalised(x, dim);
  if (cos_sin != nullptr) rotate(z, cos_sin, dim);
  for (int64_t d = 0; d < dim; ++d) out[d] = f32_to_e4m3(round_to_bf16(z[d] / scale));
}

/// A value head: raw, no norm, no RoPE.
void quantise(const uint16_t* x, float scale, int64_t dim, uint8_t* out) {
  for (int64_t d = 0; d < dim; ++d) out[d] = f32_to_e4m3(round_to_bf16(bf16_to_f32(x[d]) / scale));
}

void run(const Arguments& arguments, int /*launch*/) {
  const auto& in = arguments.as<PrepareInputs>();
  const int64_t dim = in.head_dim;
  for (int64_t token = 0; token < in.tokens; ++token) {
    const uint16_t* q = in.qkv + token * in.qkv_width;
    const uint16_t* k = q + in.num_q_heads * dim;
    const uint16_t* v = k + in.num_kv_heads * dim;
    const float* cos_sin = in.cos_sin == nullptr ? nullptr : in.cos_sin + in.positions[token] * dim;
    for (int64_t h = 0; h < in.num_q_heads; ++h) {
      norm_rope_quantise(q + h * dim, cos_sin, 1.0F, dim,
                         in.q8 + (token * in.num_q_heads + h) * dim);
    }
    for (int64_t g = 0; g < in.num_kv_heads; ++g) {
      const int64_t row = (in.cache_loc[token] * in.num_kv_heads + g) * dim;
      norm_rope_quantise(k + g * dim, cos_sin, *in.k_scale, dim, in.k_cache + row);
      quantise(v + g * dim, *in.v_scale, dim, in.v_cache + row);
    }
  }
}

Variant make_variant() {
  Variant variant;
  variant.name = "prepare/scalar";
  variant.declared = {.batch_invariant = true};
  variant.supports = [](const Problem& problem, const Configuration&, const DeviceClass& device) {
    return host::check_host(problem, device, 1, 2);
  };
  variant.span = [](const Configuration&) { return Span{Stage::kPrepare, Stage::kPrepare}; };
  variant.produces = [](const Problem&, const Configuration&) {
    return Handoff{.kind = HandoffKind::kQ8};
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes(HandoffKind::kQkv, handoff);
  };
  variant.geometry = [](const Problem&, const Configuration&, const DeviceClass&) {
    return host::one_launch("prepare_scalar", 1);
  };
  variant.bind = [](const Problem& problem, const Configuration&, const Buffers& buffers, void*,
                    const TensorMapEncoder&, int) {
    return Arguments::of(host::prepare_inputs(problem, buffers, buffers.q8));
  };
  variant.host_entry = run;
  return variant;
}

}  // namespace
}  // namespace muse::prepare_scalar

MUSE_REGISTER_VARIANT(prepare, scalar, prepare_scalar::make_variant())
