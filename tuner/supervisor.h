// SPDX-License-Identifier: Apache-2.0
// The supervisor's side of the worker: spawn, ask, watch the deadline, contain what goes wrong.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "tuner/measurer.h"

namespace muse::tuner {

struct WorkerOptions {
  std::filesystem::path executable;          ///< default: this process's own
  std::string target = "host";               ///< "host" or "cuda:N"
  std::string timer = "host";                ///< profiler::name of a timer that the target has
  std::filesystem::path cache;               ///< cubins; CUDA only
  std::string toolkit;                       ///< that those were compiled with; CUDA only
  std::chrono::milliseconds deadline{2000};  ///< for one launch or binding of a variant
  std::chrono::milliseconds grace{1000};     ///< from TERM to KILL
  std::chrono::milliseconds start_deadline{30000};  ///< for the worker's hello, and for the canary
  /// For the host's own work between two launches (inputs, references): a hang of ours.
  std::chrono::milliseconds host_deadline{600000};
  /// For the same where the worker takes no CPU time either: it was stopped, or is blocked.
  std::chrono::milliseconds silence{60000};
  /// Called at each look (50 a second) once a worker was as silent for `told_silence`.
  std::function<void(std::chrono::milliseconds silent)> on_silence = [](auto) {};
  std::chrono::milliseconds told_silence{10000};
  /// Called where a worker was lost, not known by whose doing, and another one has taken its place.
  /// The text says in what it was lost and how; no outcome of a trial does.
  std::function<void(const std::string& loss)> on_replaced = [](const auto&) {};
  /// Not null: a request in flight ends within 3 s once this is not 0, with outcome kPending.
  const std::atomic<int>* stop = nullptr;
  /// Called once per request that waits for another process to let go of the device.
  std::function<void()> on_wait = [] {};
};

/// One worker process, respawned on demand. After a respawn a canary with a known answer runs
/// before anything else. Not thread-safe; the worker dies with the thread that first asked for it.
class Supervisor final : public Measurer {
 public:
  explicit Supervisor(WorkerOptions options);
  ~Supervisor() override;  ///< ends the worker: TERM, KILL, bounded wait
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  tl::expected<Hello, WorkerLoss> hello();
  tl::expected<ValidationReport, WorkerLoss> validate(const ValidateRequest& request) override;
  tl::expected<RoundReply, WorkerLoss> rounds(
      const RoundRequest& request, const std::function<void()>& meanwhile = [] {}) override;
  tl::expected<ValidationReport, WorkerLoss> revalidate(const RevalidateRequest& request) override;
  void set_deadline(std::chrono::milliseconds deadline) override;
  /// Ends an idle worker: the next request starts a fresh one. Where the worker left in peace, that
  /// one needs no canary.
  void retire();
  /// Worker could not be waited for (it ignores KILL), or the canary failed twice in a row: the
  /// device must be quarantined. Every later request fails at once.
  bool lost_device() const override;
  int respawns() const;  ///< workers that replaced a lost one, since retire()

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What the hidden command is told.
struct WorkerCall {
  std::string target, timer, cache, toolkit;  ///< as in WorkerOptions
  int fd = -1, progress_fd = -1;              ///< channel and progress page
  int parent_pid = 0;
};
/// The worker's exit status where the device failed under it; its last line says how.
inline constexpr int kDeviceFaultStatus = 3;
/// The hidden command: the worker's life. Returns its exit status.
int worker_main(const WorkerCall& call);

}  // namespace muse::tuner
