// SPDX-License-Identifier: Apache-2.0
// A shared library loaded at run time: one binary serves machines with and without it.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace muse::profiler {

/// A library that is loaded while this lives. One whose threads or exit handlers must outlive main
/// belongs into an object that is never destroyed.
class DynamicLibrary {
 public:
  /// Loads the first of `names` ("libnvrtc.so.13", "libnvrtc.so") that can be: each by the loader's
  /// own search first (LD_LIBRARY_PATH, ldconfig), then in the library folders of $CUDA_HOME,
  /// $CUDA_PATH and /usr/local/cuda. Where $MUSE_LIBRARY_PATH is set (folders, joined by colons)
  /// nothing but those is searched. The error lists all that was tried with the loader's reason.
  static tl::expected<DynamicLibrary, std::string> open(const std::vector<std::string>& names);

  DynamicLibrary(DynamicLibrary&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), name_(std::move(other.name_)) {}
  DynamicLibrary& operator=(DynamicLibrary&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(name_, other.name_);
    return *this;
  }
  ~DynamicLibrary();

  /// The name or path it was loaded by.
  const std::string& name() const { return name_; }
  /// Null where the library does not have it.
  void* symbol(const char* name) const;
  /// The same as a function pointer of type F.
  template <class F>
  F* function(const char* name) const {
    return reinterpret_cast<F*>(symbol(name));
  }

 private:
  DynamicLibrary(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}

  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace muse::profiler
