// SPDX-License-Identifier: Apache-2.0
// A shape as it is timed: its memory, and the chains that were bound to it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tuner/arena.h"
#include "tuner/backend.h"
#include "tuner/protocol.h"
#include "tuner/watched_backend.h"
#include "variants/registry.h"

namespace muse::tuner {

/// One candidate bound, with where it stands in its entrant.
struct Step {
  Program* program;
  int candidate;  ///< -1: of the feeder
};

/// A chain ready to run, feeder first.
struct BoundChain {
  std::vector<Step> feeder, chain;
  std::unique_ptr<Program> graph;    ///< the chain captured, where the target has graphs
  std::vector<std::string> kernels;  ///< what a sampler may see of the chain
  bool warm = false;                 ///< has run, untimed
  size_t copies = 1;                 ///< of the chain, each on data of its own; a time is of one
  std::string fault_reason;          ///< not empty: it cannot be bound
  Outcome fault = Outcome::kOk;
};

class TimedShape {
 public:
  /// The first three must outlive it.
  TimedShape(Backend& backend, Publisher& publisher, const Registry& registry, const Shape& shape,
             uint64_t seed);

  bool serves(const Shape& shape, uint64_t seed) const { return shape_ == shape && seed_ == seed; }
  bool has_memory(bool rotating) const { return !arenas_.empty() && rotates_ == rotating; }
  /// For one of the shape's own data, or (rotating) for as many of other data as outgrow the cache;
  /// in place of what was there, with all that was bound to it. All of it or none: with fewer
  /// copies a step would find its data in the cache. Throws TrialError.
  void make_memory(bool rotating);

  /// Bound in that place (see RoundRequest::placements), or with the fault that it has: what cannot
  /// be bound stays so for the shape. `index`: the entrant, for the progress page.
  BoundChain& bound(const EntrantText& entrant, int index, size_t placement);
  /// The memory of the first place.
  Arena& arena() { return *arenas_.front(); }

 private:
  Arena& place(size_t placement);
  void bind(Arena& arena, size_t copy, const Chain& all, size_t feeders, int index,
            BoundChain& bound);

  Backend& backend_;
  Publisher& publisher_;
  const Registry& registry_;
  const Shape shape_;
  const uint64_t seed_;
  // Members die in reverse: programs before the memory they point to.
  std::vector<std::unique_ptr<Arena>> arenas_;  ///< copies where it rotates, else places
  bool rotates_ = false;
  std::map<std::string, std::unique_ptr<Program>> programs_;  ///< by candidate, partials and copy
  std::map<std::string, BoundChain> chains_;                  ///< by feeder, chain and place
};

}  // namespace muse::tuner
