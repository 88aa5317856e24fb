// SPDX-License-Identifier: Apache-2.0
// The five gates of right: poison, prepare, attention, gate, end to end. A failure names gate,
// buffer, index, got, expected and limit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tuner/backend.h"
#include "tuner/gates.h"
#include "tuner/inputs.h"
#include "tuner/validation_bench.h"

namespace muse::tuner {

struct ValidationReport {
  /// kOk, kIncorrect, kUnmeasurable (no taps), kUnsupported, or the TrialError's.
  Outcome outcome = Outcome::kOk;
  std::string reason;  ///< first failure's text
  /// One per gate and fill in the order first judged; validation ends at the first failure.
  std::vector<GateResult> gates;
};

struct ValidateOptions {
  uint64_t seed = 1;  ///< a bench has its own
  /// At least one. Chains without attention use the first alone: the others differ in the cache
  /// only.
  std::vector<Fill> fills{Fill::kNormal, Fill::kFlat, Fill::kMeanOne};
  /// Attended keys per fill that the float64 reference takes; a target that computes it itself
  /// takes all.
  int64_t reference_budget = 4'000'000;
  /// Called with true before host-only reference work and false after it: such time is not the
  /// candidate's.
  std::function<void(bool reference)> phase = [](bool) {};
  /// Called before each launch of the candidate under test.
  std::function<void(int candidate, int launch)> announce = [](int, int) {};
};

/// Runs the chain's span on the bench's shape, fed with reference data where it starts after
/// prepare, and judges every gate that its span touches. The pool is shrunk to what the lengths
/// need as long as its offsets fit in 31 bits. Never throws for what the chain does in this process
/// (an exception thrown by a candidate is kLaunchFailed); a crash takes the process with it. What
/// does not depend on the chain stays in the bench for the next one.
ValidationReport validate(ValidationBench& bench, const Chain& chain,
                          const ValidateOptions& options);

/// On a bench for this one validation.
ValidationReport validate(Backend& backend, const Chain& chain, const Shape& shape,
                          const ValidateOptions& options);

}  // namespace muse::tuner
