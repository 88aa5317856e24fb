// SPDX-License-Identifier: Apache-2.0
// Pipelines that race on a shape although its own spans did not bring them up: what won on its
// siblings or came close, and what earlier tables answer. Pure.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "profiler/sampler.h"
#include "tuner/emit.h"
#include "tuner/settle.h"
#include "variants/variant.h"

namespace muse::tuner {

/// What won, and what may do better between shapes: the fastest six pipelines within 3 % of the
/// winner, of those that differ in their prepare alone the fastest.
std::vector<Chain> worth_trying_elsewhere(const Settled& settled);

/// The pipelines that are worth trying elsewhere, by what makes shapes siblings: the structure that
/// a lookup must meet exactly (heads, head_dim, page class, windowed or not, RoPE or not, scaled or
/// not), q_len and the regime. Batch and context may differ: a lookup goes from one to the other,
/// and tables can only weigh between shapes, or name for every context, what was measured under
/// each.
class Siblings {
 public:
  void add(const Shape& shape, profiler::Regime regime, const Chain& chain);
  /// What was added for the shape and its siblings, each once, by key.
  std::vector<Chain> chains(const Shape& shape, profiler::Regime regime) const;

 private:
  using Kind =
      std::tuple<profiler::Regime, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool, bool>;
  static Kind kind(const Shape& shape, profiler::Regime regime);

  std::map<Kind, std::map<std::string, Chain>> chains_;
};

/// An emitted table, and what it is worth on the device at hand.
struct Incumbent {
  DispatchTable table;
  dispatch::Guard guard = dispatch::Guard::kForeign;
};

/// What the table answers for a shape, with its context and without; nothing for a base by default.
/// Chain keys, each once, ordered.
std::vector<std::string> answers(const Incumbent& incumbent, const Shape& shape);

}  // namespace muse::tuner
