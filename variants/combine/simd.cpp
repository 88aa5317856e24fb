// SPDX-License-Identifier: Apache-2.0
// combine/simd: a head row at a time in vector registers, tokens spread over threads.
#include <algorithm>
#include <array>

#include "variants/host/combine_args.h"
#include "variants/host/contract.h"
#include "variants/host/parallel.h"
#include "variants/host/row_kernels.h"
#include "variants/registry.h"

namespace muse::combine_simd {
namespace {

using host::CombineArgs;

void combine_head(const host::RowKernels& kernels, const CombineArgs& args, int64_t token,
                  int64_t head) {
  const int64_t dim = args.head_dim;
  const host::SplitWeights splits = host::split_weights(args, token, head);
  alignas(64) std::array<float, 256> sum;
  std::fill_n(sum.begin(), dim, 0.0F);
  for (int64_t s = 0; s < splits.count; ++s) {
    if (splits.weight[s] == 0) continue;  // 0 * NaN is NaN: an empty split holds anything
    const int64_t row = args.row(s, token, head);
    switch (args.partials.type) {
      case PartialType::kF32:
        kernels.add_f32(args.partials.f32(row, dim), splits.weight[s], dim, sum.data());
        break;
      case PartialType::kBf16:
        kernels.add_bf16(args.partials.bf16(row, dim), splits.weight[s], dim, sum.data());
        break;
    }
  }
  kernels.scale_to_bf16(sum.data(), 1.0F, dim, args.o + (token * args.num_q_heads + head) * dim);
}

void run(const Arguments& arguments, int /*launch*/) {
  const auto& args = arguments.as<CombineArgs>();
  const host::RowKernels& kernels = host::row_kernels();
  host::parallel_for(args.threads, args.tokens(), [&](int /*worker*/, int64_t token) {
    for (int64_t head = 0; head < args.num_q_heads; ++head) {
      combine_head(kernels, args, token, head);
    }
  });
}

Variant make_variant() {
  Variant variant;
  variant.name = "combine/simd";
  variant.tunables = {host::threads_tunable()};
  variant.declared = {.batch_invariant = true};
  variant.supports = [](const Problem& problem, const Configuration& configuration,
                        const DeviceClass& device) {
    return host::check_host(problem, device, value(configuration, "threads"), host::kDimBlock);
  };
  variant.span = [](const Configuration&) { return Span{Stage::kCombine, Stage::kCombine}; };
  variant.produces = [](const Problem&, const Configuration&) {
    return Handoff{.kind = HandoffKind::kO};
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes_partials(handoff, host::kMaxSplits);
  };
  variant.geometry = [](const Problem&, const Configuration& configuration, const DeviceClass&) {
    return host::one_launch("combine_simd", value(configuration, "threads"));
  };
  variant.bind = [](const Problem& problem, const Configuration& configuration,
                    const Buffers& buffers, void*, const TensorMapEncoder&, int) {
    return Arguments::of(host::combine_args(problem, buffers, value(configuration, "threads")));
  };
  variant.host_entry = run;
  return variant;
}

}  // namespace
}  // namespace muse::combine_simd

MUSE_REGISTER_VARIANT(combine, simd, combine_simd::make_variant())
