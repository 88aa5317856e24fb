// SPDX-License-Identifier: Apache-2.0
// Reference of combine on a GPU, in float64, with a look for what partials must not hold: reading
// hundreds of megabytes back to the host would take longer than all else. Plain C++17.
#pragma once

#include "variants/device/types.h"

struct CUstream_st;

namespace muse::reference {

/// The first element of each kind that is not allowed; all bits set where there is none.
struct BadPartials {
  unsigned long long n_splits;  ///< request whose split count is outside 1..S
  unsigned long long lse;       ///< NaN among the log-sum-exps that count
  unsigned long long infinite;  ///< +inf among them
  unsigned long long o;         ///< NaN in the partials of splits that are not empty
};

/// What device_combine() reads and writes; every pointer lies on the device.
struct DeviceCombine {
  int64_t batch = 0, q_len = 0, num_q_heads = 0;
  int64_t head_dim = 0;  ///< at most 1024
  int64_t split_capacity = 0;
  bool wide = true;                    ///< partial_o is f32, else bf16
  const void* partial_o = nullptr;     // [S, T, Hq, D]
  const float* partial_lse = nullptr;  // [S, T, Hq]
  const int32_t* n_splits = nullptr;   // [B]
  double* o = nullptr;                 // [T, Hq, D]; 0 where all splits are empty
  double* lse = nullptr;               // [T, Hq] base 2; -inf there
  BadPartials* bad = nullptr;          // [1], all bits set before
};

/// Enqueues one kernel on `stream`. Splits at or beyond n_splits[b], and partials of empty splits,
/// are not read. Returns the cudaError_t of the launch, 0 = none.
int device_combine(const DeviceCombine& problem, CUstream_st* stream);

}  // namespace muse::reference
