// SPDX-License-Identifier: Apache-2.0
// Names of outcomes, and which of them end a trial.
#include "tuner/outcome.h"

namespace muse::tuner {

std::string_view name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPending:
      return "pending";
    case Outcome::kRunning:
      return "running";
    case Outcome::kOk:
      return "ok";
    case Outcome::kUnsupported:
      return "unsupported";
    case Outcome::kCompileFailed:
      return "compile_failed";
    case Outcome::kCompileTimeout:
      return "compile_timeout";
    case Outcome::kLaunchFailed:
      return "launch_failed";
    case Outcome::kIncorrect:
      return "incorrect";
    case Outcome::kCrashed:
      return "crashed";
    case Outcome::kTimeout:
      return "timeout";
    case Outcome::kOom:
      return "oom";
    case Outcome::kDegraded:
      return "degraded";
    case Outcome::kUnmeasurable:
      return "unmeasurable";
  }
  return "";
}

std::optional<Outcome> parse_outcome(std::string_view text) {
  for (int i = 0; i <= static_cast<int>(Outcome::kUnmeasurable); ++i) {
    const auto outcome = static_cast<Outcome>(i);
    if (name(outcome) == text) return outcome;
  }
  return std::nullopt;
}

bool is_final(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPending:
    case Outcome::kRunning:
      return false;
    case Outcome::kOk:
    case Outcome::kUnsupported:
    case Outcome::kCompileFailed:
    case Outcome::kCompileTimeout:
    case Outcome::kLaunchFailed:
    case Outcome::kIncorrect:
    case Outcome::kCrashed:
    case Outcome::kTimeout:
    case Outcome::kOom:
    case Outcome::kDegraded:
    case Outcome::kUnmeasurable:
      return true;
  }
  return false;
}

bool is_measured(Outcome outcome) {
  return outcome == Outcome::kOk || outcome == Outcome::kDegraded;
}

}  // namespace muse::tuner
