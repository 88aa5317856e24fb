// SPDX-License-Identifier: Apache-2.0
// combine/fake_planted: right, or with one planted fault. Takes f32 partials.
#pragma once

#include "tests/fakes/misbehaving/wrong_step.cuh"

namespace muse::combine_fake_planted {

using namespace fakes;

#if defined(MUSE_DEVICE_CODE)

/// A block for each token and head.
template <class C>
__global__ void __launch_bounds__(kWrongDim) combine(const __grid_constant__ WrongStep step) {
  const float empty = f32_from_bits(0xFF800000U);
  const int rows = step.tokens() * step.q_heads, d = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x);
  int splits = step.n_splits[row / step.q_heads / step.q_len];
  if (C::fault == kLostSplit && splits > 1) --splits;
  float largest = empty;
  for (int s = 0; s < splits; ++s) {
    largest = fmaxf(largest, step.partial_lse[int64_t{s} * rows + row]);
  }
  float sum = 0, weights = 0;
  for (int s = 0; s < splits && largest > empty; ++s) {
    const int64_t slot = int64_t{s} * rows + row;
    const float lse = step.partial_lse[slot];
    if (lse == empty && C::fault != kEmptySplitTimesZero) continue;
    const float weight = exp2f(lse - largest);
    weights += weight;
    sum += weight * step.partial_o[slot * kWrongDim + d];
  }
  step.o[int64_t{row} * kWrongDim + d] = f32_to_bf16(weights == 0 ? 0 : sum / weights);
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::combine_fake_planted
