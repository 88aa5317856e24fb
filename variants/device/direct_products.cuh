// SPDX-License-Identifier: Apache-2.0
// The products and the softmax of one unit of keys (direct_units.cuh).
#pragma once

#include "variants/device/direct_units.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

/// This lane's scores of a unit that are real, then P in their place: of a row group, one for each
/// tile with two kv heads, else two.
template <class Shape>
struct DirectScores {
  static constexpr int kValues = 2 / Shape::kHeads;
  float of[Shape::Rows::kTiles][Shape::kTiles][Shape::Rows::kHalves][kValues];

  /// Where value v stands among the columns 2t, 2t + 1.
  static __device__ __forceinline__ constexpr int column(int half, int v) {
    return Shape::kHeads == 2 ? half : v;
  }
};

/// One step's rows of A, from `of(tile, half, v)` of its two tiles: zero where a row meets the
/// other kv head.
template <class Shape, class Of>
__device__ __forceinline__ void pack_rows(int step, uint32_t (&a)[4], const Of& of) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int tile = 2 * step + i / 2, half = i % 2;
    if (half >= Shape::Rows::kHalves) {
      a[i] = 0;
    } else if (Shape::kHeads == 1) {
      a[i] = f32x2_to_f16x2(of(tile, half, 0), of(tile, half, DirectScores<Shape>::kValues - 1));
    } else {
      const float only = of(tile, half, 0);
      a[i] = half == 0 ? f32x2_to_f16x2(only, 0.0F) : f32x2_to_f16x2(0.0F, only);
    }
  }
}

/// Where a warp has its queries during the loop: up to 16 rows in registers, more in shared memory,
/// each lane its own part, as the registers would not suffice.
template <class Shape, bool kParked_ = (Shape::kRows > 16)>
class DirectQueries {
 public:
  static constexpr bool kParked = kParked_;
  static constexpr int kParkedBytes =
      kParked ? Shape::Rows::kTiles * kSteps * 32 * static_cast<int>(sizeof(Words4)) : 0;

  /// Parked where the warp leaves its rows after the loop.
  __device__ __forceinline__ DirectQueries(const typename Shape::Rows& rows,
                                           typename Shape::Area& area) {
    if constexpr (kParked) {
      static_assert(kParkedBytes <= Shape::kRows * sizeof(area.o[0]));
      const int warp = static_cast<int>(threadIdx.x) / 32,
                lane = static_cast<int>(threadIdx.x) % 32;
      place_ = reinterpret_cast<Words4*>(area.o[warp * Shape::kRows]) + lane;
#pragma unroll
      for (int i = 0; i < Shape::Rows::kTiles * kSteps; ++i) {
        const uint32_t(&a)[4] = rows.query[i / kSteps].step[i % kSteps];
        place_[i * 32] = {{a[0], a[1], a[2], a[3]}};
      }
    }
  }
  __device__ __forceinline__ QueryFragment tile(const typename Shape::Rows& rows, int m) const {
    if constexpr (!kParked) {
      return rows.query[m];
    } else {
      QueryFragment query;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const Words4 a = load_shared_words4(place_ + (m * kSteps + s) * 32);
#pragma unroll
        for (int i = 0; i < 4; ++i) query.step[s][i] = a.word[i];
      }
      return query;
    }
  }

 private:
  Words4* place_ = nullptr;
};

/// For what is called with a tile to load in its place: none.
struct NoRefill {
  __device__ __forceinline__ void operator()(int /*tile*/) const {}
};
template <class Refill>
inline constexpr bool kRefills = true;
template <>
inline constexpr bool kRefills<NoRefill> = false;

/// Scores of a unit, of the dot product alone. Each piece of K makes room for what `refill(tile)`
/// loads.
template <class Shape, class Queries, class Refill>
__device__ __forceinline__ DirectScores<Shape> multiply_unit(const typename Shape::Rows& rows,
                                                             const Queries& queries,
                                                             DirectUnit<Shape>& unit,
                                                             const Refill& refill) {
  using Scores = DirectScores<Shape>;
  Scores scores;
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
    const KeyFragment keys = key_fragment(unit.k[tile]);
    refill(tile);
#pragma unroll
    for (int m = 0; m < rows.kTiles; ++m) {
      const Accumulator all = multiply_keys(queries.tile(rows, m), keys);
#pragma unroll
      for (int half = 0; half < rows.kHalves; ++half) {
#pragma unroll
        for (int v = 0; v < Scores::kValues; ++v) {
          scores.of[m][tile][half][v] = all.value[2 * half + Scores::column(half, v)];
        }
      }
    }
  }
  return scores;
}

/// What rows need to know of their keys besides the keys.
struct DirectKeys {
  KeyRange keys;     // the CTA's
  int end_of_first;  // where those of the first of two queries end: the other one's key is left out
  int left;          // the key left of the second query's window that the first attends, else -1
  float scale;       // from the dot product of the bytes to units of log2
};

__device__ __forceinline__ DirectKeys direct_keys(const AttentionArgs& args, int cache_seqlen,
                                                  KeyRange keys) {
  const KeyRange first = query_keys(args, cache_seqlen, 0);
  const KeyRange last = query_keys(args, cache_seqlen, args.q_len - 1);
  return {keys, smaller(keys.end, first.end), first.begin < last.begin ? first.begin : -1,
          args.softmax_scale * __ldg(args.k_scale) * kLog2E};
}

/// Whether the lane's value v of a tile of the unit at `begin` belongs to a key that its row
/// attends.
template <class Shape>
__device__ __forceinline__ bool attends(const DirectKeys& keys, int begin, int m, int tile,
                                        int half, int v) {
  const int query = (2 * m + half) / Shape::kHeads;
  const int key = begin + tile * Shape::kTileTokens + score_token<Shape>(v);
  if (Shape::kQueries == 1) return key < keys.keys.end;
  return query == 0 ? key < keys.end_of_first : key < keys.keys.end && key != keys.left;
}

/// Scores become P, which is added to the rows' sums; exactly 0 for keys that a row does not
/// attend. kLast: whether the unit is its warp's last one. In others rows attend all keys, but for
/// the first one of the request, which may lie left of the second query's window.
template <class Shape, bool kLast>
__device__ __forceinline__ void weigh_unit(typename Shape::Rows& rows, DirectScores<Shape>& scores,
                                           const DirectKeys& keys, int begin) {
  using Scores = DirectScores<Shape>;
  using Rows = typename Shape::Rows;
  float unit_max[Rows::kTiles][Rows::kHalves];
  bool grows = false;
#pragma unroll
  for (int m = 0; m < Rows::kTiles; ++m) {
#pragma unroll
    for (int half = 0; half < Rows::kHalves; ++half) {
      float max = minus_infinity();
#pragma unroll
      for (int i = 0; i < Shape::kTiles * Scores::kValues; ++i) {
        float& score = scores.of[m][i / Scores::kValues][half][i % Scores::kValues];
        const int tile = i / Scores::kValues, v = i % Scores::kValues;
        const bool second = (2 * m + half) / Shape::kHeads > 0;
        if (kLast ? !attends<Shape>(keys, begin, m, tile, half, v)
                  : second && i == 0 && begin == keys.left && score_token<Shape>(0) == 0) {
          score = minus_infinity();
        }
        max = fmaxf(max, score);
      }
      unit_max[m][half] = max * keys.scale;
      grows = grows || unit_max[m][half] > rows.max[m][half] + kRescaleAt;
    }
  }
  if (__any_sync(kWholeWarp, grows)) rescale(rows, unit_max);
#pragma unroll
  for (int m = 0; m < Rows::kTiles; ++m) {
#pragma unroll
    for (int half = 0; half < Rows::kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < Shape::kTiles * Scores::kValues; ++i) {
        float& p = scores.of[m][i / Scores::kValues][half][i % Scores::kValues];
        p = exp2_approx(fmaf(p, keys.scale, -rows.max[m][half]));
        rows.sum[m][half] += p;
      }
    }
  }
}

/// One step of o += P * V.
template <class Shape>
__device__ __forceinline__ void add_step(typename Shape::Rows& rows, const DirectScores<Shape>& p,
                                         int step, const ValueFragment& values) {
#pragma unroll
  for (int m = 0; m < rows.kTiles; ++m) {
    uint32_t a[4];
    pack_rows<Shape>(step, a, [&](int tile, int half, int v) { return p.of[m][tile][half][v]; });
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      mma_m16n8k16_f16(rows.o[m][column].value, a, values.column[column]);
    }
  }
}

/// V of two tiles as value_fragment() takes it.
struct StepCodes {
  Words2 of[4];
};
template <class Shape>
__device__ __forceinline__ StepCodes step_codes(int lane, const DirectUnit<Shape>& unit, int step) {
  StepCodes codes;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    Words2 columns[2];
    value_columns(lane, unit.v[2 * step + i], columns);
    codes.of[2 * i] = columns[0];
    codes.of[2 * i + 1] = columns[1];
  }
  return codes;
}

/// o += P * V. Each tile's values make room for what `refill(tile)` loads.
template <class Shape, class Refill>
__device__ __forceinline__ void add_values(int thread, typename Shape::Rows& rows,
                                           const DirectScores<Shape>& p, DirectUnit<Shape>& unit,
                                           const Refill& refill) {
  const int lane = thread % 32;
#pragma unroll
  for (int step = 0; step < Shape::kTiles / 2; ++step) {
    const ValueFragment values =
        value_fragment(step_codes<Shape>(lane, unit, step).of, value_selector(lane));
    refill(2 * step);
    refill(2 * step + 1);
    add_step<Shape>(rows, p, step, values);
  }
}

/// One step of the same where V holds NaN: o becomes NaN where the row attends a key whose value
/// is, and nowhere else, though 0 * NaN is NaN. A second product counts such keys.
template <class Shape>
__device__ __forceinline__ void add_values_with_nan(typename Shape::Rows& rows,
                                                    const DirectScores<Shape>& p,
                                                    const DirectUnit<Shape>& unit, int step,
                                                    const DirectKeys& keys, int begin) {
  constexpr uint32_t kOne = 0x38;  // e4m3
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const StepCodes codes = step_codes<Shape>(lane, unit, step);
  StepCodes finite, nan;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t four = codes.of[i / 2].word[i % 2];
    finite.of[i / 2].word[i % 2] = without_nan(four);
    nan.of[i / 2].word[i % 2] = (nan_codes(four) >> 7) * kOne;
  }
  add_step<Shape>(rows, p, step, value_fragment(finite.of, value_selector(lane)));
  const ValueFragment counted = value_fragment(nan.of, value_selector(lane));
#pragma unroll
  for (int m = 0; m < rows.kTiles; ++m) {
    uint32_t a[4];
    pack_rows<Shape>(step, a, [&](int tile, int half, int v) {
      return attends<Shape>(keys, begin, m, tile, half, v) ? 1.0F : 0.0F;
    });
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      Accumulator count{};
      mma_m16n8k16_f16(count.value, a, counted.column[column]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (count.value[i] > 0) rows.o[m][column].value[i] = f32_from_bits(0x7FC00000U);
      }
    }
  }
}

/// The products of a walk (direct_rows.cuh) whose query rows are the rows of both.
template <class Shape>
struct RowProducts {
  using Rows = typename Shape::Rows;
  using Scores = DirectScores<Shape>;
  using Unit = DirectUnit<Shape>;

  /// Rows without keys yet. Queries: set_query_row(rows.query[m], half, codes) for each row group.
  static __device__ __forceinline__ Rows empty() {
    Rows rows{};
#pragma unroll
    for (int i = 0; i < Shape::kHeads * Shape::kQueries; ++i) rows.max[i / 2][i % 2] = kNoMaximum;
    return rows;
  }
  template <class Queries, class Refill>
  static __device__ __forceinline__ Scores multiply(const Rows& rows, const Queries& queries,
                                                    Unit& unit, const Refill& refill) {
    return multiply_unit<Shape>(rows, queries, unit, refill);
  }
  template <bool kLast>
  static __device__ __forceinline__ void weigh(Rows& rows, Scores& scores, const DirectKeys& keys,
                                               int begin) {
    weigh_unit<Shape, kLast>(rows, scores, keys, begin);
  }
  template <class Refill>
  static __device__ __forceinline__ void add_values(int thread, Rows& rows, const Scores& p,
                                                    Unit& unit, const Refill& refill) {
    device::add_values<Shape>(thread, rows, p, unit, refill);
  }
  static constexpr int kStepTiles = 2;  // whose values a step takes
  static __device__ __forceinline__ void add_values_with_nan(Rows& rows, const Scores& p,
                                                             const Unit& unit, int step,
                                                             const DirectKeys& keys, int begin) {
    device::add_values_with_nan<Shape>(rows, p, unit, step, keys, begin);
  }
};

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
