// SPDX-License-Identifier: Apache-2.0
// The words for how a trial ended and how a command ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace muse::tuner {

/// State of a trial; the names are those in the database (DESIGN section 6).
enum class Outcome : uint8_t {
  kPending,
  kRunning,
  kOk,
  kUnsupported,
  kCompileFailed,
  kCompileTimeout,
  kLaunchFailed,
  kIncorrect,
  kCrashed,
  kTimeout,
  kOom,
  kDegraded,
  kUnmeasurable,
};
std::string_view name(Outcome outcome);
std::optional<Outcome> parse_outcome(std::string_view text);
/// Ended for good under this key: reused, never repeated. Not pending, running.
bool is_final(Outcome outcome);
/// Measured: can win.
bool is_measured(Outcome outcome);

enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,
  kUsage = 2,
  kEnvironment = 3,
  kGateFailed = 4,
  kIncomplete = 5,
  kUndecidable = 6,
  kNotComparable = 7,
  kTerminated = 75,
  kInterrupted = 130,
};

}  // namespace muse::tuner
