// SPDX-License-Identifier: Apache-2.0
// Turns the code of a failed CUDA call into an exception with the error's name and text.
#include "profiler/device_error.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

namespace muse::profiler {

void check_cuda(int code, const char* call) {
  if (code == cudaSuccess) return;
  const auto error = static_cast<cudaError_t>(code);
  cudaGetLastError();  // one that is not sticky must not fail the next call as well
  throw DeviceError(code, cudaGetErrorName(error),
                    fmt::format("{}: error {} {}: {}", call, code, cudaGetErrorName(error),
                                cudaGetErrorString(error)));
}

}  // namespace muse::profiler
