// SPDX-License-Identifier: Apache-2.0
// The stages of wrong_step.cuh as variants for GPUs.
#include "tests/fakes/misbehaving/wrong_step.cuh"
#include "variants/contract.h"
#include "variants/device/contract.h"
#include "variants/registry.h"

namespace muse::fakes {
namespace {

constexpr Handoff kPartials{HandoffKind::kPartials, PartialType::kF32, kWrongSplits};

Arguments bind(const Problem& p, const Configuration&, const Buffers& b, void* workspace,
               const TensorMapEncoder&, int) {
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  return Arguments::of(WrongStep{.qkv = b.qkv,
                                 .positions = b.positions,
                                 .cache_loc = b.cache_loc,
                                 .seq_lens = const_cast<int32_t*>(b.seq_lens),
                                 .cache_seqlens = b.cache_seqlens,
                                 .page_table = b.page_table,
                                 .k_scale = b.k_scale,
                                 .v_scale = b.v_scale,
                                 .cos_sin = b.cos_sin,
                                 .k_cache = b.k_cache,
                                 .v_cache = b.v_cache,
                                 .q8 = b.q8,
                                 .partial_o = static_cast<float*>(b.partial_o),
                                 .partial_lse = b.partial_lse,
                                 .n_splits = b.n_splits,
                                 .o = b.o,
                                 .out = b.out,
                                 .runs = static_cast<int32_t*>(workspace),
                                 .batch = narrow(p.batch),
                                 .q_len = narrow(p.q_len),
                                 .q_heads = narrow(p.num_q_heads),
                                 .kv_heads = narrow(p.num_kv_heads),
                                 .page_size = narrow(p.page_size),
                                 .max_pages = narrow(p.max_pages()),
                                 .window = narrow(p.window),
                                 .scaled = p.scaled() ? 1 : 0,
                                 .c = p.softmax_scale()});
}

template <Stage kStage>
Handoff produces(const Problem&, const Configuration&) {
  switch (kStage) {
    case Stage::kPrepare:
      return {.kind = HandoffKind::kQ8};
    case Stage::kAttention:
      return kPartials;
    case Stage::kCombine:
      return {.kind = HandoffKind::kO};
    case Stage::kGate:
      return {.kind = HandoffKind::kOut};
  }
  return {};
}

template <Stage kStage>
Support consumes(const Problem&, const Configuration&, const Handoff& handoff) {
  switch (kStage) {
    case Stage::kPrepare:
      break;
    case Stage::kAttention:
      return takes(HandoffKind::kQ8, handoff);
    case Stage::kCombine:
      return handoff.partial_type == PartialType::kF32 ? takes(HandoffKind::kPartials, handoff)
                                                       : Support::no("bf16 partials");
    case Stage::kGate:
      return takes(HandoffKind::kO, handoff);
  }
  return Support::yes();
}

template <Stage kStage>
constexpr const char* entry() {
  switch (kStage) {
    case Stage::kPrepare:
      return "prepare";
    case Stage::kAttention:
      return "attend";
    case Stage::kCombine:
      return "combine";
    case Stage::kGate:
      return "gate";
  }
  return "";
}

template <Stage kStage>
Geometry geometry(const Problem& p, const Configuration&, const DeviceClass&) {
  const int64_t rows = p.tokens() * p.num_q_heads;
  Launch launch{.entry = entry<kStage>(), .grid = {rows}, .block = {kWrongDim}};
  if (kStage == Stage::kPrepare) launch.grid.x += 2 * p.tokens() * p.num_kv_heads;
  if (kStage == Stage::kAttention) launch.grid.x *= kWrongSplits;
  return {.launches = {launch}, .workspace = {.bytes = 256, .zeroed_once = true}};
}

template <Stage kStage, int... kValues>
Variant make_variant(WrongList<kValues...>) {
  Variant variant;
  variant.name = std::string(name(kStage)) + "/fake_planted";
  variant.target = {.kind = TargetKind::kCuda, .minimum_cc = device::kMinimumCc};
  variant.tunables = {{.name = "fault", .values = {kValues...}, .default_value = kRight}};
  variant.declared = {.batch_invariant = true};
  variant.entries = {entry<kStage>()};
  variant.supports = [](const Problem& problem, const Configuration&, const DeviceClass& device) {
    return device::check_cuda(problem, device);
  };
  variant.span = [](const Configuration&) { return Span{kStage, kStage}; };
  variant.produces = produces<kStage>;
  variant.consumes = consumes<kStage>;
  variant.geometry = geometry<kStage>;
  variant.bind = bind;
  return variant;
}

}  // namespace
}  // namespace muse::fakes

MUSE_REGISTER_VARIANT(prepare, fake_planted,
                      fakes::make_variant<Stage::kPrepare>(fakes::PrepareFaults{}))
MUSE_REGISTER_VARIANT(attention, fake_planted,
                      fakes::make_variant<Stage::kAttention>(fakes::AttentionFaults{}))
MUSE_REGISTER_VARIANT(combine, fake_planted,
                      fakes::make_variant<Stage::kCombine>(fakes::CombineFaults{}))
MUSE_REGISTER_VARIANT(gate, fake_planted, fakes::make_variant<Stage::kGate>(fakes::GateFaults{}))
