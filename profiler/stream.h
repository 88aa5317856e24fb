// SPDX-License-Identifier: Apache-2.0
// A stream of the current device that is destroyed with its owner.
#pragma once

struct CUstream_st;

namespace muse::profiler {

class Stream {
 public:
  Stream();  ///< throws DeviceError
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CUstream_st* get() const { return stream_; }
  void synchronize() const;  ///< throws DeviceError

 private:
  CUstream_st* stream_ = nullptr;
};

}  // namespace muse::profiler
