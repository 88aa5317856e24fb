// SPDX-License-Identifier: Apache-2.0
// The common pieces.
#include "variants/contract.h"

#include <fmt/format.h>

#include <stdexcept>

namespace muse {

int64_t value(const Configuration& configuration, std::string_view tunable) {
  const auto found = configuration.find(tunable);
  if (found == configuration.end()) {
    throw std::out_of_range(fmt::format("configuration without tunable '{}'", tunable));
  }
  return found->second;
}

Support takes(HandoffKind kind, const Handoff& handoff) {
  if (handoff.kind == kind) return Support::yes();
  return Support::no(fmt::format("takes {}, not {}", name(kind), name(handoff.kind)));
}

Support takes_partials(const Handoff& handoff, int64_t max_splits) {
  if (handoff.kind == HandoffKind::kPartials && handoff.split_capacity > max_splits) {
    return Support::no(
        fmt::format("takes at most {} splits, not {}", max_splits, handoff.split_capacity));
  }
  return takes(HandoffKind::kPartials, handoff);
}

Span attention_span(int64_t splits) {
  return {Stage::kAttention, splits > 1 ? Stage::kAttention : Stage::kCombine};
}

Handoff attention_handoff(int64_t splits, PartialType type) {
  if (splits == 1) return {.kind = HandoffKind::kO};
  return {.kind = HandoffKind::kPartials, .partial_type = type, .split_capacity = splits};
}

}  // namespace muse
