// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA backend in a build without a CUDA toolkit.
#include "tuner/backend.h"

namespace muse::tuner {

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&) {
  throw TargetError(TargetError::Kind::kDevice, 0,
                    "this build has no CUDA target: it was configured without a CUDA Toolkit 13.0 "
                    "or newer; install one and build again, or use --target host");
}

}  // namespace muse::tuner
