// SPDX-License-Identifier: Apache-2.0
// The supervisor's side of the worker: spawn, ask, watch the deadline, contain what goes wrong.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "tuner/protocol.h"

namespace muse::tuner {

/// The worker is gone or was put down.
struct WorkerLoss {
  Outcome outcome = Outcome::kCrashed;  ///< kCrashed, kTimeout, kOom (killed for memory)
  std::string reason;                   ///< "worker ended by signal 11 (SIGSEGV)", ...
  int entrant = -1, candidate = -1, launch = -1;  ///< where it was, from the progress page
};

struct WorkerOptions {
  std::filesystem::path executable;  ///< default: this process's own
  std::string target = "host";
  std::chrono::milliseconds deadline{2000};   ///< between two beats of progress
  std::chrono::milliseconds grace{1000};      ///< from TERM to KILL
  std::chrono::milliseconds start_deadline{30000};
};

/// One worker process, respawned on demand. After a respawn a canary with a known answer runs before
/// anything else. Not thread-safe.
class Supervisor {
 public:
  explicit Supervisor(WorkerOptions options);
  ~Supervisor();  ///< ends the worker: TERM, KILL, bounded wait
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  tl::expected<Hello, WorkerLoss> hello();
  tl::expected<ValidationReport, WorkerLoss> validate(const ValidateRequest& request);
  tl::expected<RoundReply, WorkerLoss> round(const RoundRequest& request);
  void set_deadline(std::chrono::milliseconds deadline);
  /// Worker could not be waited for (it ignores KILL): the device must be quarantined.
  bool lost_device() const;
  int respawns() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The hidden command: the worker's life on the other end of descriptor `fd` with the progress page
/// on `progress_fd`. Returns its exit status.
int worker_main(const std::string& target, int fd, int progress_fd, int parent_pid);

}  // namespace muse::tuner
