// SPDX-License-Identifier: Apache-2.0
// The planted faults' list, and the stages wrapped as variants.
#include "tests/fakes/planted_faults.h"

#include <algorithm>
#include <array>
#include <new>
#include <stdexcept>

#include "tests/fakes/planted_stages.h"

namespace muse::fakes {
namespace {

/// Members of Buffers that a fault can be told to touch; its index is a configuration's value.
struct Member {
  std::string_view name;
  int64_t bytes;  ///< of an element; partial_o is f32 here
};
constexpr std::array<Member, 19> kMembers{{{"qkv", 2},
                                           {"positions", 8},
                                           {"cache_loc", 8},
                                           {"seq_lens", 4},
                                           {"cache_seqlens", 4},
                                           {"cu_seqlens_q", 4},
                                           {"page_table", 4},
                                           {"k_scale", 4},
                                           {"v_scale", 4},
                                           {"cos_sin", 4},
                                           {"k_cache", 1},
                                           {"v_cache", 1},
                                           {"q8", 1},
                                           {"partial_o", 4},
                                           {"partial_lse", 4},
                                           {"n_splits", 4},
                                           {"o", 2},
                                           {"out", 2},
                                           {"workspace", 1}}};

int64_t member_index(std::string_view name) {
  for (size_t i = 0; i < kMembers.size(); ++i) {
    if (kMembers[i].name == name) return static_cast<int64_t>(i);
  }
  return 0;
}

uint8_t* address_of(const Step& step) {
  const Buffers& b = step.buffers;
  const std::array<const void*, kMembers.size()> addresses{
      b.qkv,          b.positions,  b.cache_loc, b.seq_lens,    b.cache_seqlens,
      b.cu_seqlens_q, b.page_table, b.k_scale,   b.v_scale,     b.cos_sin,
      b.k_cache,      b.v_cache,    b.q8,        b.partial_o,   b.partial_lse,
      b.n_splits,     b.o,          b.out,       step.workspace};
  const void* address = addresses[static_cast<size_t>(step.member)];
  return const_cast<uint8_t*>(static_cast<const uint8_t*>(address));
}

/// Workspace of the fused span: q8, o; partials lie behind, f32-aligned.
int64_t fused_bytes(const Problem& p) {
  const int64_t heads = p.tokens() * p.num_q_heads;
  return heads * p.head_dim * (1 + 2) + 256 + kSplits * heads * (p.head_dim + 1) * 4 + p.batch * 4;
}

/// Elements, for those buffers that kStoreBehind is used on.
int64_t count_of(const Step& step) {
  const Problem& p = step.problem;
  const int64_t heads = p.tokens() * p.num_q_heads;
  const std::string_view name = kMembers[static_cast<size_t>(step.member)].name;
  if (name == "q8" || name == "o" || name == "out") return heads * p.head_dim;
  if (name == "partial_o") return kSplits * heads * p.head_dim;
  if (name == "partial_lse") return kSplits * heads;
  if (name == "n_splits" || name == "seq_lens" || name == "cache_seqlens") return p.batch;
  if (name == "cu_seqlens_q") return p.batch + 1;
  if (name == "positions" || name == "cache_loc") return p.tokens();
  if (name == "page_table") return p.batch * p.max_pages();
  if (name == "qkv") return p.tokens() * p.qkv_width();
  if (name == "k_scale" || name == "v_scale") return 1;
  if (name == "workspace") return fused_bytes(p);
  throw std::logic_error("kStoreBehind does not know the size of " + std::string(name));
}

void disturb(const Step& step) {
  const int64_t bytes = kMembers[static_cast<size_t>(step.member)].bytes;
  if (step.fault == Fault::kInputModified) *address_of(step) ^= 1;
  if (step.fault == Fault::kStoreBefore) std::fill_n(address_of(step) - bytes, bytes, uint8_t{1});
  if (step.fault == Fault::kStoreBehind) {
    std::fill_n(address_of(step) + count_of(step) * bytes, bytes, uint8_t{1});
  }
  if (step.fault == Fault::kThrows) throw std::runtime_error("planted exception");
  if (step.fault == Fault::kThrowsInt) throw 7;
  if (step.fault == Fault::kOutOfMemory) throw std::bad_alloc();
}

template <Stage kStage>
void run_stage(const Arguments& arguments, int) {
  const Step& step = arguments.as<Step>();
  switch (kStage) {
    case Stage::kPrepare:
      prepare(step, step.buffers.q8);
      break;
    case Stage::kAttention:
      attend(step, step.buffers.q8);
      break;
    case Stage::kCombine:
      combine(step, step.buffers.o);
      break;
    case Stage::kGate:
      gate(step, step.buffers.o);
      break;
  }
  disturb(step);
}

void run_fused(const Arguments& arguments, int) {
  Step step = arguments.as<Step>();
  const Problem& p = step.problem;
  const int64_t heads = p.tokens() * p.num_q_heads, count = heads * p.head_dim;
  uint8_t* q8 = step.workspace;
  auto* o = reinterpret_cast<uint16_t*>(q8 + count);
  auto* partials = reinterpret_cast<float*>(q8 + (count * 3 + 255) / 256 * 256);
  step.buffers.partial_o = partials;
  step.buffers.partial_lse = partials + kSplits * count;
  step.buffers.n_splits = reinterpret_cast<int32_t*>(step.buffers.partial_lse + kSplits * heads);
  step.buffers.partial_type = PartialType::kF32;
  prepare(step, q8);
  attend(step, q8);
  combine(step, o);
  gate(step, o);
  if (step.fault != Fault::kSilentTaps) {
    if (step.buffers.q8_tap) std::copy_n(q8, count, step.buffers.q8_tap);
    if (step.buffers.o_tap) std::copy_n(o, count, step.buffers.o_tap);
  }
  disturb(step);
}

Arguments bind(const Problem& problem, const Configuration& configuration, const Buffers& buffers,
               void* workspace, const TensorMapEncoder&, int) {
  return Arguments::of(Step{problem, buffers, static_cast<Fault>(configuration.at("fault")),
                            configuration.at("member"), static_cast<uint8_t*>(workspace)});
}

template <Stage kStage>
Handoff produces(const Problem&, const Configuration&) {
  switch (kStage) {
    case Stage::kPrepare:
      return {.kind = HandoffKind::kQ8};
    case Stage::kAttention:
      return {HandoffKind::kPartials, PartialType::kF32, kSplits};
    case Stage::kCombine:
      return {.kind = HandoffKind::kO};
    case Stage::kGate:
      return {.kind = HandoffKind::kOut};
  }
  return {};
}

template <Stage kFirst, Stage kLast>
Variant make_variant(std::string name, void (*entry)(const Arguments&, int)) {
  Variant v;
  v.name = std::move(name);
  v.tunables = {{"fault", {0}, 0}, {"member", {0}, 0}};
  v.declared = {.batch_invariant = true, .deterministic = true, .precision = Precision::kF32};
  v.supports = [](const Problem&, const Configuration&, const DeviceClass&) {
    return Support::yes();
  };
  v.span = [](const Configuration&) { return Span{kFirst, kLast}; };
  v.produces = produces<kLast>;
  v.consumes = [](const Problem&, const Configuration&, const Handoff&) { return Support::yes(); };
  v.geometry = [](const Problem& problem, const Configuration&, const DeviceClass&) {
    Geometry geometry;
    geometry.launches.emplace_back().entry = "planted";
    if (kFirst != kLast) geometry.workspace.bytes = fused_bytes(problem);
    return geometry;
  };
  v.bind = bind;
  v.host_entry = entry;
  return v;
}

template <Stage kStage>
const Variant& stage_variant() {
  static const Variant variant =
      make_variant<kStage, kStage>(std::string(name(kStage)) + "/planted", run_stage<kStage>);
  return variant;
}

const Variant& variant_of(Stage stage) {
  switch (stage) {
    case Stage::kPrepare:
      return stage_variant<Stage::kPrepare>();
    case Stage::kAttention:
      return stage_variant<Stage::kAttention>();
    case Stage::kCombine:
      return stage_variant<Stage::kCombine>();
    case Stage::kGate:
      return stage_variant<Stage::kGate>();
  }
  throw std::logic_error("no such stage");
}

Configuration configuration_of(Fault fault, std::string_view buffer) {
  return {{"fault", static_cast<int64_t>(fault)}, {"member", member_index(buffer)}};
}

}  // namespace

Candidate planted(Stage stage, Fault fault, std::string_view buffer) {
  return {&variant_of(stage), configuration_of(fault, buffer)};
}

Candidate planted_fused(Fault fault, std::string_view buffer) {
  static const Variant variant =
      make_variant<Stage::kPrepare, Stage::kGate>("fused/planted", run_fused);
  return {&variant, configuration_of(fault, buffer)};
}

Chain planted_pipeline(Stage stage, Fault fault, std::string_view buffer) {
  Chain chain;
  for (int s = 0; s < kStageCount; ++s) {
    const auto each = static_cast<Stage>(s);
    chain.push_back(planted(each, each == stage ? fault : Fault::kNone, buffer));
  }
  return chain;
}

Shape fault_shape(int64_t page_size) {
  Shape shape;
  shape.problem = {.batch = 8,
                   .q_len = 3,
                   .page_size = page_size,
                   .window = 30,
                   .rope_theta = 500000,
                   .kv_scale = 0.523809493};
  shape.lengths.profile = Profile::kList;
  shape.lengths.list = {3, 4, 70, 131, 200, 67, 64, 33};
  shape.lengths.context = 200;
  shape.problem.max_context = 256;
  return shape;
}

std::vector<PlantedFault> planted_faults() {
  using tuner::Gate;
  const Shape shape = fault_shape(), paged = fault_shape(16);
  const Stage prepare = Stage::kPrepare, attention = Stage::kAttention, combine = Stage::kCombine,
              gate = Stage::kGate;
  std::vector<PlantedFault> all{
      {"missing bf16 rounding after the norm", Fault::kNoRoundingAfterNorm, prepare, Gate::kPrepare,
       "q8", shape},
      {"missing bf16 rounding after RoPE", Fault::kNoRoundingAfterRope, prepare, Gate::kPrepare,
       "q8", shape},
      {"missing bf16 rounding before the scaled store", Fault::kNoRoundingBeforeStore, prepare,
       Gate::kPrepare, "k_cache", shape},
      {"wrong interleave", Fault::kWrongInterleave, prepare, Gate::kPrepare, "q8", shape},
      {"reciprocal instead of division", Fault::kReciprocal, prepare, Gate::kPrepare, "k_cache",
       shape},
      {"window off by one", Fault::kWindowTooWide, attention, Gate::kPoison, "", shape},
      {"window off by one", Fault::kWindowTooNarrow, attention, Gate::kAttention, "", shape},
      {"positions derived from seq_lens", Fault::kPositionsFromSeqLens, prepare, Gate::kPrepare,
       "q8", shape},
      {"cache_loc derived from page_table", Fault::kCacheLocFromPageTable, prepare, Gate::kPoison,
       "k_cache", shape},
      {"lost split", Fault::kLostSplit, combine, Gate::kAttention, "o", shape},
      {"empty split read", Fault::kEmptySplitRead, combine, Gate::kPoison, "o", shape},
      {"stale output", Fault::kStaleOutput, gate, Gate::kPoison, "out", shape},
      {"half-written output", Fault::kHalfWritten, gate, Gate::kPoison, "out", shape},
      {"NaN", Fault::kNan, gate, Gate::kPoison, "out", shape},
      {"foreign cache row clobbered", Fault::kForeignRowClobbered, prepare, Gate::kPoison,
       "v_cache", shape},
      {"page table entry -1 dereferenced", Fault::kPageMinusOneDereferenced, attention,
       Gate::kPoison, "", shape},
      {"row left of the window multiplied by zero", Fault::kRowLeftOfWindowTimesZero, attention,
       Gate::kPoison, "", paged},
      {"later draft token multiplied by zero", Fault::kLaterTokenTimesZero, attention,
       Gate::kPoison, "", shape},
      {"token counted twice", Fault::kTokenTwice, attention, Gate::kAttention, "", shape},
      {"wrong kv head", Fault::kWrongKvHead, attention, Gate::kAttention, "", shape},
      {"missing v_scale", Fault::kMissingVScale, attention, Gate::kAttention, "", shape},
      {"saturation to NaN", Fault::kSaturationToNan, prepare, Gate::kPrepare, "v_cache", shape},
      {"last element wrong", Fault::kLastElement, gate, Gate::kGate, "out", shape},
      {"one small element off", Fault::kSmallElement, combine, Gate::kAttention, "o", shape},
      {"log-sum-exp base mixed up", Fault::kLseBase, attention, Gate::kAttention, "partial_lse",
       shape},
  };
  for (const Member& member : kMembers) {
    const std::string buffer(member.name);
    if (buffer == "workspace") continue;  // no stage alone has one
    all.push_back({"store one element outside each buffer", Fault::kStoreBefore, attention,
                   Gate::kPoison, buffer, shape});
    const bool sized_elsewhere = buffer == "k_cache" || buffer == "v_cache" || buffer == "cos_sin";
    if (!sized_elsewhere) {
      all.push_back({"store one element outside each buffer", Fault::kStoreBehind, attention,
                     Gate::kPoison, buffer, shape});
    }
  }
  for (size_t i = 0; i < 10; ++i) {  // the inputs come first
    all.push_back({"input modified", Fault::kInputModified, gate, Gate::kPoison,
                   std::string(kMembers[i].name), shape});
  }
  return all;
}

}  // namespace muse::fakes
