// SPDX-License-Identifier: Apache-2.0
// The products and the softmax of a unit of keys with their operands swapped: keys are the rows of
// K * Q^T, dims those of V^T * P^T, and the 8 query heads of one kv head the columns of both, so
// that no row is padding. A CTA takes one kv head.
//
// With g = lane / 4, t = lane % 4: a tile is 8 keys, a step two tiles. A lane has the scores of key
// g of a tile for heads 2t and 2t + 1; P is transposed by movmatrix. Row group r (8 rows) is query
// token r.
#pragma once

#include "variants/device/direct_products.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

inline constexpr int kDimPairs = kHeadDim / 16;  // of a lane; products of V^T * P^T side by side

/// kRows (8 or 16) query rows and what they have summed. o[r][w] has of row group r the lane's pair
/// w of dims: value[2 * d + e] is dim d of it, head 2t + e.
template <int kRows>
struct SwappedRows {
  static constexpr int kGroups = kRows / kDirectGroup;
  static constexpr int kTiles = 1;
  static constexpr int kHalves = kGroups;

  QueryFragment query[kTiles];  // of all row groups; see set_query_row()
  Accumulator o[kGroups][kDimPairs];
  float max[kGroups][2];  // of heads 2t, 2t + 1: what scores are taken relative to, units of log2
  float sum[kGroups][2];  // of P over this lane's keys
};

/// A sum finds NaN in fewer steps than one comparison after the other. It may also find infinities
/// of both signs, which cost a second look.
template <int kRows>
__device__ __forceinline__ bool hold_nan(const SwappedRows<kRows>& rows) {
  float sums[4] = {};
#pragma unroll
  for (int i = 0; i < rows.kGroups * kDimPairs; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[j] += rows.o[i / kDimPairs][i % kDimPairs].value[j];
  }
  const float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return __any_sync(kWholeWarp, sum != sum) != 0;
}

/// How dims and keys of V change places between lanes. By shuffles (value_columns()): a lane has
/// dims 8g..8g+7. By movmatrix of pairs of codes: of each four dims from 16 * (g / 2) + 4w on it
/// has those from 2 * (g % 2) on.
template <bool kByMatrix>
struct SwappedOrder {
  /// Where a chunk lies in its row; lanes that store together do so in the rows of four t.
  static __device__ __forceinline__ int chunk_at(int row, int chunk) {
    const int t = row / 2;
    return kByMatrix ? chunk ^ (t & 3) : chunk ^ (t & 1) ^ ((t & 2) << 1);
  }
};

template <int kRows, int kWarps, bool kByMatrix>
struct SwappedArea : MergeArea<kRows, kWarps, SwappedOrder<kByMatrix>> {
  __device__ __forceinline__ void leave(int thread, const SwappedRows<kRows>& rows) {
    const int warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
#pragma unroll
    for (int r = 0; r < rows.kGroups; ++r) {
      // Of the first lanes that meet, one goes on with each head.
      const bool odd = g % 2 != 0;
      float total = odd ? rows.sum[r][1] : rows.sum[r][0];
      total += __shfl_xor_sync(kWholeWarp, odd ? rows.sum[r][0] : rows.sum[r][1], 4);
      total += __shfl_xor_sync(kWholeWarp, total, 8);
      total += __shfl_xor_sync(kWholeWarp, total, 16);
      const int first = warp * kRows + r * kDirectGroup + 2 * t;
      if (g < 2) this->stats[first + g] = {odd ? rows.max[r][1] : rows.max[r][0], total};
#pragma unroll
      for (int w = 0; w < kDimPairs; w += kByMatrix ? 1 : 2) {
        const int chunk = this->chunk_at(2 * t, kByMatrix ? g / 2 * 4 + w : 2 * g + w / 2);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float(&o)[4] = rows.o[r][w].value;
          F32x4& place = this->o[first + e][chunk];
          if constexpr (kByMatrix) {
            store_words2(place.value + g % 2 * 2, {{f32_bits(o[e]), f32_bits(o[2 + e])}});
          } else {
            const float(&next)[4] = rows.o[r][w + 1].value;
            place = {{o[e], o[2 + e], next[e], next[2 + e]}};
          }
        }
      }
    }
  }
};

template <class Shape>
struct SwappedProducts;

/// C names by its members, besides those of DirectShape, transpose: how V changes places, 0 = by
/// shuffles, 1 = by movmatrix.
template <class C, int kQueries>
struct SwappedShape : DirectShape<C, kQueries> {
  using Direct = DirectShape<C, kQueries>;
  static_assert(Direct::kHeads == 1, "the columns of a product are heads of one kv head");
  static constexpr bool kByMatrix = C::transpose != 0;
  using Rows = SwappedRows<Direct::kRows>;
  using Area = SwappedArea<Direct::kRows, Direct::kWarps, kByMatrix>;
  using Products = SwappedProducts<SwappedShape>;
};

/// Shape: that of products whose operands are swapped, or not.
template <class C, int kQueries, bool kSwapped>
struct ChosenShape {
  using Shape = DirectShape<C, kQueries>;
};
template <class C, int kQueries>
struct ChosenShape<C, kQueries, true> {
  using Shape = SwappedShape<C, kQueries>;
};

template <class Shape>
struct SwappedProducts {
  using Rows = typename Shape::Rows;
  using Unit = DirectUnit<Shape>;
  static constexpr int kStepTiles = 2;

  /// This lane's scores of a unit, then P in their place: key g of each tile, heads 2t, 2t + 1.
  struct Scores {
    float of[Rows::kGroups][Shape::kTiles][2];
  };

  static __device__ __forceinline__ Rows empty() {
    Rows rows{};
#pragma unroll
    for (int i = 0; i < 2 * Rows::kGroups; ++i) rows.max[i / 2][i % 2] = kNoMaximum;
    return rows;
  }

  /// Scores of a unit, of the dot product alone. Each piece of K makes room for what `refill(tile)`
  /// loads. In a unit that nothing refills V changes places meanwhile.
  template <class Queries, class Refill>
  static __device__ __forceinline__ Scores multiply(const Rows& rows, const Queries& queries,
                                                    Unit& unit, const Refill& refill) {
    const QueryFragment query = queries.tile(rows, 0);
    Scores scores;
#pragma unroll
    for (int step = 0; step < Shape::kTiles / 2; ++step) {
      QueryFragment keys;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        set_query_row(keys, i, unit.k[2 * step + i]);
        refill(2 * step + i);
      }
#pragma unroll
      for (int r = 0; r < Rows::kGroups; ++r) {
        const Accumulator all = multiply_step<kRefills<Refill>>(keys, query, r);
#pragma unroll
        for (int i = 0; i < 4; ++i) scores.of[r][2 * step + i / 2][i % 2] = all.value[i];
      }
    }
    if constexpr (!kRefills<Refill>) {
#pragma unroll
      for (int tile = 0; tile < Shape::kTiles; ++tile) {
        unit.v[tile] = value_pairs(lane(), unit.v[tile]);
      }
    }
    return scores;
  }

  /// Scores become P, which is added to the rows' sums; exactly 0 for keys that a row does not
  /// attend. kLast: see weigh_unit(); the first unit of a warp raises the maxima anyway, and the
  /// last one is often the first: no vote, so that V is widened while maxima cross lanes.
  template <bool kLast>
  static __device__ __forceinline__ void weigh(Rows& rows, Scores& scores, const DirectKeys& keys,
                                               int begin) {
    float unit_max[Rows::kGroups][2];
    bool grows = false;
#pragma unroll
    for (int r = 0; r < Rows::kGroups; ++r) {
#pragma unroll
      for (int tile = 0; tile < Shape::kTiles; ++tile) {
        const int key = begin + tile * Shape::kTileTokens + lane() / 4;
        const bool left_out =
            kLast ? !attends(keys, r, key) : r > 0 && tile == 0 && key == keys.left;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores.of[r][tile][e];
          if (left_out) score = minus_infinity();
          unit_max[r][e] = tile == 0 ? score : fmaxf(unit_max[r][e], score);
        }
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        unit_max[r][e] *= keys.scale;
        grows = grows || unit_max[r][e] > rows.max[r][e] + kRescaleAt;
      }
    }
    if (kLast || __any_sync(kWholeWarp, grows)) rescale(rows, unit_max);
#pragma unroll
    for (int r = 0; r < Rows::kGroups; ++r) {
#pragma unroll
      for (int i = 0; i < 2 * Shape::kTiles; ++i) {
        float& p = scores.of[r][i / 2][i % 2];
        p = exp2_approx(fmaf(p, keys.scale, -rows.max[r][i % 2]));
        rows.sum[r][i % 2] += p;
      }
    }
  }

  /// o += P * V. Each tile's values make room for what `refill(tile)` loads.
  template <class Refill>
  static __device__ __forceinline__ void add_values(int thread, Rows& rows, const Scores& p,
                                                    const Unit& unit, const Refill& refill) {
#pragma unroll
    for (int step = 0; step < Shape::kTiles / 2; ++step) {
      Words4 pairs[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Words4& v = unit.v[2 * step + i];
        pairs[i] = kRefills<Refill> ? value_pairs(thread % 32, v) : v;
        refill(2 * step + i);
      }
      add_step(rows, p, step, pairs);
    }
  }

  /// One step of the same where V holds NaN: o becomes NaN where the row attends a key whose value
  /// is, and nowhere else, though 0 * NaN is NaN. A second product counts such keys.
  static __device__ __forceinline__ void add_values_with_nan(Rows& rows, const Scores& p,
                                                             const Unit& unit, int step,
                                                             const DirectKeys& keys, int begin) {
    constexpr uint32_t kOne = 0x38;  // e4m3
    Words4 finite[2], nan[2];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t four = unit.v[2 * step + i / 4].word[i % 4];
      finite[i / 4].word[i % 4] = without_nan(four);
      nan[i / 4].word[i % 4] = (nan_codes(four) >> 7) * kOne;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      finite[i] = value_pairs(lane(), finite[i]);
      nan[i] = value_pairs(lane(), nan[i]);
    }
    add_step(rows, p, step, finite);
#pragma unroll
    for (int r = 0; r < Rows::kGroups; ++r) {
      uint32_t attended[2];  // keys 2t and 2t + 1 of each tile, by any head
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = begin + (2 * step + i) * Shape::kTileTokens + lane() % 4 * 2;
        attended[i] = f32x2_to_f16x2(attends(keys, r, key) ? 1.0F : 0.0F,
                                     attends(keys, r, key + 1) ? 1.0F : 0.0F);
      }
#pragma unroll
      for (int w = 0; w < kDimPairs; ++w) {
        Accumulator count{};
        mma_m16n8k16_f16(count.value, values(nan, w).of, attended);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (count.value[i] > 0) rows.o[r][w].value[i] = f32_from_bits(0x7FC00000U);
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

  static __device__ __forceinline__ bool attends(const DirectKeys& keys, int query, int key) {
    if (Shape::kQueries == 1) return key < keys.keys.end;
    return query == 0 ? key < keys.end_of_first : key < keys.keys.end && key != keys.left;
  }

  /// Scores of 16 keys and row group r: one sum after the other, or two side by side where nothing
  /// else would come meanwhile.
  template <bool kOneSum>
  static __device__ __forceinline__ Accumulator multiply_step(const QueryFragment& keys,
                                                              const QueryFragment& query, int r) {
    Accumulator sums[2] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const uint32_t b[2] = {query.step[s][r], query.step[s][r + 2]};
      mma_m16n8k16_f16(sums[kOneSum ? 0 : s % 2].value, keys.step[s], b);
    }
#pragma unroll
    for (int i = 0; i < 4 && !kOneSum; ++i) sums[0].value[i] += sums[1].value[i];
    return sums[0];
  }

  /// Raises the maxima of all rows to those of the unit, and scales what was summed below them.
  static __device__ __forceinline__ void rescale(Rows& rows,
                                                 const float (&unit_max)[Rows::kGroups][2]) {
#pragma unroll
    for (int i = 0; i < 2 * Rows::kGroups; ++i) {
      const int r = i / 2, e = i % 2;
      float max = fmaxf(rows.max[r][e], unit_max[r][e]);
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, distance));
      }
      const float factor = exp2_approx(rows.max[r][e] - max);
      rows.max[r][e] = max;
      rows.sum[r][e] *= factor;
#pragma unroll
      for (int w = 0; w < kDimPairs; ++w) {
        rows.o[r][w].value[e] *= factor;
        rows.o[r][w].value[2 + e] *= factor;
      }
    }
  }

  /// Codes of a tile's values, from what the lane loaded: word w has its pair w of dims, of each
  /// the keys 2t and 2t + 1.
  static __device__ __forceinline__ Words4 value_pairs(int lane, const Words4& loaded) {
    Words4 pairs;
    if constexpr (Shape::kByMatrix) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        // Two dims of key 2t, then the same two of key 2t + 1.
        const uint32_t keys = transpose_8x8_b16(loaded.word[w]);
        pairs.word[w] = pick_bytes(keys, keys, 0x3120);
      }
    } else {
      Words2 columns[2];
      value_columns(lane, loaded, columns);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        pairs.word[w] = pick_bytes(columns[0].word[w / 2], columns[1].word[w / 2],
                                   value_selector(lane) + w % 2 * 0x2222);
      }
    }
    return pairs;
  }

  /// V^T of one step: 16 dims, the lane's pair w among them.
  struct Values {
    uint32_t of[4];
  };
  static __device__ __forceinline__ Values values(const Words4 (&pairs)[2], int w) {
    return {{low_f16x2(pairs[0].word[w]), high_f16x2(pairs[0].word[w]), low_f16x2(pairs[1].word[w]),
             high_f16x2(pairs[1].word[w])}};
  }

  static __device__ __forceinline__ void add_step(Rows& rows, const Scores& p, int step,
                                                  const Words4 (&pairs)[2]) {
    uint32_t b[Rows::kGroups][2];
#pragma unroll
    for (int i = 0; i < 2 * Rows::kGroups; ++i) {
      const float(&of)[2] = p.of[i / 2][2 * step + i % 2];
      b[i / 2][i % 2] = transpose_8x8_b16(f32x2_to_f16x2(of[0], of[1]));
    }
#pragma unroll
    for (int w = 0; w < kDimPairs; ++w) {
      const Values a = values(pairs, w);
#pragma unroll
      for (int r = 0; r < Rows::kGroups; ++r) mma_m16n8k16_f16(rows.o[r][w].value, a.of, b[r]);
    }
  }
};

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
