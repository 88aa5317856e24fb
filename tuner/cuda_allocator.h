// SPDX-License-Identifier: Apache-2.0
// Device memory that is kept when it is given back: validating a candidate takes and returns a
// dozen buffers, and the driver takes longer for that than the device for the work.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

namespace muse::tuner {

class CudaAllocator {
 public:
  CudaAllocator() = default;
  ~CudaAllocator();
  CudaAllocator(const CudaAllocator&) = delete;
  CudaAllocator& operator=(const CudaAllocator&) = delete;

  /// 256-byte aligned. At most 2 GiB are kept, and given back before this fails. Throws
  /// TrialError(kOom) with requested and free bytes.
  void* allocate(int64_t bytes);
  /// Null is none. Whoever still reads or writes it was enqueued before whatever the next owner
  /// enqueues: one stream is all that a backend has.
  void release(void* address);

 private:
  void trim();

  std::unordered_map<void*, int64_t> bytes_;    ///< of every block, kept ones too
  std::map<int64_t, std::vector<void*>> kept_;  ///< by bytes
  int64_t kept_bytes_ = 0;
};

}  // namespace muse::tuner
