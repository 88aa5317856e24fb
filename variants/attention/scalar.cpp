// SPDX-License-Identifier: Apache-2.0
// attention/scalar: split-KV with one online softmax per query row, one key after the other.
#include <array>
#include <cmath>
#include <limits>

#include "variants/host/attended.h"
#include "variants/host/contract.h"
#include "variants/host/e4m3_table.h"
#include "variants/host/partials.h"
#include "variants/numerics.h"
#include "variants/registry.h"

namespace muse::attention_scalar {
namespace {

using host::AttentionInputs;
using host::KeyRange;

struct Args {
  AttentionInputs in;
  host::Partials partials;
  uint16_t* o;  // bf16 [T, Hq, D], written where one split covers combine
  int64_t splits;
};

struct Row {
  float max = -std::numeric_limits<float>::infinity();  // of the scores so far
  float sum = 0;                                        // of exp(score - max)
  std::array<float, 256> acc{};                         // sum of exp(score - max) * V
};

Row attend(const AttentionInputs& in, int64_t b, int64_t head, const uint8_t* q, KeyRange keys) {
  const float* e4m3 = host::e4m3_table();
  const float c = in.softmax_scale * *in.k_scale;
  Row row;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    const int64_t offset = host::row_offset(in, b, head / in.group(), j);
    const uint8_t* k = in.k_cache + offset;
    const uint8_t* v = in.v_cache + offset;
    float dot = 0;
    for (int64_t d = 0; d < in.head_dim; ++d) dot += e4m3[q[d]] * e4m3[k[d]];
    const float score = dot * c;
    if (score > row.max) {  // what was summed relative to the old maximum shrinks
      const float factor = std::exp(row.max - score);
      row.max = score;
      row.sum *= factor;
      for (int64_t d = 0; d < in.head_dim; ++d) row.acc[d] *= factor;
    }
    const float p = std::exp(score - row.max);
    row.sum += p;
    for (int64_t d = 0; d < in.head_dim; ++d) row.acc[d] += p * e4m3[v[d]];
  }
  return row;
}

/// Normalised, times v_scale; 0 for a row without keys.
float output(const Row& row, int64_t d, float v_scale) {
  return row.sum == 0 ? 0.0F : row.acc[d] / row.sum * v_scale;
}

void store_partial(const Args& args, const Row& row, int64_t split, int64_t token, int64_t head) {
  const AttentionInputs& in = args.in;
  const int64_t index = (split * in.tokens() + token) * in.num_q_heads + head;
  float* o = args.partials.f32(index, in.head_dim);
  for (int64_t d = 0; d < in.head_dim; ++d) o[d] = output(row, d, *in.v_scale);
  args.partials.lse[index] = row.sum == 0 ? -std::numeric_limits<float>::infinity()
                                          : row.max * 1.44269504F + std::log2(row.sum);
}

void store_o(const Args& args, const Row& row, int64_t token, int64_t head) {
  const AttentionInputs& in = args.in;
  uint16_t* o = args.o + (token * in.num_q_heads + head) * in.head_dim;
  for (int64_t d = 0; d < in.head_dim; ++d) o[d] = f32_to_bf16(output(row, d, *in.v_scale));
}

void run(const Arguments& arguments, int /*launch*/) {
  const auto& args = arguments.as<Args>();
  const AttentionInputs& in = args.in;
  for (int64_t b = 0; b < in.batch; ++b) {
    const KeyRange all = host::attended(in, b);
    const host::Splits splits = host::splits_of(all, args.splits);
    if (args.splits > 1) args.partials.n_splits[b] = static_cast<int32_t>(splits.count);
    for (int64_t split = 0; split < splits.count; ++split) {
      const KeyRange piece = host::split_range(all, splits, split);
      for (int64_t i = 0; i < in.q_len; ++i) {
        const KeyRange keys = host::intersect(host::attended(in, b, i), piece);
        const int64_t token = in.cu_seqlens_q[b] + i;
        for (int64_t head = 0; head < in.num_q_heads; ++head) {
          const uint8_t* q = in.q8 + (token * in.num_q_heads + head) * in.head_dim;
          const Row row = attend(in, b, head, q, keys);
          if (args.splits > 1) {
            store_partial(args, row, split, token, head);
          } else {
            store_o(args, row, token, head);
          }
        }
      }
    }
  }
}

Variant make_variant() {
  Variant variant;
  variant.name = "attention/scalar";
  variant.tunables = {{.name = "splits", .values = {1, 2, 4}, .default_value = 4}};
  variant.declared = {.batch_invariant = true};
  variant.supports = [](const Problem& problem, const Configuration&, const DeviceClass& device) {
    return host::check_host(problem, device, 1, 2);
  };
  variant.span = [](const Configuration& configuration) {
    return attention_span(value(configuration, "splits"));
  };
  variant.produces = [](const Problem&, const Configuration& configuration) {
    return attention_handoff(value(configuration, "splits"), PartialType::kF32);
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes(HandoffKind::kQ8, handoff);
  };
  variant.geometry = [](const Problem&, const Configuration&, const DeviceClass&) {
    return host::one_launch("attention_scalar", 1);
  };
  variant.bind = [](const Problem& problem, const Configuration& configuration,
                    const Buffers& buffers, void*, const TensorMapEncoder&, int) {
    return Arguments::of(Args{.in = host::attention_inputs(problem, buffers, buffers.q8),
                              .partials = host::partials_of(buffers),
                              .o = buffers.o,
                              .splits = value(configuration, "splits")});
  };
  variant.host_entry = run;
  return variant;
}

}  // namespace
}  // namespace muse::attention_scalar

MUSE_REGISTER_VARIANT(attention, scalar, attention_scalar::make_variant())
