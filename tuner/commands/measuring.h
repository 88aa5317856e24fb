// SPDX-License-Identifier: Apache-2.0
// What the commands share that measure: how they stop, what they refuse, how they wait.
#pragma once

#include <atomic>
#include <functional>

namespace muse::tuner {

/// SIGINT and SIGTERM set what it gives from now on: the first one ends the work in order; a second
/// one ends the process at once.
const std::atomic<int>& catch_stops();

/// Throws CommandError(kUsage) for a build that is no Release, unless any will do.
void require_release_build(bool any_build);

/// Says that another process measures, at most once in 10 s: with several sweeps on one device
/// every round may wait.
std::function<void()> say_waiting(bool quiet);

}  // namespace muse::tuner
