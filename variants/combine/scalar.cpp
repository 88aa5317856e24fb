// SPDX-License-Identifier: Apache-2.0
// combine/scalar: merges the partial results of split-KV attention, one element after the other.
#include "variants/host/combine_args.h"
#include "variants/host/contract.h"
#include "variants/numerics.h"
#include "variants/registry.h"

namespace muse::combine_scalar {
namespace {

using host::CombineArgs;

float partial(const CombineArgs& args, int64_t row, int64_t d) {
  switch (args.partials.type) {
    case PartialType::kF32:
      return args.partials.f32(row, args.head_dim)[d];
    case PartialType::kBf16:
      break;
  }
  return bf16_to_f32(args.partials.bf16(row, args.head_dim)[d]);
}

void run(const Arguments& arguments, int /*launch*/) {
  const auto& args = arguments.as<CombineArgs>();
  for (int64_t token = 0; token < args.tokens(); ++token) {
    for (int64_t head = 0; head < args.num_q_heads; ++head) {
      const host::SplitWeights splits = host::split_weights(args, token, head);
      uint16_t* o = args.o + (token * args.num_q_heads + head) * args.head_dim;
      for (int64_t d = 0; d < args.head_dim; ++d) {
        float sum = 0;
        for (int64_t s = 0; s < splits.count; ++s) {
          if (splits.weight[s] == 0) continue;  // 0 * NaN is NaN: an empty split holds anything
          sum += splits.weight[s] * partial(args, args.row(s, token, head), d);
        }
        o[d] = f32_to_bf16(sum);
      }
    }
  }
}

Variant make_variant() {
  Variant variant;
  variant.name = "combine/scalar";
  variant.declared = {.batch_invariant = true};
  variant.supports = [](const Problem& problem, const Configuration&, const DeviceClass& device) {
    return host::check_host(problem, device, 1, 2);
  };
  variant.span = [](const Configuration&) { return Span{Stage::kCombine, Stage::kCombine}; };
  variant.produces = [](const Problem&, const Configuration&) {
    return Handoff{.kind = HandoffKind::kO};
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes_partials(handoff, host::kMaxSplits);
  };
  variant.geometry = [](const Problem&, const Configuration&, const DeviceClass&) {
    return host::one_launch("combine_scalar", 1);
  };
  variant.bind = [](const Problem& problem, const Configuration&, const Buffers& buffers, void*,
                    const TensorMapEncoder&,
                    int) { return Arguments::of(host::combine_args(problem, buffers, 1)); };
  variant.host_entry = run;
  return variant;
}

}  // namespace
}  // namespace muse::combine_scalar

MUSE_REGISTER_VARIANT(combine, scalar, combine_scalar::make_variant())
