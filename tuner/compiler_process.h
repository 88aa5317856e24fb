// SPDX-License-Identifier: Apache-2.0
// The parent's end of one compiler process: start it, hand it a candidate, watch it, end it.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "tuner/compile_protocol.h"
#include "tuner/process.h"
#include "tuner/protocol.h"
#include "tuner/worker_watch.h"

struct pollfd;

namespace muse::tuner {

/// Serves one request at a time. Ended where it is destroyed.
class CompilerProcess {
 public:
  using Clock = std::chrono::steady_clock;

  /// `executable`: muse-tune; empty = this process's own. The error says why it does not start.
  static tl::expected<std::unique_ptr<CompilerProcess>, std::string> start(
      const std::filesystem::path& executable);
  ~CompilerProcess();
  CompilerProcess(const CompilerProcess&) = delete;
  CompilerProcess& operator=(const CompilerProcess&) = delete;

  void ask(const CompileRequest& request, std::chrono::milliseconds deadline);
  bool busy() const { return deadline_.has_value(); }

  /// Adds what to wait for.
  void add_to(std::vector<pollfd>& fds) const;
  /// The process has ended, or makes no sense; it is of no use any more.
  struct Loss {
    bool late = false;    ///< it was put down for its deadline
    bool killed = false;  ///< somebody else ended it (SIGKILL, SIGTERM): no word on its request
    std::string reason;   ///< "compiler ended by signal 11 (SIGSEGV); its last words: ..."
  };
  /// Looks without waiting: nullopt while it works.
  std::optional<tl::expected<CompileReply, Loss>> look();

 private:
  CompilerProcess() = default;
  tl::unexpected<Loss> lose(Loss loss);
  /// Reads what is there; false at the end of the stream.
  bool drain();

  pid_t pid_ = -1;
  Fd socket_, error_output_;
  std::string unsent_;
  MessageBuffer replies_;
  LastWords words_;
  std::chrono::milliseconds limit_{0};
  std::optional<Clock::time_point> deadline_;  ///< of the request in flight
};

}  // namespace muse::tuner
