// SPDX-License-Identifier: Apache-2.0
// The five gates of right: poison, prepare, attention, gate, end to end. A failure names gate,
// buffer, index, got, expected and limit.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tuner/backend.h"
#include "tuner/inputs.h"

namespace muse::tuner {

enum class Gate : uint8_t { kPoison, kPrepare, kAttention, kGate, kEndToEnd };
std::string_view name(Gate gate);  ///< poison, prepare, attention, gate, end_to_end

struct GateFailure {
  std::string buffer;
  int64_t index = -1;  ///< element in the buffer, -1 = a figure of the whole tensor
  double got = 0, expected = 0, limit = 0;
  std::string what;  ///< e.g. "element never written", "relRMS", "guard band broken"
  /// "gate attention, buffer o, index 1234: got 0.5, expected 0.25, limit 0.01 (element error)"
  std::string text(Gate gate) const;
};

struct GateResult {
  Gate gate;
  Fill fill = Fill::kNormal;
  bool passed = false;
  std::map<std::string, double> metrics;  ///< relrms, worst_cosine, mismatches, max_ulp, ...
  std::optional<GateFailure> failure;
};

struct ValidationReport {
  Outcome outcome = Outcome::kOk;  ///< kOk, kIncorrect, kUnmeasurable (no taps), or the TrialError's
  std::string reason;              ///< first failure's text
  std::vector<GateResult> gates;
};

struct ValidateOptions {
  uint64_t seed = 1;
  std::vector<Fill> fills{Fill::kNormal, Fill::kFlat, Fill::kMeanOne};
  int64_t reference_budget = 4'000'000;  ///< attended keys per fill that the float64 reference takes
  /// Called with true before host-only reference work and false after it: such time is not the
  /// candidate's.
  std::function<void(bool reference)> phase = [](bool) {};
  /// Called before each launch of the candidate under test.
  std::function<void(int candidate, int launch)> announce = [](int, int) {};
};

/// Runs the chain's span on the shape, fed with reference data where it starts after prepare, and
/// judges every gate that its span touches. Never throws for what the chain does in this process
/// (a C++ exception thrown by a candidate is kLaunchFailed); a crash takes the process with it.
ValidationReport validate(Backend& backend, const Chain& chain, const Shape& shape,
                          const ValidateOptions& options);

}  // namespace muse::tuner
