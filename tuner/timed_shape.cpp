// SPDX-License-Identifier: Apache-2.0
// Memory made at need, candidates bound once for each place they run in.
#include "tuner/timed_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tuner/failure.h"
#include "tuner/timed_data.h"

namespace muse::tuner {
namespace {

/// The shape in the smallest pool, so that copies of it fit beside each other.
Shape compact(const Shape& shape) {
  Shape small = shape;
  small.lengths.pool_bytes = 1;
  return small;
}

/// How many copies of what one step reads outgrow three times the last cache. At least two, so that
/// a copy never finds its own data.
int64_t rotating_copies(const Shape& shape, int64_t cache_bytes) {
  constexpr int64_t kMost = 512;
  const int64_t bytes = std::max<int64_t>(compulsory_bytes(shape, kWholeStep), 1);
  const int64_t copies = std::max<int64_t>(2, (3 * cache_bytes + bytes - 1) / bytes);
  if (copies <= kMost) return copies;
  throw TrialError(Outcome::kUnmeasurable,
                   fmt::format("a step reads {} bytes: {} copies would outgrow three times the "
                               "cache of {} bytes, and at most {} are made",
                               bytes, copies, cache_bytes, kMost));
}

std::string program_key(const Candidate& candidate, const Handoff& partials, size_t copy) {
  return fmt::format("{}@{}_{}#{}", key(candidate), partials.split_capacity,
                     static_cast<int>(partials.partial_type), copy);
}

}  // namespace

TimedShape::TimedShape(Backend& backend, Publisher& publisher, const Registry& registry,
                       const Shape& shape, uint64_t seed)
    : backend_(backend), publisher_(publisher), registry_(registry), shape_(shape), seed_(seed) {}

void TimedShape::make_memory(bool rotating) {
  chains_.clear();
  programs_.clear();
  arenas_.clear();
  rotates_ = rotating;
  std::vector<std::unique_ptr<Arena>> made;
  const int64_t copies = rotating ? rotating_copies(shape_, backend_.device_class().l2_bytes) : 0;
  if (!rotating) made.push_back(make_timed_arena(backend_, shape_, seed_));
  for (int64_t copy = 0; copy < copies; ++copy) {
    Shape other = compact(shape_);
    other.lengths.seed += static_cast<uint64_t>(copy);
    made.push_back(make_timed_arena(backend_, other, seed_ + static_cast<uint64_t>(copy)));
  }
  arenas_ = std::move(made);
}

// Memory of its own for all but the caches, which are the first place's.
Arena& TimedShape::place(size_t placement) {
  while (arenas_.size() <= placement) {
    arenas_.push_back(make_timed_arena_beside(backend_, shape_, seed_, *arenas_.front()));
  }
  return *arenas_[placement];
}

BoundChain& TimedShape::bound(const EntrantText& entrant, int index, size_t placement) {
  if (rotates_) placement = 0;  // its copies are places enough
  const auto [found, added] =
      chains_.try_emplace(fmt::format("{} > {} #{}", entrant.feeder, entrant.chain, placement));
  BoundChain& bound = found->second;
  if (!added) return bound;
  try {
    const auto parse = [&](const std::string& text) {
      auto chain = registry_.parse_chain(text);
      if (!chain) throw TrialError(Outcome::kUnsupported, chain.error());
      return *std::move(chain);
    };
    Chain all = entrant.feeder.empty() ? Chain{} : parse(entrant.feeder);
    const size_t feeders = all.size();
    const Chain timed = parse(entrant.chain);
    all.insert(all.end(), timed.begin(), timed.end());
    all.pdl = timed.pdl;
    if (const Support joined = joins(shape_.problem, all); !joined.ok()) {
      throw TrialError(Outcome::kUnsupported, joined.reason);
    }
    if (span(all).first != Stage::kPrepare) {
      throw TrialError(Outcome::kUnmeasurable, "nothing computes what the first stage reads");
    }
    if (rotates_) {
      bound.copies = arenas_.size();
      for (size_t copy = 0; copy < bound.copies; ++copy) {
        bind(*arenas_[copy], copy, all, feeders, index, bound);
      }
    } else {
      bind(place(placement), placement, all, feeders, index, bound);
    }
    std::vector<Program*> programs;
    for (const Step& step : bound.chain) programs.push_back(step.program);
    bound.graph = backend_.capture(programs, all.pdl, timed.size());
    if (bound.graph) bound.chain = {{bound.graph.get(), 0}};
    for (const Step& step : bound.chain) {
      for (std::string& kernel : step.program->kernels()) bound.kernels.push_back(kernel);
    }
  } catch (...) {
    const Failure failure = current_failure();
    bound = {};
    bound.fault_reason = failure.reason;
    bound.fault = failure.outcome;
  }
  return bound;
}

// Adds a copy of the chain's programs, on that arena, to the bound ones.
void TimedShape::bind(Arena& arena, size_t copy, const Chain& all, size_t feeders, int index,
                      BoundChain& bound) {
  const Problem& problem = shape_.problem;
  Handoff partials{.kind = HandoffKind::kO};  // anything without partials
  for (size_t i = 0; i < all.size(); ++i) {
    const Candidate& candidate = all[i];
    const int number = i < feeders ? -1 : static_cast<int>(i - feeders);
    publisher_.at(index, number, -1);
    const Handoff left = candidate.variant->produces(problem, candidate.configuration);
    if (left.kind == HandoffKind::kPartials) partials = left;
    std::unique_ptr<Program>& program = programs_[program_key(candidate, partials, copy)];
    if (!program) {
      const Geometry geometry =
          candidate.variant->geometry(problem, candidate.configuration, backend_.device_class());
      program = backend_.bind(candidate, problem, arena.buffers(partials, false),
                              arena.workspace(key(candidate), geometry.workspace));
    }
    (number < 0 ? bound.feeder : bound.chain).push_back({program.get(), number});
  }
}

}  // namespace muse::tuner
