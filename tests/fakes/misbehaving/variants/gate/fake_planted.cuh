// SPDX-License-Identifier: Apache-2.0
// gate/fake_planted: right, or with one planted fault.
#pragma once

#include "tests/fakes/misbehaving/wrong_step.cuh"

namespace muse::gate_fake_planted {

using namespace fakes;

#if defined(MUSE_DEVICE_CODE)

/// A block for each token and head.
template <class C>
__global__ void __launch_bounds__(kWrongDim) gate(const __grid_constant__ WrongStep step) {
  const int row = static_cast<int>(blockIdx.x), d = static_cast<int>(threadIdx.x);
  const int token = row / step.q_heads, head = row % step.q_heads;
  if (C::fault == kStaleOutput || (C::fault == kHalfWritten && row % 2 == 1)) return;
  const uint16_t* o = step.o + int64_t{row} * kWrongDim;
  const int64_t column = (int64_t{step.q_heads} + 2 * step.kv_heads + head) * kWrongDim;
  const float g = bf16_to_f32(step.qkv[token * step.qkv_width() + column + d]);
  uint16_t result = f32_to_bf16(bf16_to_f32(o[d]) * wrong_rsqrt_mean(o) * (1 / (1 + expf(-g))));
  const int64_t count = int64_t{step.tokens()} * step.q_heads * kWrongDim;
  const int64_t at = int64_t{row} * kWrongDim + d;
  if (C::fault == kNan && at == count / 2) result = 0x7FC0;
  if (C::fault == kLastElement && at == count - 1) result = f32_to_bf16(3);
  if (C::fault == kDrifts && at == 1) result ^= atomicAdd(step.runs, 1) & 1;
  if (C::fault == kReadsTheBatch && at == count - 2 && step.batch > 1) result ^= 1;
  step.out[at] = result;
  if (at > 0) return;
  if (C::fault == kInputModified) step.seq_lens[0] ^= 1;
  if (C::fault == kOutStoreBehind) step.out[count] = 1;
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::gate_fake_planted
