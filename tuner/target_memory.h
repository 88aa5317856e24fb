// SPDX-License-Identifier: Apache-2.0
// Memory on the target that owns itself, and bytes to be read there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tuner/backend.h"

namespace muse::tuner {

/// A block of target memory; empty where default-made.
class TargetBlock {
 public:
  TargetBlock() = default;
  /// Throws TrialError(kOom).
  TargetBlock(Backend& backend, int64_t bytes)
      : backend_(&backend), address_(backend.allocate(bytes)), bytes_(bytes) {}
  ~TargetBlock() {
    if (address_) backend_->release(address_);
  }
  TargetBlock(TargetBlock&& other) noexcept { swap(other); }
  TargetBlock& operator=(TargetBlock&& other) noexcept {
    swap(other);
    return *this;
  }

  void* address() const { return address_; }
  int64_t bytes() const { return bytes_; }

 private:
  void swap(TargetBlock& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
  }

  Backend* backend_ = nullptr;
  void* address_ = nullptr;
  int64_t bytes_ = 0;
};

/// Constant bytes where the target can read them: a copy on a GPU, the host's own on the host,
/// where they have to outlive this.
class TargetCopy {
 public:
  TargetCopy() = default;
  TargetCopy(Backend& backend, std::span<const uint8_t> host)
      : bytes_(static_cast<int64_t>(host.size())), address_(host.data()) {
    if (backend.target() == TargetKind::kHost || host.empty()) return;
    copy_ = TargetBlock(backend, bytes_);
    backend.upload(copy_.address(), host.data(), bytes_);
    address_ = copy_.address();
  }

  const void* address() const { return address_; }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
  const void* address_ = nullptr;
  TargetBlock copy_;
};

template <class T>
std::span<const uint8_t> byte_view(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace muse::tuner
