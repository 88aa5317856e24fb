// SPDX-License-Identifier: Apache-2.0
// Kernels that ask the L2 to keep what they read. Also read by nvcc: C++17.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace muse::profiler {

/// Reads `bytes`, a multiple of 16; `keep`: with the hint that its lines are to be evicted last.
/// `sink` is written for a sum that data of one repeated byte never has.
void launch_hinted_read(CUstream_st* stream, const void* data, int64_t bytes, uint32_t* sink,
                        bool keep);
const void* hinted_read_entry(bool keep);

}  // namespace muse::profiler
