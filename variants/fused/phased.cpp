// SPDX-License-Identifier: Apache-2.0
// fused/phased: the step in one launch of two phases, all tokens' prepare and then, per request and
// kv head, attention up to O or up to the gated output. The barrier between the phases is needed:
// queries of a verify block attend the rows of earlier draft tokens, and a row may lie in any page.
#include <algorithm>
#include <cstring>

#include "variants/host/attend.h"
#include "variants/host/contract.h"
#include "variants/host/gate_args.h"
#include "variants/host/parallel.h"
#include "variants/host/prepare_token.h"
#include "variants/registry.h"

namespace muse::fused_phased {
namespace {

using host::AttendScratch;
using host::AttentionInputs;

constexpr int64_t kTileKv = 64;

struct Args {
  host::PrepareInputs prepare;
  AttentionInputs attention;
  host::GateArgs gate;    // gate.o unused: a head's O stays with its thread
  uint16_t* o;            // bf16 [T, Hq, D], the hand-off where the span ends at combine, else null
  uint8_t* q8_tap;        // e4m3 [T, Hq, D], null when timed
  uint16_t* o_tap;        // bf16 [T, Hq, D], null when timed
  std::byte* scratch;     // [threads, scratch_bytes], behind q8 in the workspace
  int64_t scratch_bytes;  // of one thread
};

void prepare_phase(const host::RowKernels& kernels, const Args& args, int64_t token) {
  host::prepare_token(kernels, args.prepare, token);
  if (args.q8_tap != nullptr) {
    const int64_t row_bytes = args.prepare.num_q_heads * args.prepare.head_dim;
    std::memcpy(args.q8_tap + token * row_bytes, args.prepare.q8 + token * row_bytes, row_bytes);
  }
}

/// A head's O goes to whoever asked for it, and through the gate.
void finish_head(const host::RowKernels& kernels, const Args& args, const float* acc, float factor,
                 int64_t token, int64_t head) {
  const int64_t dim = args.gate.head_dim;
  const int64_t row = (token * args.gate.num_q_heads + head) * dim;
  uint16_t o[256];
  kernels.scale_to_bf16(acc, factor, dim, o);
  if (args.o_tap != nullptr) std::copy_n(o, dim, args.o_tap + row);
  if (args.o != nullptr) {
    std::copy_n(o, dim, args.o + row);
  } else {
    kernels.gate(o, args.gate.gate(token, head), dim, args.gate.out + row);
  }
}

void attention_phase(const host::RowKernels& kernels, const Args& args, int worker, int64_t item) {
  const AttentionInputs& in = args.attention;
  const int64_t b = item / in.num_kv_heads;
  const int64_t kv_head = item % in.num_kv_heads;
  const int64_t rows = in.q_len * in.group();
  AttendScratch scratch(args.scratch + worker * args.scratch_bytes, rows, in.head_dim, kTileKv);
  host::attend(kernels, in, b, kv_head, host::attended(in, b), kTileKv, scratch);
  for (int64_t row = 0; row < rows; ++row) {
    finish_head(kernels, args, scratch.acc + row * in.head_dim,
                host::output_factor(scratch.states[row], *in.v_scale),
                in.cu_seqlens_q[b] + row / in.group(), kv_head * in.group() + row % in.group());
  }
}

void run(const Arguments& arguments, int /*launch*/) {
  const auto& args = arguments.as<Args>();
  const host::RowKernels& kernels = host::row_kernels();
  const int threads = args.gate.threads;
  host::parallel_for(threads, args.prepare.tokens,
                     [&](int /*worker*/, int64_t token) { prepare_phase(kernels, args, token); });
  host::parallel_for(
      threads, args.attention.batch * args.attention.num_kv_heads,
      [&](int worker, int64_t item) { attention_phase(kernels, args, worker, item); });
}

bool gated(const Configuration& configuration) { return value(configuration, "gate") == 1; }

int64_t q8_bytes(const Problem& problem) {
  return host::whole_lines(problem.tokens() * problem.num_q_heads * problem.head_dim);
}

int64_t scratch_bytes(const Problem& problem) {
  return AttendScratch::bytes(problem.q_len * problem.group(), problem.head_dim, kTileKv);
}

Arguments bind(const Problem& problem, const Configuration& configuration, const Buffers& buffers,
               void* workspace, const TensorMapEncoder&, int /*launch*/) {
  auto* q8 = static_cast<uint8_t*>(workspace);
  return Arguments::of(
      Args{.prepare = host::prepare_inputs(problem, buffers, q8),
           .attention = host::attention_inputs(problem, buffers, q8),
           .gate = host::gate_args(problem, buffers, value(configuration, "threads")),
           .o = gated(configuration) ? nullptr : buffers.o,
           .q8_tap = buffers.q8_tap,
           .o_tap = buffers.o_tap,
           .scratch = static_cast<std::byte*>(workspace) + q8_bytes(problem),
           .scratch_bytes = scratch_bytes(problem)});
}

Variant make_variant() {
  Variant variant;
  variant.name = "fused/phased";
  variant.tunables = {{.name = "gate", .values = {0, 1}, .default_value = 1},
                      host::threads_tunable()};
  variant.declared = {.batch_invariant = true};
  variant.supports = [](const Problem& problem, const Configuration& configuration,
                        const DeviceClass& device) {
    return host::check_host(problem, device, value(configuration, "threads"), host::kDimBlock);
  };
  variant.span = [](const Configuration& configuration) {
    return Span{Stage::kPrepare, gated(configuration) ? Stage::kGate : Stage::kCombine};
  };
  variant.produces = [](const Problem&, const Configuration& configuration) {
    return Handoff{.kind = gated(configuration) ? HandoffKind::kOut : HandoffKind::kO};
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes(HandoffKind::kQkv, handoff);
  };
  variant.geometry = [](const Problem& problem, const Configuration& configuration,
                        const DeviceClass&) {
    const int64_t threads = value(configuration, "threads");
    return host::one_launch("fused_phased", threads,
                            q8_bytes(problem) + threads * scratch_bytes(problem));
  };
  variant.bind = bind;
  variant.host_entry = run;
  return variant;
}

}  // namespace
}  // namespace muse::fused_phased

MUSE_REGISTER_VARIANT(fused, phased, fused_phased::make_variant())
