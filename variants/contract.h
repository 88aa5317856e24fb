// SPDX-License-Identifier: Apache-2.0
// What the contracts of variants have in common on every target: values of tunables, hand-offs that
// they take, the span of attention.
#pragma once

#include <cstdint>
#include <string_view>

#include "variants/variant.h"

namespace muse {

/// The value of a tunable the configuration must have; throws std::out_of_range without it.
int64_t value(const Configuration& configuration, std::string_view tunable);

/// Yes for a hand-off of that kind.
Support takes(HandoffKind kind, const Handoff& handoff);

/// Yes for Partials of at most `max_splits` splits.
Support takes_partials(const Handoff& handoff, int64_t max_splits);

/// What attention covers with a capacity of `splits`: with one split it covers combine too.
Span attention_span(int64_t splits);
/// What attention leaves behind with a capacity of `splits`: O with one, else Partials.
Handoff attention_handoff(int64_t splits, PartialType type);

}  // namespace muse
