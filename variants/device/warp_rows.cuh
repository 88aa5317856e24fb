// SPDX-License-Identifier: Apache-2.0
// A warp's query rows and their online softmax over blocks of keys, all in registers; and the merge
// of warps that took different keys of the same rows, through shared memory.
#pragma once

#include "variants/device/attention_keys.cuh"
#include "variants/device/mma.cuh"
#include "variants/device/partials.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

/// A row is rescaled only where its maximum grows by more than this many powers of two: P is at
/// most 2^8, which f16 holds as precisely as 1.
inline constexpr float kRescaleAt = 8.0F;

/// kRows (8, 16 or a multiple) query rows. Row 16*tile + 8*half + g belongs to the lanes of quad g.
template <int kRows>
struct WarpRows {
  static constexpr int kTiles = kRows > 16 ? kRows / 16 : 1;
  static constexpr int kHalves = kRows > 8 ? 2 : 1;

  QueryFragment query[kTiles];
  Accumulator o[kTiles][kColumns];  // sum of P * V
  float max[kTiles][kHalves];       // what scores are taken relative to, in units of log2
  float sum[kTiles][kHalves];       // of P over this lane's keys
  int own[kTiles][kHalves];         // the key of each row's query: the last one it attends
};

/// Rows first_row and on of a kv head. Rows beyond L*G are zero and attend what the last one does.
template <int kRows>
__device__ __forceinline__ WarpRows<kRows> load_rows(const AttentionArgs& args, int request,
                                                     int kv_head, int first_row, int cache_seqlen) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int last = args.q_len * args.group - 1;
  WarpRows<kRows> rows{};
#pragma unroll
  for (int tile = 0; tile < rows.kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < rows.kHalves; ++half) {
      const int row = first_row + tile * 16 + half * 8 + lane / 4;
      const QueryRow at = query_row(args, request, kv_head, smaller(row, last));
      Words4 codes{};
      if (row <= last) codes = load_words4(args.q8 + at.head * kHeadDim + (lane % 4) * 16);
      set_query_row(rows.query[tile], half, codes);
      rows.own[tile][half] = query_keys(args, cache_seqlen, at.query).end - 1;
      rows.max[tile][half] = kNoMaximum;
    }
  }
  return rows;
}

/// Scores of a block of 16 keys in fragments of 8 keys; P in their place after weigh().
template <int kRows>
struct BlockScores {
  Accumulator keys[WarpRows<kRows>::kTiles][2];
};

/// What a block has to be masked by, if it has to be: its first key, the end of the split, and how
/// many keys a row attends at most, which is one bound on the distance from its own.
struct BlockMask {
  bool needed;
  int begin, end;
  uint32_t reach;
};

__device__ __forceinline__ uint32_t reach_of(const AttentionArgs& args) {
  return args.window > 0 ? static_cast<uint32_t>(args.window) : 0x7FFFFFFFU;
}

/// Whether the row whose last key is `own` attends `key`.
__device__ __forceinline__ bool attends(int own, int key, const BlockMask& mask) {
  // A key after the row's own wraps around to a long way before it.
  return key < mask.end && static_cast<uint32_t>(own - key) < mask.reach;
}

/// `scale`: from the dot product to a score in units of log2.
template <int kRows>
__device__ __forceinline__ void scale_and_mask(const WarpRows<kRows>& rows,
                                               BlockScores<kRows>& scores, float scale,
                                               const BlockMask& mask) {
  const int first = mask.begin + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < rows.kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4 * rows.kHalves; ++i) {
      // value[2 * half + e] of fragment n is key 8n + 2t + e.
      const int n = i / (2 * rows.kHalves), half = i / 2 % rows.kHalves, e = i % 2;
      float& score = scores.keys[tile][n].value[2 * half + e];
      score *= scale;
      if (mask.needed) {
        if (!attends(rows.own[tile][half], first + 8 * n + e, mask)) score = minus_infinity();
      }
    }
  }
}

/// Raises the maxima of all rows to those of the block, and scales what was summed below them.
template <int kRows>
__device__ __forceinline__ void rescale(
    WarpRows<kRows>& rows,
    const float (&block_max)[WarpRows<kRows>::kTiles][WarpRows<kRows>::kHalves]) {
#pragma unroll
  for (int tile = 0; tile < rows.kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < rows.kHalves; ++half) {
      float max = fmaxf(rows.max[tile][half], block_max[tile][half]);
      max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, 1));
      max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, 2));
      const float factor = exp2_approx(rows.max[tile][half] - max);
      rows.max[tile][half] = max;
      rows.sum[tile][half] *= factor;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        rows.o[tile][column].value[2 * half] *= factor;
        rows.o[tile][column].value[2 * half + 1] *= factor;
      }
    }
  }
}

/// Scores become P = exp2(score - max), exactly 0 for masked keys, and are added to the sums.
template <int kRows>
__device__ __forceinline__ void weigh(WarpRows<kRows>& rows, BlockScores<kRows>& scores) {
  float block_max[WarpRows<kRows>::kTiles][WarpRows<kRows>::kHalves];
  bool grows = false;
#pragma unroll
  for (int tile = 0; tile < rows.kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < rows.kHalves; ++half) {
      const float* low = scores.keys[tile][0].value + 2 * half;
      const float* high = scores.keys[tile][1].value + 2 * half;
      block_max[tile][half] = fmaxf(fmaxf(low[0], low[1]), fmaxf(high[0], high[1]));
      grows = grows || block_max[tile][half] > rows.max[tile][half] + kRescaleAt;
    }
  }
  if (__any_sync(kWholeWarp, grows)) rescale(rows, block_max);
#pragma unroll
  for (int tile = 0; tile < rows.kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4 * rows.kHalves; ++i) {
      const int n = i / (2 * rows.kHalves), half = i / 2 % rows.kHalves, e = i % 2;
      float& p = scores.keys[tile][n].value[2 * half + e];
      p = exp2_approx(p - rows.max[tile][half]);
      rows.sum[tile][half] += p;
    }
  }
}

/// o += P * V, P rounded to f16.
template <int kRows>
__device__ __forceinline__ void multiply_values(WarpRows<kRows>& rows, const BlockScores<kRows>& p,
                                                const ValueFragment& values) {
#pragma unroll
  for (int tile = 0; tile < rows.kTiles; ++tile) {
    uint32_t a[4] = {};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < rows.kHalves; ++half) {
        const float* pair = p.keys[tile][n].value + 2 * half;
        a[2 * n + half] = f32x2_to_f16x2(pair[0], pair[1]);
      }
    }
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      mma_m16n8k16_f16(rows.o[tile][column].value, a, values.column[column]);
    }
  }
}

/// o becomes NaN where the row attends a key whose value is, and nowhere else: for blocks that some
/// row does not attend as a whole, whose NaN are then left out of the product, as 0 * NaN is NaN.
/// Rare: plain and small, not fast. `block`: its first V row.
template <class Tile, int kRows>
__device__ __forceinline__ void mark_nan(WarpRows<kRows>& rows, const unsigned char* block,
                                         const BlockMask& mask) {
#pragma unroll
  for (int tile = 0; tile < rows.kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < rows.kHalves; ++half) {
      uint32_t seen = 0;  // NaN in dim 4w + i of the lane's 16 is bit 8i + w
#pragma unroll 1
      for (int key = 0; key < kBlockKeys; ++key) {
        if (!attends(rows.own[tile][half], mask.begin + key, mask)) continue;
        const Words4 codes = Tile::load_value_row(block, key);
#pragma unroll
        for (int w = 0; w < 4; ++w) seen |= nan_codes(codes.word[w]) >> (7 - w);
      }
#pragma unroll
      for (int i = 0; i < 2 * kColumns; ++i) {
        // value[2 * half + e] of column j is dim 8e + j of them.
        const int j = i % kColumns, e = i / kColumns;
        const uint32_t bit = 1U << (8 * (j % 4) + 2 * e + j / 4);
        if ((seen & bit) != 0) rows.o[tile][j].value[2 * half + e] = f32_from_bits(0x7FC00000U);
      }
    }
  }
}

/// Where a chunk lies in its row: eight lanes that store rows of their quads, or load, together
/// meet no bank twice.
struct QuadRowOrder {
  static __device__ __forceinline__ int chunk_at(int row, int chunk) {
    return chunk ^ (chunk >> 3) ^ ((row & 1) << 1);
  }
};

/// Shared memory in which warps leave their rows; warp w's row r is row w * kRows + r.
template <int kRows, int kWarps, class Order = QuadRowOrder>
struct MergeArea {
  F32x4 o[kWarps * kRows][kChunksPerRow];  // chunks in the order of chunk_at()
  RowStats stats[kWarps * kRows];

  static __device__ __forceinline__ int chunk_at(int row, int chunk) {
    return Order::chunk_at(row, chunk);
  }

  __device__ __forceinline__ void leave(int thread, const WarpRows<kRows>& rows) {
    const int warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int tile = 0; tile < rows.kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < rows.kHalves; ++half) {
        const int row = warp * kRows + tile * 16 + half * 8 + lane / 4;
        float total = rows.sum[tile][half];
        total += __shfl_xor_sync(kWholeWarp, total, 1);
        total += __shfl_xor_sync(kWholeWarp, total, 2);
        if (lane % 4 == 0) stats[row] = {rows.max[tile][half], total};
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // value[2 * half + e] of column j is dim 16t + 8e + j
          F32x4 dims;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            dims.value[j] = rows.o[tile][i % 2 * 4 + j].value[2 * half + i / 2];
          }
          o[row][chunk_at(row, lane % 4 * 4 + i)] = dims;
        }
      }
    }
  }

  /// One chunk of the rows first_row, first_row + stride, ...: `count` of them, one to a warp at
  /// most. Whole warps call it, 16 lanes to a row.
  __device__ __forceinline__ RowPart merged(int first_row, int stride, int count, int chunk) const {
    return merge_parts<kWarps>(
        count, chunk, [&](int i) { return stats[first_row + i * stride]; },
        [&](int i) {
          const int row = first_row + i * stride;
          return o[row][chunk_at(row, chunk)];
        });
  }
};

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
