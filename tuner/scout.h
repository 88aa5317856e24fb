// SPDX-License-Identifier: Apache-2.0
// A search over one group: batches are timed in short races until the share to be seen is seen.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tuner/settle.h"
#include "tuner/spec.h"

namespace muse::tuner {

/// How much of a group's candidates a search saw.
struct SearchedShare {
  std::string shape, span, handoff, regime;
  SearchKind kind = SearchKind::kExhaustive;
  int seen = 0, of = 0;
};

/// What a search chose.
struct Searched {
  std::vector<Chain> seen;  ///< to be raced
  std::vector<Chain> unseen;
};

/// Asks the searcher of the spec's rules, and lets the settler scout each of its batches but the
/// last, of which nothing depends. `chains`: one candidate each. A function of what the scouts
/// tell: where they are stored, nothing runs. nullopt where the work was stopped.
std::optional<Searched> search(const Spec& spec, const Hello& hello, uint64_t seed,
                               Settler& settler, const RaceGroup& group,
                               const std::vector<Chain>& chains, const Chain& base,
                               const Chain& feeder);

/// Begins the reason of a trial that a search left out.
inline constexpr char kNotSeen[] = "not seen: ";

/// "guided search measured 11 of 72"
std::string text(const SearchedShare& share);

}  // namespace muse::tuner
