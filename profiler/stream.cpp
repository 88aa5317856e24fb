// SPDX-License-Identifier: Apache-2.0
// Creates, synchronises and destroys a stream that the default stream does not hold up.
#include "profiler/stream.h"

#include <cuda_runtime_api.h>

#include "profiler/device_error.h"

namespace muse::profiler {

// Non-blocking: the legacy default stream would order itself between what is timed.
Stream::Stream() {
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
             "cudaStreamCreateWithFlags");
}

Stream::~Stream() { cudaStreamDestroy(stream_); }

void Stream::synchronize() const {
  check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

}  // namespace muse::profiler
