// SPDX-License-Identifier: Apache-2.0
// Whether what was timed computes: the same programs in the same memory, on data that they have not
// seen. Catches what keeps results, or stops working, once it has run often enough.
#pragma once

#include <cstdint>
#include <functional>

#include "tuner/arena.h"
#include "tuner/validate.h"

namespace muse::tuner {

/// The metric that tells a re-validation's verdict from those before the race.
inline constexpr const char* kOtherDataSeed = "other_data_seed";

/// `shape` with lengths, page order and pages of another seed: no request is longer than before,
/// and the pool is as large. Only requests longer than q_len become shorter.
Shape with_other_lengths(const Shape& shape, uint64_t seed);

/// Puts inputs of with_other_lengths(shape, seed) into the arena of `shape` and poison into the rows
/// that the step is to write, calls `run` (the whole step, to its end), once more after hand-offs and
/// results are poisoned too, and judges both `out` by the end-to-end gate. The arena's data are not
/// those of `shape` afterwards.
/// Throws what `run` throws.
ValidationReport revalidate(Backend& backend, Arena& arena, const Shape& shape, uint64_t seed,
                            const std::function<void()>& run);

}  // namespace muse::tuner
