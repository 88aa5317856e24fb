// SPDX-License-Identifier: Apache-2.0
// What a failed CUDA call means: the end of this process, of one trial, or that there is no device.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "profiler/device_error.h"
#include "tuner/backend.h"

namespace muse::tuner {

/// After it every call of this process fails.
bool is_device_fault(cudaError_t error);

/// "CUDA error 700 (cudaErrorIllegalAddress): an illegal memory access was encountered".
std::string cuda_error_text(cudaError_t error);

/// What to do about a device that cannot be had.
std::string cuda_remedy(cudaError_t error);

/// Throws DeviceFault for an error that is one, else TrialError(kLaunchFailed) "<doing>: <error>",
/// with the error cleared.
[[noreturn]] void throw_cuda_error(cudaError_t error, const std::string& doing);

/// throw_cuda_error() unless the call went well.
inline void check(cudaError_t error, const char* doing) {
  if (error != cudaSuccess) throw_cuda_error(error, doing);
}

/// `call` with the profiler's word for a failed call turned into ours.
template <class Call>
auto with_cuda_errors(const Call& call) {
  try {
    return call();
  } catch (const profiler::DeviceError& error) {
    throw_cuda_error(static_cast<cudaError_t>(error.code), error.what());
  }
}

}  // namespace muse::tuner
