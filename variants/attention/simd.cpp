// SPDX-License-Identifier: Apache-2.0
// attention/simd: split-KV over vector registers. One item of work is (request, kv head, split);
// its query rows, all heads of the group and all tokens, share the K and V that are loaded and
// decoded.
#include "variants/host/attend.h"
#include "variants/host/contract.h"
#include "variants/host/parallel.h"
#include "variants/host/partials.h"
#include "variants/registry.h"

namespace muse::attention_simd {
namespace {

using host::AttendScratch;
using host::AttentionInputs;
using host::KeyRange;

struct Args {
  AttentionInputs in;
  host::Partials partials;
  uint16_t* o;  // bf16 [T, Hq, D], written where one split covers combine
  int64_t splits, tile_kv;
  int threads;
  std::byte* workspace;   // [threads, scratch_bytes]
  int64_t scratch_bytes;  // of one thread
};

void store(const host::RowKernels& kernels, const Args& args, const AttendScratch& scratch,
           int64_t b, int64_t kv_head, int64_t split) {
  const AttentionInputs& in = args.in;
  const int64_t dim = in.head_dim;
  for (int64_t row = 0; row < in.q_len * in.group(); ++row) {
    const int64_t token = in.cu_seqlens_q[b] + row / in.group();
    const int64_t head = kv_head * in.group() + row % in.group();
    const float* acc = scratch.acc + row * dim;
    const float factor = host::output_factor(scratch.states[row], *in.v_scale);
    if (args.splits == 1) {
      kernels.scale_to_bf16(acc, factor, dim, args.o + (token * in.num_q_heads + head) * dim);
      continue;
    }
    const int64_t index = (split * in.tokens() + token) * in.num_q_heads + head;
    args.partials.lse[index] = host::log_sum_exp2(scratch.states[row]);
    switch (args.partials.type) {
      case PartialType::kF32:
        kernels.scale_to_f32(acc, factor, dim, args.partials.f32(index, dim));
        break;
      case PartialType::kBf16:
        kernels.scale_to_bf16(acc, factor, dim, args.partials.bf16(index, dim));
        break;
    }
  }
}

void run(const Arguments& arguments, int /*launch*/) {
  const auto& args = arguments.as<Args>();
  const AttentionInputs& in = args.in;
  const host::RowKernels& kernels = host::row_kernels();
  const int64_t per_request = in.num_kv_heads * args.splits;
  host::parallel_for(args.threads, in.batch * per_request, [&](int worker, int64_t item) {
    const int64_t b = item / per_request;
    // The kv heads of a split come one after the other: their rows are neighbours in memory.
    const int64_t split = item % per_request / in.num_kv_heads;
    const int64_t kv_head = item % in.num_kv_heads;
    const KeyRange all = host::attended(in, b);
    const host::Splits splits = host::splits_of(all, args.splits);
    if (split >= splits.count) return;
    if (args.splits > 1 && split == 0 && kv_head == 0) {
      args.partials.n_splits[b] = static_cast<int32_t>(splits.count);
    }
    AttendScratch scratch(args.workspace + worker * args.scratch_bytes, in.q_len * in.group(),
                          in.head_dim, args.tile_kv);
    host::attend(kernels, in, b, kv_head, host::split_range(all, splits, split), args.tile_kv,
                 scratch);
    store(kernels, args, scratch, b, kv_head, split);
  });
}

int64_t scratch_bytes(const Problem& problem, const Configuration& configuration) {
  return AttendScratch::bytes(problem.q_len * problem.group(), problem.head_dim,
                              value(configuration, "tile_kv"));
}

Arguments bind(const Problem& problem, const Configuration& configuration, const Buffers& buffers,
               void* workspace, const TensorMapEncoder&, int /*launch*/) {
  return Arguments::of(Args{.in = host::attention_inputs(problem, buffers, buffers.q8),
                            .partials = host::partials_of(buffers),
                            .o = buffers.o,
                            .splits = value(configuration, "splits"),
                            .tile_kv = value(configuration, "tile_kv"),
                            .threads = static_cast<int>(value(configuration, "threads")),
                            .workspace = static_cast<std::byte*>(workspace),
                            .scratch_bytes = scratch_bytes(problem, configuration)});
}

Variant make_variant() {
  Variant variant;
  variant.name = "attention/simd";
  variant.tunables = {{.name = "tile_kv", .values = {32, 64, 128}, .default_value = 64},
                      {.name = "splits", .values = {1, 2, 4, 8}, .default_value = 1},
                      {.name = "partial_bits", .values = {16, 32}, .default_value = 32},
                      host::threads_tunable()};
  variant.constraints = {{.expr = "splits > 1 || partial_bits == 32",
                          .reason = "one split leaves no partials whose type could matter"}};
  variant.declared = {.batch_invariant = true};
  variant.supports = [](const Problem& problem, const Configuration& configuration,
                        const DeviceClass& device) {
    return host::check_host(problem, device, value(configuration, "threads"), host::kDimBlock);
  };
  variant.span = [](const Configuration& configuration) {
    return attention_span(value(configuration, "splits"));
  };
  variant.produces = [](const Problem&, const Configuration& configuration) {
    return attention_handoff(
        value(configuration, "splits"),
        value(configuration, "partial_bits") == 16 ? PartialType::kBf16 : PartialType::kF32);
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes(HandoffKind::kQ8, handoff);
  };
  variant.geometry = [](const Problem& problem, const Configuration& configuration,
                        const DeviceClass&) {
    const int64_t threads = value(configuration, "threads");
    return host::one_launch("attention_simd", threads,
                            threads * scratch_bytes(problem, configuration));
  };
  variant.bind = bind;
  variant.host_entry = run;
  return variant;
}

}  // namespace
}  // namespace muse::attention_simd

MUSE_REGISTER_VARIANT(attention, simd, attention_simd::make_variant())
