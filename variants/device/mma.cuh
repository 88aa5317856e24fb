// SPDX-License-Identifier: Apache-2.0
// Attention's operands as f16 fragments of m16n8k16, straight from e4m3 bytes. Which index of the
// product is which dim or key is free as long as both operands agree, and is chosen so that every
// lane moves whole runs of bytes: nothing is transposed.
//
// With g = lane / 4 and t = lane % 4:
//   Q * K: a lane's dims are 16t..16t+15 of query rows g and g + 8 and of key g; step s multiplies
//          dims 16t+4s..16t+4s+3.
//   P * V: column g of product j is dim 8g + j, so a lane reads dims 8g..8g+7 of keys 2t, 2t + 1,
//          2t + 8, 2t + 9 of a block and ends up with dims 16t..16t+15 of O.
#pragma once

#include "variants/device/ptx.cuh"
#include "variants/device/rows.cuh"
#include "variants/device/words.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

inline constexpr int kSteps = kHeadDim / 16;   // products of Q * K over the dims
inline constexpr int kColumns = kHeadDim / 8;  // products of P * V side by side
inline constexpr int kBlockKeys = 16;          // keys of one step of P * V

struct Accumulator {
  float value[4];  // (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
};

/// Sixteen query rows.
struct QueryFragment {
  uint32_t step[kSteps][4];
};

/// Eight keys of Q * K.
struct KeyFragment {
  uint32_t step[kSteps][2];
};

__device__ __forceinline__ uint32_t low_f16x2(uint32_t codes) {
  return e4m3x2_to_f16x2(static_cast<uint16_t>(codes));
}
__device__ __forceinline__ uint32_t high_f16x2(uint32_t codes) {
  return upper_e4m3x2_to_f16x2(codes);
}

/// The lane's 16 bytes of row g (half 0) or row g + 8 (half 1).
__device__ __forceinline__ void set_query_row(QueryFragment& query, int half, const Words4& codes) {
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    query.step[s][half] = low_f16x2(codes.word[s]);
    query.step[s][half + 2] = high_f16x2(codes.word[s]);
  }
}

/// From the lane's 16 bytes of key g.
__device__ __forceinline__ KeyFragment key_fragment(const Words4& codes) {
  KeyFragment keys;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    keys.step[s][0] = low_f16x2(codes.word[s]);
    keys.step[s][1] = high_f16x2(codes.word[s]);
  }
  return keys;
}

/// scores[16 rows, 8 keys] = query * keys.
__device__ __forceinline__ Accumulator multiply_keys(const QueryFragment& query,
                                                     const KeyFragment& keys) {
  Accumulator scores{};
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    mma_m16n8k16_f16(scores.value, query.step[s], keys.step[s]);
  }
  return scores;
}

/// A block's values for eight products, from the lane's 8 bytes of keys 2t, 2t + 1, 2t + 8, 2t + 9.
struct ValueFragment {
  uint32_t column[kColumns][2];
};

/// Selectors of the first two dims of a pair of keys, of which the even one or the odd one is given
/// first.
inline constexpr uint32_t kEvenFirst = 0x5140, kOddFirst = 0x1504;

__device__ __forceinline__ ValueFragment value_fragment(const Words2 (&codes)[4],
                                                        uint32_t selector = kEvenFirst) {
  ValueFragment values;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Words2& even = codes[2 * half];  // or odd, and the other way round
    const Words2& odd = codes[2 * half + 1];
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const uint32_t low = pick_bytes(even.word[w], odd.word[w], selector);  // dims 4w, 4w + 1
      const uint32_t high = pick_bytes(even.word[w], odd.word[w], selector + 0x2222);
      values.column[4 * w + 0][half] = low_f16x2(low);
      values.column[4 * w + 1][half] = high_f16x2(low);
      values.column[4 * w + 2][half] = low_f16x2(high);
      values.column[4 * w + 3][half] = high_f16x2(high);
    }
  }
  return values;
}

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
