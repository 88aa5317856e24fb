// SPDX-License-Identifier: Apache-2.0
// The argument block that attention families share: sizes, what they read, what they leave behind.
#pragma once

#include "variants/device/rows.cuh"
#include "variants/device/types.h"

namespace muse::device {

struct AttentionArgs {
  int32_t batch;         // B
  int32_t q_len;         // L
  int32_t num_q_heads;   // Hq
  int32_t num_kv_heads;  // Hkv
  int32_t group;         // G = Hq / Hkv
  int32_t page_shift;    // log2 of the page size
  int32_t window;        // tokens a query sees, itself included; 0 = all
  int32_t max_pages;     // columns of page_table
  float softmax_scale;   // c without k_scale

  const int32_t* cache_seqlens;  // [B]
  const int32_t* page_table;     // [B, max_pages]
  const float* k_scale;          // [1]
  const float* v_scale;          // [1]
  const uint8_t* k_cache;        // e4m3 [pages, ps, Hkv, D]
  const uint8_t* v_cache;        // e4m3 [pages, ps, Hkv, D]
  const uint8_t* q8;             // e4m3 [T, Hq, D]

  uint16_t* o;         // bf16 [T, Hq, D]; written where the span ends at combine, and then alone
  void* partial_o;     // f32 or bf16 [S, T, Hq, D], normalised
  float* partial_lse;  // [S, T, Hq] base 2
  int32_t* n_splits;   // [B]

  const uint16_t* qkv;  // bf16 [T, (2*Hq+2*Hkv)*D]; read, and the two below written, with the gate
  uint16_t* out;        // bf16 [T, Hq*D]
  uint16_t* o_tap;      // bf16 [T, Hq, D], null when timed

  // Of merges through memory (epilogue.cuh): group = request and kv heads of a CTA, Rows = query
  // rows of a CTA, Parts = splits / cluster.
  float* part_o;      // f32 [groups, Rows, Parts, D]
  float* part_stats;  // f32 [groups, Rows, Parts, 2]: max, sum
  uint32_t* tickets;  // [groups, cluster], 0 between launches
};

}  // namespace muse::device
