// SPDX-License-Identifier: Apache-2.0
// Whoever validates and times candidates: the worker behind its supervisor, or a script in tests.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <tl/expected.hpp>

#include "tuner/protocol.h"

namespace muse::tuner {

/// The worker is gone or was put down.
struct WorkerLoss {
  Outcome outcome = Outcome::kCrashed;  ///< kCrashed, kTimeout, kOom (killed for memory), kPending
                                        ///< (stopped)
  std::string reason;                   ///< "worker ended by signal 11 (SIGSEGV)", ...
  int entrant = -1, candidate = -1, launch = -1;  ///< where it was, from the progress page
  /// Not known to be a candidate's doing: a KILL or TERM that was not the supervisor's, or a worker
  /// that did not start or failed its canary.
  bool blameless = false;
  bool no_worker = false;  ///< none could be started: nothing of the request has run
  std::string last_words;  ///< the end of its stderr, at most 8 KiB, as plain_text()
  /// It never came up: the worker's refusal, "device" or "timer" in `what`.
  std::optional<Refusal> refusal;
};

class Measurer {
 public:
  virtual ~Measurer() = default;
  virtual tl::expected<ValidationReport, WorkerLoss> validate(const ValidateRequest& request) = 0;
  /// As many of the rounds asked for as fit into its time, at least one. `meanwhile` runs once,
  /// while they do; not at all where they cannot be asked for.
  virtual tl::expected<RoundReply, WorkerLoss> rounds(
      const RoundRequest& request, const std::function<void()>& meanwhile = [] {}) = 0;
  virtual tl::expected<ValidationReport, WorkerLoss> revalidate(
      const RevalidateRequest& request) = 0;
  virtual void set_deadline(std::chrono::milliseconds deadline) = 0;
  /// Nothing can be measured any more: every later request fails at once.
  virtual bool lost_device() const = 0;
};

}  // namespace muse::tuner
