// SPDX-License-Identifier: Apache-2.0
// Comparing two pieces of device memory on the device.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace muse::tuner {

/// Enqueues: *result = the offset of the first byte that differs, if that is less than *result.
/// All pointers on the device. Returns the cudaError_t of the launch.
int enqueue_first_difference(const void* a, const void* b, int64_t bytes,
                             unsigned long long* result, CUstream_st* stream);

}  // namespace muse::tuner
