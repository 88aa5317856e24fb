// SPDX-License-Identifier: Apache-2.0
// Stops, builds and waits of sweep and check.
#include "tuner/commands/measuring.h"

#include <fmt/format.h>
#include <signal.h>

#include <chrono>

#include "tuner/build_info.h"
#include "tuner/commands/command.h"

namespace muse::tuner {
namespace {

std::atomic<int> stop_signal{0};

extern "C" void on_stop(int signal) { stop_signal = signal; }

}  // namespace

const std::atomic<int>& catch_stops() {
  struct sigaction action {};
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return stop_signal;
}

void require_release_build(bool any_build) {
  if (build_info().build_type == "Release" || any_build) return;
  throw CommandError(ExitCode::kUsage,
                     fmt::format("this is a {} build: its times say nothing about production; "
                                 "build with CMAKE_BUILD_TYPE=Release, or pass --any-build",
                                 build_info().build_type));
}

std::function<void()> say_waiting(bool quiet) {
  return [quiet, last = std::chrono::steady_clock::time_point()]() mutable {
    const auto now = std::chrono::steady_clock::now();
    if (quiet || (last.time_since_epoch().count() != 0 && now - last < std::chrono::seconds(10))) {
      return;
    }
    last = now;
    say("waiting: another process measures on this device");
  };
}

}  // namespace muse::tuner
