// SPDX-License-Identifier: Apache-2.0
// The step's own tokens straight from qkv, by one warp and in registers: Q8 of sixteen heads, K8
// and V8 of the new keys, laid out as the operands of attention on m16n8k16 are. The arithmetic is
// that of rows.cuh in the same order, so that the bytes are those a prepare of its own stores.
//
// With g = lane / 4 and t = lane % 4 a lane holds dims 16t..16t+15 of query rows g and g + 8, the
// same dims of K of column g, and dims 8g..8g+7 of V of token t. Columns are pairs of token and kv
// head: column n is token n / 2 and kv head n % 2.
#pragma once

#include "variants/device/prepare_args.h"
#include "variants/device/rows.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

/// Sixteen dims of a row, bf16 as loaded: 16t..16t+15.
struct LaneRow {
  Words4 half[2];
};
/// Cosines and sines of the same dims.
struct LaneRotation {
  Rotation half[2];
};

__device__ __forceinline__ LaneRow load_lane_row(const uint16_t* row) {
  const uint16_t* dims = row + static_cast<int>(threadIdx.x) % 4 * (2 * kSlice);
  return {{load_words4(dims), load_words4(dims + kSlice)}};
}

/// Of a token's position; nothing is read without RoPE.
__device__ __forceinline__ LaneRotation load_lane_rotation(const PrepareArgs& args,
                                                           int64_t position) {
  LaneRotation rotation{};
  if (args.cos_sin != nullptr) {
    const float* row = args.cos_sin + position * kHeadDim;
    const int slice = static_cast<int>(threadIdx.x) % 4 * 2;
    rotation.half[0] = load_rotation(row, slice);
    rotation.half[1] = load_rotation(row, slice + 1);
  }
  return rotation;
}

/// Head `head` of a token in qkv, q, k, v and gate heads counted through.
__device__ __forceinline__ const uint16_t* qkv_row(const PrepareArgs& args, int token, int head) {
  return args.qkv + row_start(token, 2 * (args.num_q_heads + args.num_kv_heads), head);
}

struct LaneSlices {
  Slice half[2];
};

/// Norm and RoPE of the rows that the warp's quads hold. Every lane of the warp calls it.
__device__ __forceinline__ LaneSlices normed_and_rotated(const PrepareArgs& args,
                                                         const LaneRow& row,
                                                         const LaneRotation& rotation) {
  LaneSlices x{{unpack_bf16(row.half[0]), unpack_bf16(row.half[1])}};
  float sum[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < kSlice; ++i) sum[h] += x.half[h].x[i] * x.half[h].x[i];
  }
  float squares = sum[0] + sum[1];
  squares += __shfl_xor_sync(kWholeWarp, squares, 1);
  squares += __shfl_xor_sync(kWholeWarp, squares, 2);
  const float r = rsqrtf(squares * (1.0F / kHeadDim) + 1e-5F);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    x.half[h] = scaled(x.half[h], r);
    if (args.cos_sin != nullptr) x.half[h] = rotated(x.half[h], rotation.half[h]);
  }
  return x;
}

__device__ __forceinline__ Words4 quantised(const LaneSlices& x) {
  const Words2 low = quantised(x.half[0]), high = quantised(x.half[1]);
  return {{low.word[0], low.word[1], high.word[0], high.word[1]}};
}

/// Q8 of the lane's sixteen dims of one row.
__device__ __forceinline__ Words4 query_codes(const PrepareArgs& args, const LaneRow& row,
                                              const LaneRotation& rotation) {
  return quantised(normed_and_rotated(args, row, rotation));
}

/// K8 of the lane's sixteen dims of one row.
__device__ __forceinline__ Words4 key_codes(const PrepareArgs& args, const LaneRow& row,
                                            const LaneRotation& rotation, float k_scale) {
  LaneSlices x = normed_and_rotated(args, row, rotation);
  if (args.scaled) {
#pragma unroll
    for (int h = 0; h < 2; ++h) x.half[h] = divided(x.half[h], k_scale);
  }
  return quantised(x);
}

/// V8 of eight dims.
__device__ __forceinline__ Words2 value_codes(const PrepareArgs& args, const Words4& loaded,
                                              float v_scale) {
  const Slice x = unpack_bf16(loaded);
  return quantised(args.scaled ? divided(x, v_scale) : x);
}

/// The new tokens of a request as the warp that owns them loads them: K of column g, and V of
/// token t of kv heads 0 and 1; zeros beyond.
struct OwnInputs {
  LaneRow key;
  Words4 value[2];
  int64_t key_slot, value_slot;  // flat cache rows of the tokens of column g and of token t
};
/// Their codes, in the layout of a block of old keys.
struct OwnKeys {
  Words4 key;
  Words2 value[2];
};

/// kTokens: L. `first_head`: the first of two kv heads, of which the second may be missing.
template <int kTokens>
__device__ __forceinline__ OwnInputs load_own(const PrepareArgs& args, int request,
                                              int first_head) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  OwnInputs own{};
  if (g < 2 * kTokens && first_head + g % 2 < args.num_kv_heads) {
    const int token = request * kTokens + g / 2;
    own.key = load_lane_row(qkv_row(args, token, args.num_q_heads + first_head + g % 2));
    own.key_slot = __ldg(args.cache_loc + token);
  }
  if (t < kTokens) {
    const int token = request * kTokens + t;
    own.value_slot = __ldg(args.cache_loc + token);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (first_head + h < args.num_kv_heads) {
        const int head = args.num_q_heads + args.num_kv_heads + first_head + h;
        own.value[h] = load_words4(qkv_row(args, token, head) + g * kSlice);
      }
    }
  }
  return own;
}

/// Quantises them and stores them to the cache, each row's bytes once. `rotation`: of the token of
/// column g. Every lane of the warp calls it.
template <int kTokens>
__device__ __forceinline__ OwnKeys store_own(const PrepareArgs& args, const OwnInputs& own,
                                             int first_head, const LaneRotation& rotation,
                                             float k_scale, float v_scale) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  OwnKeys keys{};
  const Words4 key = key_codes(args, own.key, rotation, k_scale);
  if (g < 2 * kTokens && first_head + g % 2 < args.num_kv_heads) {
    keys.key = key;
    store_words4(
        args.k_cache + row_start(own.key_slot, args.num_kv_heads, first_head + g % 2) + t * 16,
        key);
  }
  if (t < kTokens) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (first_head + h < args.num_kv_heads) {
        keys.value[h] = value_codes(args, own.value[h], v_scale);
        store_words2(
            args.v_cache + row_start(own.value_slot, args.num_kv_heads, first_head + h) + g * 8,
            keys.value[h]);
      }
    }
  }
  return keys;
}

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
