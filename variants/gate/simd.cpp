// SPDX-License-Identifier: Apache-2.0
// gate/simd: a head row at a time in vector registers, tokens spread over threads.
#include "variants/host/contract.h"
#include "variants/host/gate_args.h"
#include "variants/host/parallel.h"
#include "variants/host/row_kernels.h"
#include "variants/registry.h"

namespace muse::gate_simd {
namespace {

using host::GateArgs;

void run(const Arguments& arguments, int /*launch*/) {
  const auto& args = arguments.as<GateArgs>();
  const host::RowKernels& kernels = host::row_kernels();
  host::parallel_for(args.threads, args.tokens, [&](int /*worker*/, int64_t token) {
    for (int64_t head = 0; head < args.num_q_heads; ++head) {
      const int64_t row = (token * args.num_q_heads + head) * args.head_dim;
      kernels.gate(args.o + row, args.gate(token, head), args.head_dim, args.out + row);
    }
  });
}

Variant make_variant() {
  Variant variant;
  variant.name = "gate/simd";
  variant.tunables = {host::threads_tunable()};
  variant.declared = {.batch_invariant = true};
  variant.supports = [](const Problem& problem, const Configuration& configuration,
                        const DeviceClass& device) {
    return host::check_host(problem, device, value(configuration, "threads"), host::kDimBlock);
  };
  variant.span = [](const Configuration&) { return Span{Stage::kGate, Stage::kGate}; };
  variant.produces = [](const Problem&, const Configuration&) {
    return Handoff{.kind = HandoffKind::kOut};
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes(HandoffKind::kO, handoff);
  };
  variant.geometry = [](const Problem&, const Configuration& configuration, const DeviceClass&) {
    return host::one_launch("gate_simd", value(configuration, "threads"));
  };
  variant.bind = [](const Problem& problem, const Configuration& configuration,
                    const Buffers& buffers, void*, const TensorMapEncoder&, int) {
    return Arguments::of(host::gate_args(problem, buffers, value(configuration, "threads")));
  };
  variant.host_entry = run;
  return variant;
}

}  // namespace
}  // namespace muse::gate_simd

MUSE_REGISTER_VARIANT(gate, simd, gate_simd::make_variant())
