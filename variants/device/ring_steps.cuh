// SPDX-License-Identifier: Apache-2.0
// Products and softmax of a step: keys of a ring's tile that a warp takes at a time for its query
// rows.
#pragma once

#include "variants/device/ring_tiles.cuh"
#include "variants/device/warp_rows.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

/// Scores of kStep keys, of the dot product alone; 8 to a fragment, in the order of columns.
template <int kRows, int kStep>
struct StepScores {
  static constexpr int kFragments = kStep / 8;
  Accumulator keys[WarpRows<kRows>::kTiles][kFragments];
};

/// P of kStep keys as operands of P * V.
template <int kRows, int kStep>
struct StepWeights {
  static constexpr int kBlocks = kStep / kBlockKeys;
  uint32_t a[WarpRows<kRows>::kTiles][kBlocks][4];
};

/// Keys of a step whose scores and values need a look: its first key, the keys that some row
/// attends, and how many keys a row attends at most.
struct StepMask {
  int begin;
  KeyRange keys;
  uint32_t reach;

  __device__ __forceinline__ BlockMask block(int i) const {
    return {true, begin + i * kBlockKeys, keys.end, reach};
  }
};

/// `k`: K of the step's first block and the warp's head.
template <class Tile, int kStep, int kRows>
__device__ __forceinline__ StepScores<kRows, kStep> multiply_step(const WarpRows<kRows>& rows,
                                                                  const unsigned char* k) {
  StepScores<kRows, kStep> scores;
#pragma unroll
  for (int n = 0; n < scores.kFragments; ++n) {
    const KeyFragment keys = Tile::load_keys(k + n / 2 * Tile::kBlockBytes, n % 2);
#pragma unroll
    for (int tile = 0; tile < rows.kTiles; ++tile) {
      scores.keys[tile][n] = multiply_keys(rows.query[tile], keys);
    }
  }
  return scores;
}

/// rows.own in one register, to be kept while no step is masked: how far each lies behind the first
/// query's own key `first`, a byte each.
template <int kRows>
__device__ __forceinline__ uint32_t pack_own_keys(const WarpRows<kRows>& rows, int first) {
  uint32_t packed = 0;
#pragma unroll
  for (int i = 0; i < rows.kTiles * rows.kHalves; ++i) {
    packed |= static_cast<uint32_t>(rows.own[i / rows.kHalves][i % rows.kHalves] - first) << 8 * i;
  }
  static_assert(WarpRows<kRows>::kTiles * WarpRows<kRows>::kHalves <= 4);
  return packed;
}
template <int kRows>
__device__ __forceinline__ void unpack_own_keys(WarpRows<kRows>& rows, uint32_t packed, int first) {
#pragma unroll
  for (int i = 0; i < rows.kTiles * rows.kHalves; ++i) {
    rows.own[i / rows.kHalves][i % rows.kHalves] =
        first + static_cast<int>(packed >> 8 * i & 0xFFU);
  }
}

/// Scores of keys that a row does not attend become minus infinity.
template <class Tile, int kRows, int kStep>
__device__ __forceinline__ void mask_step(const WarpRows<kRows>& rows,
                                          StepScores<kRows, kStep>& scores, const StepMask& mask) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int tile = 0; tile < rows.kTiles; ++tile) {
#pragma unroll
    for (int n = 0; n < scores.kFragments; ++n) {
#pragma unroll
      for (int i = 0; i < 2 * rows.kHalves; ++i) {
        const int key = mask.begin + 8 * n + Tile::row_of(2 * t + i % 2);
        if (!attends(rows.own[tile][i / 2], key, mask.block(0))) {
          scores.keys[tile][n].value[i] = minus_infinity();
        }
      }
    }
  }
}

/// Raises maxima where a score exceeds one by kRescaleAt. `scale`: from the dot product to units of
/// log2.
template <int kRows, int kStep>
__device__ __forceinline__ void raise_maxima(WarpRows<kRows>& rows,
                                             const StepScores<kRows, kStep>& scores, float scale) {
  float step_max[WarpRows<kRows>::kTiles][WarpRows<kRows>::kHalves];
  bool grows = false;
#pragma unroll
  for (int tile = 0; tile < rows.kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < rows.kHalves; ++half) {
      float max = minus_infinity();
#pragma unroll
      for (int n = 0; n < scores.kFragments; ++n) {
        const float* pair = scores.keys[tile][n].value + 2 * half;
        max = fmaxf(max, fmaxf(pair[0], pair[1]));
      }
      step_max[tile][half] = max * scale;
      grows = grows || step_max[tile][half] > rows.max[tile][half] + kRescaleAt;
    }
  }
  if (__any_sync(kWholeWarp, grows)) rescale(rows, step_max);
}

/// P = exp2(score - max), exactly 0 for masked keys; added to the rows' sums and rounded to f16.
template <int kRows, int kStep>
__device__ __forceinline__ StepWeights<kRows, kStep> weigh_step(
    WarpRows<kRows>& rows, const StepScores<kRows, kStep>& scores, float scale) {
  StepWeights<kRows, kStep> weights{};
#pragma unroll
  for (int n = 0; n < scores.kFragments; ++n) {
#pragma unroll
    for (int tile = 0; tile < rows.kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < rows.kHalves; ++half) {
        const float* pair = scores.keys[tile][n].value + 2 * half;
        const float max = rows.max[tile][half];
        const float low = exp2_approx(fmaf(pair[0], scale, -max));
        const float high = exp2_approx(fmaf(pair[1], scale, -max));
        rows.sum[tile][half] += low;
        rows.sum[tile][half] += high;
        weights.a[tile][n / 2][n % 2 * 2 + half] = f32x2_to_f16x2(low, high);
      }
    }
  }
  return weights;
}

/// One block of o += P * V.
template <int kRows, int kStep>
__device__ __forceinline__ void add_block(WarpRows<kRows>& rows,
                                          const StepWeights<kRows, kStep>& weights, int block,
                                          const Words2 (&codes)[4]) {
  const ValueFragment values = value_fragment(codes);
#pragma unroll
  for (int tile = 0; tile < rows.kTiles; ++tile) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      mma_m16n8k16_f16(rows.o[tile][column].value, weights.a[tile][block], values.column[column]);
    }
  }
}

/// o += P * V. `v`: V of the step's first block and the warp's head.
template <class Tile, int kRows, int kStep>
__device__ __forceinline__ void add_step(WarpRows<kRows>& rows,
                                         const StepWeights<kRows, kStep>& weights,
                                         const unsigned char* v) {
#pragma unroll
  for (int block = 0; block < weights.kBlocks; ++block) {
    Words2 codes[4];
    Tile::load_values(v + block * Tile::kBlockBytes, codes);
    add_block(rows, weights, block, codes);
  }
}

/// The same where some row does not attend all keys. What lies in the place of keys that none
/// attends may be anything; NaN is left out of the product, as 0 * NaN is NaN, and put back into
/// those elements whose row attends its key.
template <class Tile, int kRows, int kStep>
__device__ __forceinline__ void add_masked_step(WarpRows<kRows>& rows,
                                                const StepWeights<kRows, kStep>& weights,
                                                const unsigned char* v, const StepMask& mask) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int block = 0; block < weights.kBlocks; ++block) {
    Words2 codes[4];
    Tile::load_values(v + block * Tile::kBlockBytes, codes);
    uint32_t nan = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = mask.begin + block * kBlockKeys + i / 2 * 8 + Tile::row_of(2 * t + i % 2);
      const bool there = key >= mask.keys.begin && key < mask.keys.end;
#pragma unroll
      for (int w = 0; w < 2; ++w) {
        const uint32_t word = there ? codes[i].word[w] : 0;
        nan |= nan_codes(word);
        codes[i].word[w] = without_nan(word);
      }
    }
    add_block(rows, weights, block, codes);
    if (__any_sync(kWholeWarp, nan != 0)) {
      mark_nan<Tile>(rows, v + block * Tile::kBlockBytes, mask.block(block));
    }
  }
}

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
