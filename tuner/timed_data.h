// SPDX-License-Identifier: Apache-2.0
// A shape's data on the target for timing: every number is there, none is to be judged.
#pragma once

#include <cstdint>
#include <memory>

#include "tuner/arena.h"

namespace muse::tuner {

/// Deterministic in (shape, seed). Inputs as make_inputs() makes them, save that codes of the
/// caches repeat after kRepeatedBytes: to make a gibibyte on the host takes longer than a race.
std::unique_ptr<Arena> make_timed_arena(Backend& backend, const Shape& shape, uint64_t seed);
inline constexpr int64_t kRepeatedBytes = int64_t{16} << 20;

/// The same data in memory of its own, but for the caches, which are those of `first`.
std::unique_ptr<Arena> make_timed_arena_beside(Backend& backend, const Shape& shape, uint64_t seed,
                                               const Arena& first);

/// Everything but the caches; the arena's buffers may be longer. Throws TrialError.
void upload_inputs(Arena& arena, const Inputs& inputs);

}  // namespace muse::tuner
