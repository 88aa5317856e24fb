// SPDX-License-Identifier: Apache-2.0
// What the contracts of host variants have in common: checks of a problem against this machine, the
// one launch, the thread tunable.
#pragma once

#include <cstdint>
#include <string>

#include "variants/contract.h"
#include "variants/variant.h"

namespace muse::host {

/// threads {1, 2, 4}, 1 unless tuned.
Tunable threads_tunable();

/// What every host variant refuses: a device that is no host, more threads than its CPUs, heads
/// that do not divide, a head_dim that is no multiple of `dim_multiple` or above 256.
Support check_host(const Problem& problem, const DeviceClass& device, int64_t threads,
                   int64_t dim_multiple);

/// One launch with that many threads.
Geometry one_launch(const std::string& label, int64_t threads, int64_t workspace_bytes = 0);

/// Rounds bytes up to whole cache lines, so that areas of different threads share none.
constexpr int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace muse::host
