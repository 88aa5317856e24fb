// SPDX-License-Identifier: Apache-2.0
// The parts of the dispatch header behind its tables that are the same in every one.
#pragma once

#include <string_view>

namespace muse::tuner {

inline constexpr std::string_view kDispatchFunctions = R"header(
constexpr const PipelineInfo& info(Pipeline pipeline) noexcept {
  return kPipelines[static_cast<std::uint16_t>(pipeline)];
}

/// What these tables are worth on a device; ask once, at the start.
constexpr Guard guard(const Device& here) noexcept { return guard(kDevice, here); }

/// The pipeline for a key whose context is known. `feasible(Pipeline) noexcept -> bool` may refuse
/// one: then the next best is taken, in the end the base.
template <class Feasible = Anything>
constexpr Choice lookup(const Key& key, Guard tier, const Feasible& feasible = {}) noexcept {
  return find(kTable, kRules, key, tier, feasible);
}

/// The same for a graph that is captured once and replayed at every context: the least worst regret
/// over the contexts that were measured. The key's context does not matter.
template <class Feasible = Anything>
constexpr Choice lookup_captured(const Key& key, Guard tier,
                                 const Feasible& feasible = {}) noexcept {
  return find(kCapturedTable, kRules, key, tier, feasible);
}
)header";

/// Before the assertions on each variant.
inline constexpr std::string_view kDispatchBuilt = R"header(
#ifdef MUSE_DISPATCH_SOURCE_HASH
static_assert(detail::same_text(kSourceHash, MUSE_DISPATCH_SOURCE_HASH),
              "the dispatch table was tuned for other kernel sources: sweep and emit again");
#endif
#ifdef MUSE_DISPATCH_ISA
static_assert(detail::same_text(kDevice.isa, MUSE_DISPATCH_ISA),
              "the dispatch table is of another architecture than this build: sweep and emit on "
              "such a device");
#endif

#ifdef MUSE_BUILD_VARIANTS
namespace detail {
#define MUSE_DISPATCH_ENTRY(name, abi, source_hash) {name, abi, source_hash},
inline constexpr VariantAbi kBuilt[] = {MUSE_BUILD_VARIANTS(MUSE_DISPATCH_ENTRY){"", 0, ""}};
#undef MUSE_DISPATCH_ENTRY
/// Where this build has a name; -1 where it has nothing under it.
constexpr int built(const char* name) noexcept {
  for (int i = 0; *kBuilt[i].name != '\0'; ++i) {
    if (same_text(kBuilt[i].name, name)) return i;
  }
  return -1;
}
constexpr bool built_with_abi(const char* name, int abi) noexcept {
  const int place = built(name);
  return place >= 0 && kBuilt[place].abi == abi;
}
constexpr bool built_from(const char* name, const char* source_hash) noexcept {
  const int place = built(name);
  return place >= 0 && same_text(kBuilt[place].source_hash, source_hash);
}
}  // namespace detail
)header";

}  // namespace muse::tuner
