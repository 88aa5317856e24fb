// SPDX-License-Identifier: Apache-2.0
// What attention should give, computed on the GPU that holds its inputs.
#pragma once

#include <cuda_runtime_api.h>

#include "tuner/backend.h"

namespace muse::tuner {

/// As Backend::attention_truth(); reads buffers.q8. Throws TrialError(kOom) for want of memory.
Backend::TargetTruth cuda_attention_truth(Backend& backend, cudaStream_t stream,
                                          const Problem& problem, const Buffers& buffers);

/// As Backend::combined_partials(). Throws TrialError(kOom) for want of memory.
Backend::CombinedPartials cuda_combined_partials(Backend& backend, cudaStream_t stream,
                                                 const Problem& problem, const Buffers& buffers,
                                                 bool values);

}  // namespace muse::tuner
