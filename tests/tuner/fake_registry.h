// SPDX-License-Identifier: Apache-2.0
// Small registries of variants that do nothing, for tests of configs and plans.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "variants/registry.h"

namespace muse::fake {

inline int64_t value_of(const Configuration& configuration, const char* tunable) {
  const auto found = configuration.find(tunable);
  return found == configuration.end() ? 0 : found->second;
}

/// Attention covers combine where it does not split.
inline Span attention_span(const Configuration& configuration) {
  return {Stage::kAttention,
          value_of(configuration, "splits") > 1 ? Stage::kAttention : Stage::kCombine};
}
inline Handoff attention_produces(const Problem&, const Configuration& configuration) {
  const int64_t splits = value_of(configuration, "splits");
  if (splits > 1) return {HandoffKind::kPartials, PartialType::kF32, splits};
  return {HandoffKind::kO};
}

template <Stage kFirst, Stage kLast = kFirst>
Span fixed_span(const Configuration&) {
  return {kFirst, kLast};
}
template <HandoffKind kKind>
Handoff fixed_produces(const Problem&, const Configuration&) {
  return {kKind};
}
template <HandoffKind kKind>
Support takes(const Problem&, const Configuration&, const Handoff& handoff) {
  return handoff.kind == kKind ? Support::yes() : Support::no("takes another hand-off");
}

inline Variant base_variant(std::string name, std::vector<Tunable> tunables) {
  Variant variant;
  variant.name = std::move(name);
  variant.tunables = std::move(tunables);
  variant.supports = [](const Problem&, const Configuration&, const DeviceClass&) {
    return Support::yes();
  };
  variant.geometry = [](const Problem&, const Configuration&, const DeviceClass&) {
    return Geometry{};
  };
  variant.bind = [](const Problem&, const Configuration&, const Buffers&, void*,
                    const TensorMapEncoder&, int) { return Arguments{}; };
  variant.host_entry = [](const Arguments&, int) {};
  return variant;
}

inline Variant prepare(std::string name, std::vector<Tunable> tunables = {}) {
  Variant variant = base_variant(std::move(name), std::move(tunables));
  variant.span = fixed_span<Stage::kPrepare>;
  variant.produces = fixed_produces<HandoffKind::kQ8>;
  return variant;
}
inline Variant attention(std::string name, std::vector<Tunable> tunables) {
  Variant variant = base_variant(std::move(name), std::move(tunables));
  variant.span = attention_span;
  variant.produces = attention_produces;
  variant.consumes = takes<HandoffKind::kQ8>;
  return variant;
}
inline Variant combine(std::string name) {
  Variant variant = base_variant(std::move(name), {});
  variant.span = fixed_span<Stage::kCombine>;
  variant.produces = fixed_produces<HandoffKind::kO>;
  variant.consumes = takes<HandoffKind::kPartials>;
  return variant;
}
inline Variant gate(std::string name) {
  Variant variant = base_variant(std::move(name), {});
  variant.span = fixed_span<Stage::kGate>;
  variant.produces = fixed_produces<HandoffKind::kOut>;
  variant.consumes = takes<HandoffKind::kO>;
  return variant;
}
inline Variant fused(std::string name) {
  Variant variant = base_variant(std::move(name), {});
  variant.span = fixed_span<Stage::kPrepare, Stage::kGate>;
  variant.produces = fixed_produces<HandoffKind::kOut>;
  return variant;
}

/// Host: prepare scalar; attention scalar {splits 1,2,4; tile_kv 32,64,128}, simd {tile_kv 64,256;
/// depth 0,2,4}, no {no 0,1}; combine and gate scalar; fused all. CUDA: attention/mma {tile_kv 64}.
inline void fill(Registry& registry) {
  const Tunable tile{"tile_kv", {32, 64, 128}, 32};
  const Tunable splits{"splits", {1, 2, 4}, 2};
  registry.add(prepare("prepare/scalar"));
  registry.add(attention("attention/scalar", {tile, splits}));
  registry.add(attention("attention/simd", {{"tile_kv", {64, 256}, 64}, {"depth", {0, 2, 4}, 2}}));
  registry.add(attention("attention/no", {{"no", {0, 1}, 0}}));
  registry.add(combine("combine/scalar"));
  registry.add(gate("gate/scalar"));
  registry.add(fused("fused/all"));
  Variant mma = attention("attention/mma", {{"tile_kv", {64}, 64}});
  mma.target = {TargetKind::kCuda, 80, 0};
  mma.entries = {"attend"};
  registry.add(std::move(mma));
}

}  // namespace muse::fake
