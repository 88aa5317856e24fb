// SPDX-License-Identifier: Apache-2.0
// Pipelines that race on a shape although its own spans did not bring them up: what won on its
// siblings or came close, and what earlier tables answer. Pure.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "profiler/sampler.h"
#include "tuner/emit.h"
#include "tuner/settle.h"
#include "tuner/shape_kind.h"
#include "variants/variant.h"

namespace muse::tuner {

/// What is worth trying elsewhere of what raced on a shape.
struct CloseRace {
  Chain winner;              ///< empty: nothing valid
  std::vector<Chain> close;  ///< the winner and those within 8 % of it, best first
};
/// At most the twelve fastest of those that do not only differ in their prepare or in how they are
/// launched, each in every such form that came close.
CloseRace close_race(const Settled& settled);

/// The pipelines that are worth trying elsewhere, by kind of shape and regime. Batch and context
/// may differ: a lookup goes from one to the other, and tables can only weigh between shapes, or
/// name for every context, what was measured under each.
class Siblings {
 public:
  void add(const Shape& shape, profiler::Regime regime, const CloseRace& race);
  /// What was good on the shape or its siblings, each once, by key: every winner as it is, and of
  /// pipelines that differ in their prepare or in how they are launched alone the one that was
  /// close most often; of equals the one that was ahead of the others most often. So whatever came
  /// close somewhere behind its prepare has been measured on every shape in one and the same form.
  std::vector<Chain> chains(const Shape& shape, profiler::Regime regime) const;

 private:
  struct Form {
    Chain chain;
    int close = 0, ahead = 0;  ///< on so many shapes; of the other forms
  };
  struct Good {
    std::map<std::string, Chain> winners;                      ///< by key
    std::map<std::string, std::map<std::string, Form>> forms;  ///< by what is behind prepare, key
  };
  std::map<std::pair<profiler::Regime, ShapeKind>, Good> good_;
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
