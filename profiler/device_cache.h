// SPDX-License-Identifier: Apache-2.0
// Puts the L2 cache of a GPU into the cold state before a sample.
#pragma once

#include <cstdint>
#include <string>

#include "profiler/device_memory.h"

struct CUstream_st;

namespace muse::profiler {

/// Makes lines that kernels marked as persisting ordinary ones, and gives back the part of the L2
/// that is set aside for them, so that nothing outlives a flush. Not enqueued: to be called while
/// nothing that is timed runs. Of the current device. Throws DeviceError.
void reset_persisting();

/// Reads a buffer of its own that is at least twice the L2, with the hint that its lines are to be
/// evicted last, and takes the hint back: lines with that hint of earlier kernels outlive a read
/// without it, and the kernel that is timed must not have to evict such lines. It reads because a
/// write would leave dirty lines, whose write-back would then run inside the timed kernel.
class DeviceCache {
 public:
  /// Of the current device; allocates and fills the buffer. Throws DeviceError.
  explicit DeviceCache(CUstream_st* stream);

  /// Enqueues that on the stream. Throws DeviceError where the launch fails.
  void flush();
  int64_t bytes() const { return bytes_; }
  /// How the device flushes, reset_persisting() before batches included; part of the protocol hash.
  std::string recipe() const;

 private:
  CUstream_st* stream_;
  int64_t bytes_;
  DeviceMemory data_;  ///< the bytes read, and room for a word that keeps their sum alive
};

}  // namespace muse::profiler
