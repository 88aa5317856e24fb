// SPDX-License-Identifier: Apache-2.0
// The profiler's own kernels: they move known bytes or spend known time. Each launch is enqueued on
// a stream of the current device and throws DeviceError where that fails. Also read by nvcc: C++17.
#pragma once

#include <cstdint>
#include <string>

struct CUstream_st;

namespace muse::profiler {

/// One block that does nothing. `programmatic`: may start before its predecessor on the stream has
/// ended (from CC 9.0 on).
void launch_null(CUstream_st* stream, bool programmatic = false);

/// One thread that spends `cycles` of the SM clock.
void launch_spin(CUstream_st* stream, int64_t cycles);

/// One block that spends half of `cycles`, lets its successor start, waits for its predecessor, and
/// spends the other half: a chain of them overlaps by halves if it is programmatic.
void launch_link(CUstream_st* stream, int64_t cycles, bool programmatic);

/// Reads `bytes`, a multiple of 16, past the L1; `sink` is written for a value that data filled
/// with one byte never sums to.
void launch_read(CUstream_st* stream, const void* data, int64_t bytes, uint32_t* sink);

/// The same with the hint that the L2 is to evict these lines last.
void launch_keeping_read(CUstream_st* stream, const void* data, int64_t bytes, uint32_t* sink);
/// Withdraws that hint: makes the lines of `bytes`, a multiple of 128 from a line's start on,
/// ordinary ones.
void launch_demote(CUstream_st* stream, const void* data, int64_t bytes);

void launch_write(CUstream_st* stream, void* data, int64_t bytes);
void launch_copy(CUstream_st* stream, void* target, const void* source, int64_t bytes);

/// For each of `rows` indices reads the row of that number from both pools. Rows lie 128 bytes
/// apart; `row_bytes` of each are read: 128, or 64 for half of it.
struct GatherArgs {
  const void* k_pool;    ///< [pool_rows, 128]
  const void* v_pool;    ///< [pool_rows, 128]
  const int32_t* table;  ///< [rows]
  int64_t rows;
  int row_bytes;
  uint32_t* sink;
};
void launch_gather(CUstream_st* stream, const GatherArgs& args);

/// Which kernel a launch above runs.
enum class OwnKernel : uint8_t {
  kNull,
  kSpin,
  kLink,
  kRead,
  kKeepingRead,
  kDemote,
  kWrite,
  kCopy,
  kGather128,
  kGather64
};
/// Its mangled symbol.
std::string symbol(OwnKernel kernel);

}  // namespace muse::profiler
