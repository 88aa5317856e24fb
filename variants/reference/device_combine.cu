// SPDX-License-Identifier: Apache-2.0
// One block for each (token, head), a thread for each element; what it must agree with is the
// host's combine, line by line.
#include <cuda_runtime.h>

#include "variants/numerics.h"
#include "variants/reference/device_combine.h"

namespace muse::reference {
namespace {

constexpr double kMasked = -__builtin_huge_val();

__device__ void keep_least(unsigned long long& least, int64_t index) {
  atomicMin(&least, static_cast<unsigned long long>(index));
}

__device__ double element(const DeviceCombine& a, int64_t index) {
  if (a.wide) return static_cast<const float*>(a.partial_o)[index];
  return bf16_to_f32(static_cast<const uint16_t*>(a.partial_o)[index]);
}

__global__ void combine(const DeviceCombine a) {
  const int64_t row = blockIdx.x, rows = gridDim.x, d = threadIdx.x;
  const int64_t request = row / a.num_q_heads / a.q_len;
  const int splits = a.n_splits[request];
  const bool legal = splits >= 1 && splits <= a.split_capacity;
  if (!legal && d == 0) keep_least(a.bad->n_splits, request);
  double largest = kMasked;
  for (int s = 0; legal && s < splits; ++s) {
    const float lse = a.partial_lse[s * rows + row];
    if (d == 0 && isnan(lse)) keep_least(a.bad->lse, s * rows + row);
    if (d == 0 && isinf(lse) && lse > 0) keep_least(a.bad->infinite, s * rows + row);
    largest = isnan(lse) || isnan(largest) ? nan("") : fmax(largest, double{lse});
  }
  double sum = 0, o = 0;
  for (int s = 0; legal && s < splits; ++s) {
    const int64_t slot = s * rows + row;
    const double lse = a.partial_lse[slot];
    if (lse == kMasked) continue;
    const double weight = exp2(lse - largest);
    const double value = element(a, slot * a.head_dim + d);
    if (isnan(value)) keep_least(a.bad->o, slot * a.head_dim + d);
    sum += weight;
    o += weight * value;
  }
  const bool empty = legal && largest == kMasked;
  a.o[row * a.head_dim + d] = !legal ? nan("") : empty ? 0 : o / sum;
  if (d == 0) a.lse[row] = !legal ? nan("") : empty ? kMasked : largest + log2(sum);
}

}  // namespace

int device_combine(const DeviceCombine& problem, CUstream_st* stream) {
  const int64_t rows = problem.batch * problem.q_len * problem.num_q_heads;
  combine<<<static_cast<unsigned>(rows), static_cast<unsigned>(problem.head_dim), 0, stream>>>(
      problem);
  return cudaGetLastError();
}

}  // namespace muse::reference
