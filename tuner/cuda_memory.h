// SPDX-License-Identifier: Apache-2.0
// Many pieces of device memory filled, copied or compared by one kernel: a launch for each of a
// thousand rows would cost more than the rows.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace muse::tuner {

/// At most so many bytes a piece: a block of threads takes one.
inline constexpr int64_t kPieceBytes = int64_t{256} << 10;

/// A piece of what is to be put or compared. On the device, as what it points to.
struct MemoryPiece {
  void* target;        ///< compared: what is there
  const void* source;  ///< null: `byte` over and over; compared: what should be there
  uint32_t bytes;
  uint32_t byte;
  uint64_t position;  ///< of the first byte in all that is compared
};

/// Enqueues: every piece's bytes into its target. Returns the cudaError_t of the launch.
int enqueue_put(const MemoryPiece* pieces, int64_t count, CUstream_st* stream);

/// Enqueues: *result = the position of the first byte that differs, if that is less than *result.
/// Returns the cudaError_t of the launch.
int enqueue_first_difference(const MemoryPiece* pieces, int64_t count, unsigned long long* result,
                             CUstream_st* stream);

}  // namespace muse::tuner
