// SPDX-License-Identifier: Apache-2.0
// Memory of the current device that is freed with its owner.
#pragma once

#include <cstddef>
#include <cstdint>

namespace muse::profiler {

class DeviceMemory {
 public:
  /// Throws DeviceError.
  explicit DeviceMemory(int64_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  template <class T>
  T* as(int64_t offset_bytes = 0) const {
    return reinterpret_cast<T*>(data() + offset_bytes);
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_;
  void* data_ = nullptr;
};

}  // namespace muse::profiler
