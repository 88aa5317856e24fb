// SPDX-License-Identifier: Apache-2.0
// Times GPU work by CUDA events around it.
#pragma once

#include <memory>

#include "profiler/sampler.h"

struct CUstream_st;

namespace muse::profiler {

/// Samples of work enqueued on `stream`, a stream of the current device. The time includes what the
/// stream spends between two events around nothing, some 2 us, and whatever the host takes longer
/// to enqueue than the device to run. `kernels` cannot be checked. Throws DeviceError, take() too.
std::unique_ptr<Sampler> make_event_sampler(CUstream_st* stream);

}  // namespace muse::profiler
