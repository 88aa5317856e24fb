// SPDX-License-Identifier: Apache-2.0
// prepare/simd: a head row at a time in vector registers, tokens spread over threads.
#include "variants/host/contract.h"
#include "variants/host/parallel.h"
#include "variants/host/prepare_token.h"
#include "variants/registry.h"

namespace muse::prepare_simd {
namespace {

struct Args {
  host::PrepareInputs in;
  int threads;
};

void run(const Arguments& arguments, int /*launch*/) {
  const auto& args = arguments.as<Args>();
  const host::RowKernels& kernels = host::row_kernels();
  host::parallel_for(args.threads, args.in.tokens, [&](int /*worker*/, int64_t token) {
    host::prepare_token(kernels, args.in, token);
  });
}

Variant make_variant() {
  Variant variant;
  variant.name = "prepare/simd";
  variant.tunables = {host::threads_tunable()};
  variant.declared = {.batch_invariant = true};
  variant.supports = [](const Problem& problem, const Configuration& configuration,
                        const DeviceClass& device) {
    return host::check_host(problem, device, value(configuration, "threads"), host::kDimBlock);
  };
  variant.span = [](const Configuration&) { return Span{Stage::kPrepare, Stage::kPrepare}; };
  variant.produces = [](const Problem&, const Configuration&) {
    return Handoff{.kind = HandoffKind::kQ8};
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes(HandoffKind::kQkv, handoff);
  };
  variant.geometry = [](const Problem&, const Configuration& configuration, const DeviceClass&) {
    return host::one_launch("prepare_simd", value(configuration, "threads"));
  };
  variant.bind = [](const Problem& problem, const Configuration& configuration,
                    const Buffers& buffers, void*, const TensorMapEncoder&, int) {
    return Arguments::of(Args{.in = host::prepare_inputs(problem, buffers, buffers.q8),
                              .threads = static_cast<int>(value(configuration, "threads"))});
  };
  variant.host_entry = run;
  return variant;
}

}  // namespace
}  // namespace muse::prepare_simd

MUSE_REGISTER_VARIANT(prepare, simd, prepare_simd::make_variant())
