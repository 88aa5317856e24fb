// SPDX-License-Identifier: Apache-2.0
// The part of doctor that runs something on the device; of a build with CUDA only.
#pragma once

#include "tuner/commands/doctor.h"

#if defined(MUSE_HAS_CUDA)

namespace muse::tuner {

/// The device itself, its tracing, its ceilings. What a CUDA call reports becomes a FAIL.
void examine_device(int ordinal, bool quick, Examination& out);

/// Whether tracing would start, where there is no device to trace.
Check tracing_without_device();

}  // namespace muse::tuner

#endif
