// SPDX-License-Identifier: Apache-2.0
// Pipelines that race on a shape although its own spans did not bring them up: what won where only
// the context differs, and what earlier tables answer. Pure.
#pragma once

#include <vector>

#include "profiler/sampler.h"
#include "tuner/emit.h"
#include "variants/variant.h"

namespace muse::tuner {

/// A whole step that has been decided for a shape and a regime.
struct DecidedStep {
  Shape shape;
  profiler::Regime regime = profiler::Regime::kCold;
  std::vector<Chain> raced;
  Chain winner;  ///< empty: nothing valid
};

/// For each of `decided` the winners of those whose lookup key differs by the context alone, in the
/// same regime, that have not raced there: a table for every context can only name what was
/// measured under each. By key.
std::vector<std::vector<Chain>> sibling_winners(const std::vector<DecidedStep>& decided);

/// An emitted table, and what it is worth on the device at hand.
struct Incumbent {
  DispatchTable table;
  dispatch::Guard guard = dispatch::Guard::kForeign;
};

/// What the table answers for a shape, with its context and without; nothing for a base by default.
/// Chain keys, each once, ordered.
std::vector<std::string> answers(const Incumbent& incumbent, const Shape& shape);

}  // namespace muse::tuner
