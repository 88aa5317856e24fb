// SPDX-License-Identifier: Apache-2.0
// The part of argument blocks that prepare needs, alone or at the start of a fused span.
#pragma once

#include "variants/device/types.h"

namespace muse::device {

struct PrepareArgs {
  const uint16_t* qkv;       // bf16 [T, (2*Hq+2*Hkv)*D]
  const int64_t* positions;  // [T]
  const int64_t* cache_loc;  // [T] flat cache rows
  const float* k_scale;      // [1]
  const float* v_scale;      // [1]
  const float* cos_sin;      // f32 [positions, D], null without RoPE
  uint8_t* k_cache;          // e4m3 [pages, ps, Hkv, D]
  uint8_t* v_cache;          // e4m3 [pages, ps, Hkv, D]
  uint8_t* q8;               // e4m3 [T, Hq, D]
  int32_t tokens, num_q_heads, num_kv_heads;
  bool scaled;  // whether k_scale and v_scale are other than 1
};

}  // namespace muse::device
