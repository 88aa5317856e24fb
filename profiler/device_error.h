// SPDX-License-Identifier: Apache-2.0
// A CUDA call that failed, told as an exception that needs no CUDA header.
#pragma once

#include <stdexcept>
#include <string>

namespace muse::profiler {

/// The device, or the runtime before it, reports an error; it may be sticky.
class DeviceError : public std::runtime_error {
 public:
  DeviceError(int code, const std::string& name, const std::string& what)
      : std::runtime_error(what), code(code), name(name) {}
  int code;          ///< a cudaError_t
  std::string name;  ///< "cudaErrorIllegalAddress"
};

/// Throws DeviceError unless `code`, a cudaError_t, is success. `call`: what was asked for.
void check_cuda(int code, const char* call);

}  // namespace muse::profiler
