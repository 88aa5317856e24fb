// SPDX-License-Identifier: Apache-2.0
// Reference of attention on a GPU: every (request, head) pair in float64 and at FA3's precision,
// where the host could only sample. Plain C++17, so that nvcc and the host compiler both read it.
#pragma once

#include "variants/device/types.h"

struct CUstream_st;

namespace muse::reference {

/// What device_attention() reads and writes; every pointer lies on the device. The row of query i
/// of head h of request b in the results is (b * Hq + h) * L + i: the order of
/// reference::attention() for all pairs.
struct DeviceAttention {
  int64_t batch = 0, q_len = 0, num_q_heads = 0, num_kv_heads = 0;
  int64_t head_dim = 0;  ///< 64
  int64_t page_size = 0, max_pages = 0;
  int64_t window = 0;  ///< 0 = all
  float softmax_scale = 0;
  const uint8_t* q8 = nullptr;             // e4m3 [T, Hq, D]
  const int32_t* cache_seqlens = nullptr;  // [B]
  const int32_t* page_table = nullptr;     // [B, max_pages]
  const float* k_scale = nullptr;          // [1]
  const float* v_scale = nullptr;          // [1]
  const uint8_t* k_cache = nullptr;        // e4m3 [pages, ps, Hkv, D], after the store
  const uint8_t* v_cache = nullptr;        // e4m3 [pages, ps, Hkv, D], after the store
  double* exact_o = nullptr;               // [B, Hq, L, D]
  double* exact_lse = nullptr;             // [B, Hq, L] base 2
  double* emulated_o = nullptr;            // [B, Hq, L, D]
  double* emulated_lse = nullptr;          // [B, Hq, L] base 2
};

/// Enqueues one kernel on `stream`. Returns the cudaError_t of the launch, 0 = none;
/// cudaErrorInvalidValue for another head_dim. What goes wrong later shows at the next
/// synchronisation.
int device_attention(const DeviceAttention& problem, CUstream_st* stream);

}  // namespace muse::reference
