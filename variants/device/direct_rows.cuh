// SPDX-License-Identifier: Apache-2.0
// Attention of a warp over keys that it loads straight into the fragments of its matrix products:
// no shared memory and no barrier until warps are merged.
//
// Groups of 8 query heads, one kv head to each. A unit is `tokens` keys, held by the warp in
// registers. Columns of Q * K are (token, kv head) pairs, and what crosses kv heads becomes zeros
// in P. With g = lane / 4, t = lane % 4, and a tile of 8 columns a lane loads of K and of V 16
// bytes: column g, dims 16t..16t+15. So with two kv heads an octet of lanes takes a whole row of
// 128 bytes: the L2 is asked once for each. P * V wants dims 8g..8g+7 of columns 2t and 2t + 1: see
// value_columns().
//   Row group r (8 rows, half r % 2 of tile r / 2 of WarpRows): query r / kHeads, kv head r %
//   kHeads.
// A buffer is refilled piece by piece with the warp's next unit as soon as a piece is converted.
#pragma once

#include "variants/device/attention_keys.cuh"
#include "variants/device/warp_rows.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

inline constexpr int kDirectGroup = 8;    // query heads of a kv head
inline constexpr int kDirectKvHeads = 2;  // of the model: a row of the cache is 128 bytes
inline constexpr uint32_t kDirectRowBytes = kDirectKvHeads * kHeadDim;

/// C names by its members: heads_per_cta (1, 2), tokens of a unit (8, 16, 32; at least 16 with one
/// head), warps of a CTA, depth (units of a warp on their way at a time). kQueries: query tokens of
/// a request, 1 or 2.
template <class C, int kQueries_>
struct DirectShape {
  static constexpr int kQueries = kQueries_;
  static constexpr int kHeads = C::heads_per_cta;
  static constexpr int kTokens = C::tokens;
  static constexpr int kWarps = C::warps;
  static constexpr int kDepth = C::depth;
  static constexpr int kTileTokens = 8 / kHeads;
  static constexpr int kTiles = kTokens / kTileTokens;
  static constexpr int kStride = kWarps * kTokens;  // keys from a warp's unit to its next
  static constexpr int kRows = kDirectGroup * kHeads * kQueries;
  static_assert(kTiles % 2 == 0 && kTokens <= 32, "steps of P * V take two tiles, a lane a page");
  using Rows = WarpRows<kRows>;

  /// Which of its rows is row `row` of a CTA: those have all rows of a kv head side by side.
  static __device__ __forceinline__ int row_of(int row) {
    const int group = row / kDirectGroup;
    const int head = group / kQueries, query = group % kQueries;
    return (query * kHeads + head) * kDirectGroup + row % kDirectGroup;
  }
};

/// The same arguments with numbers that the compiler knows in place of those that the host has
/// checked.
template <class Shape>
__device__ __forceinline__ AttentionArgs direct_args(AttentionArgs args) {
  args.q_len = Shape::kQueries;
  args.group = kDirectGroup;
  args.num_kv_heads = kDirectKvHeads;
  args.num_q_heads = kDirectKvHeads * kDirectGroup;
  return args;
}

/// A unit of keys as it was loaded.
template <class Shape>
struct DirectUnit {
  Words4 k[Shape::kTiles];
  Words4 v[Shape::kTiles];
};

/// The token, of a tile, of what this lane loads: column g.
template <class Shape>
__device__ __forceinline__ int loaded_token() {
  return static_cast<int>(threadIdx.x) % 32 / 4 / Shape::kHeads;
}
/// The token, of a tile, of column 2t or 2t + 1.
template <class Shape>
__device__ __forceinline__ int score_token(int column) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  return Shape::kHeads == 2 ? t : 2 * t + column;
}

/// Dims 8g..8g+7 of columns 2t and 2t + 1 of a tile, from what lanes 8t + g / 2 and 8t + g / 2 + 4
/// loaded; in lanes of an odd g the two are swapped (see value_selector(lane)). Each of the four
/// exchanges takes from a lane what one lane wants of it: of the 16 bytes of an even column the
/// even g want the first half, the odd g the second, and those ask for the odd column first.
__device__ __forceinline__ void value_columns(int lane, const Words4& loaded,
                                              Words2 (&columns)[2]) {
  const bool odd_column = lane / 4 % 2 != 0;  // what this lane loaded; and whether its own g is odd
  const int from = lane % 4 * 8 + lane / 8;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int source = from + (odd_column == (i == 0) ? 4 : 0);
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const uint32_t first = loaded.word[w], second = loaded.word[2 + w];
      const uint32_t wanted = odd_column == (i == 0) ? second : first;
      columns[i].word[w] = __shfl_sync(kWholeWarp, wanted, source);
    }
  }
}
/// For value_fragment().
__device__ __forceinline__ uint32_t value_selector(int lane) {
  return lane / 4 % 2 == 0 ? kEvenFirst : kOddFirst;
}

/// Where rows of the cache lie for this lane. A unit's pages are looked up by one lane for each
/// key.
template <class Shape>
class DirectLoader {
 public:
  /// Keys from `end` on are neither looked up nor loaded: the last one before takes their place.
  __device__ __forceinline__ DirectLoader(const AttentionArgs& args, int request, int first_head,
                                          int end)
      : table_(args.page_table),
        first_entry_(static_cast<uint32_t>(request) * static_cast<uint32_t>(args.max_pages)),
        k_(args.k_cache + first_byte(first_head)),
        v_(args.v_cache + first_byte(first_head)),
        page_shift_(args.page_shift),
        end_(end) {}

  /// The page of this lane's key of the unit that starts at `begin`.
  __device__ __forceinline__ int page(int begin) const {
    const auto entry = static_cast<uint32_t>(key(begin)) >> page_shift_;
    return __ldg(table_ + (first_entry_ + entry));
  }
  /// Its flat row. 32 bits: no memory has 2^39 bytes.
  __device__ __forceinline__ uint32_t row(int page, int begin) const {
    return (static_cast<uint32_t>(page) << page_shift_) + (key(begin) & ((1 << page_shift_) - 1));
  }

  __device__ __forceinline__ int end() const { return end_; }

  /// `row`: of all lanes' keys. The whole warp calls these.
  __device__ __forceinline__ Words4 keys(uint32_t row, int tile) const {
    return load(k_, of_tile(row, tile));
  }
  __device__ __forceinline__ Words4 values(uint32_t row, int tile) const {
    return load(v_, of_tile(row, tile));
  }
  /// The first `count` tokens; the last one of them takes the place of others.
  __device__ __forceinline__ void unit(uint32_t row, DirectUnit<Shape>& unit,
                                       int count = Shape::kTokens) const {
    const uint32_t last = __shfl_sync(kWholeWarp, row, lane_of(count - 1));
    if (own_token() >= count) row = last;
    uint32_t of[Shape::kTiles];
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      of[tile] = of_tile(row, tile);
      unit.k[tile] = load(k_, of[tile]);
    }
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) unit.v[tile] = load(v_, of[tile]);
  }
  /// All but the first `count` tokens.
  __device__ __forceinline__ void rest_of_unit(uint32_t row, DirectUnit<Shape>& unit,
                                               int count) const {
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      const uint32_t of = of_tile(row, tile);
      if (token_at(tile) < count) continue;
      unit.k[tile] = load(k_, of);
      unit.v[tile] = load(v_, of);
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ int key(int begin) const {
    return smaller(begin + own_token() + 1, end_) - 1;
  }
  /// Of a row.
  static __device__ __forceinline__ int first_byte(int first_head) {
    return (first_head + lane() / 4 % Shape::kHeads) * kHeadDim + lane() % 4 * 16;
  }
  /// Token of the unit.
  static __device__ __forceinline__ int token_at(int tile) {
    return tile * Shape::kTileTokens + loaded_token<Shape>();
  }
  /// The one that this lane looks up: of the kTiles lanes around it, which load the same token of
  /// each tile, every one has a tile's.
  static __device__ __forceinline__ int own_token() { return token_at(lane() % Shape::kTiles); }
  static __device__ __forceinline__ int lane_of(int token) {
    return token % Shape::kTileTokens * (32 / Shape::kTileTokens) + token / Shape::kTileTokens;
  }
  static __device__ __forceinline__ uint32_t of_tile(uint32_t row, int tile) {
    return __shfl_sync(kWholeWarp, row, tile, Shape::kTiles);
  }
  static __device__ __forceinline__ Words4 load(const uint8_t* rows, uint32_t row) {
    return load_constant_words4<LoadHint::kNoAllocate>(rows + static_cast<uint64_t>(row) *
                                                                  kDirectRowBytes);
  }

  const int32_t* table_;
  uint32_t first_entry_;  // the request's; no table has 2^32 entries
  const uint8_t *k_, *v_;
  int page_shift_, end_;
};

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

/// Where a warp has its queries during the loop: for one token in registers, for two in shared
/// memory, each lane its own part; the registers would not suffice for 12 warps on an SM.
template <class Shape, bool kParked_ = (Shape::kRows > 16)>
class DirectQueries {
 public:
  static constexpr bool kParked = kParked_;
  static constexpr int kParkedBytes =
      kParked ? Shape::Rows::kTiles * kSteps * 32 * static_cast<int>(sizeof(Words4)) : 0;

  /// Parked where the warp leaves its rows after the loop.
  __device__ __forceinline__ DirectQueries(const typename Shape::Rows& rows,
                                           MergeArea<Shape::kRows, Shape::kWarps>& area) {
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

/// How many splits a request's keys make: `capacity` at most, and no more than give every warp of a
/// CTA a unit. It follows from the request's own keys alone, so that a batch changes no bit.
template <class Shape>
__device__ __forceinline__ int direct_splits(KeyRange keys, int capacity) {
  return larger(1, smaller(capacity, ceil_div(keys.end - keys.begin, Shape::kStride)));
}

/// Split number `split` of `count`, which direct_splits() found for that capacity: whole units,
/// their numbers differ by one at most.
template <class Shape, int kCapacity>
__device__ __forceinline__ KeyRange direct_split(KeyRange keys, int count, int split) {
  const int units = ceil_div(keys.end - keys.begin, Shape::kTokens);
  // Fewer splits than there may be have at most a unit to each warp. So little divides exactly in
  // f32, and in fewer instructions, from a half further up; 2^21 would be too much.
  static_assert(kCapacity * Shape::kWarps <= 1 << 16);
  const float inexact =
      (static_cast<float>(units) + 0.5F) * reciprocal_approx(static_cast<float>(count));
  const int each = count == kCapacity ? units / kCapacity : static_cast<int>(inexact);
  const int more = units - each * count;  // the first `more` have one more
  const int begin = keys.begin + (split * each + smaller(split, more)) * Shape::kTokens;
  return {begin, smaller(begin + (each + (split < more ? 1 : 0)) * Shape::kTokens, keys.end)};
}

/// For attend(): nothing in a unit but what was loaded.
struct AsLoaded {
  template <class Unit>
  __device__ __forceinline__ void operator()(Unit&, int) const {}
};

/// A warp's walk over its units: every kWarps-th of the CTA's. start(), or look_up() and load_old()
/// with other work in between, may come before the launch before has ended; then load_new() for the
/// keys whose rows that launch wrote; then attend().
template <class Shape>
class DirectWalk {
 public:
  using Rows = typename Shape::Rows;
  using Unit = DirectUnit<Shape>;

  /// keys: the CTA's. Keys from `loadable` on are never loaded or looked up (those of this step
  /// where the caller has them; then attend() is given what puts them into their unit).
  __device__ __forceinline__ DirectWalk(const AttentionArgs& args, int request, int first_head,
                                        KeyRange keys, int loadable)
      : loader_(args, request, first_head, loadable),
        first_(keys.begin + static_cast<int>(threadIdx.x) / 32 * Shape::kTokens),
        end_(keys.end) {}

  /// Starts to look up the pages of the first unit and of those to come.
  __device__ __forceinline__ void look_up() {
    if (!loads(first_)) return;
#pragma unroll
    for (int i = 0; i < kDepth; ++i) first_pages_[i] = loader_.page(first_ + i * Shape::kStride);
    page_ = loader_.page(first_ + kDepth * Shape::kStride);
  }

  /// Starts to load the first units' keys before `end`, once their pages are there.
  __device__ __forceinline__ void load_old(int end) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int begin = first_ + i * Shape::kStride;
      units_[i] = {};
      rows_[i] = loader_.row(first_pages_[i], begin);
      if (loads(begin) && begin < end) {
        loader_.unit(rows_[i], units_[i], smaller(end - begin, Shape::kTokens));
      }
    }
  }

  __device__ __forceinline__ void start(int end) {
    look_up();
    load_old(end);
  }

  /// Loads the first units' keys from `begin` on, which load_old() left out.
  __device__ __forceinline__ void load_new(int begin) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int first = first_ + i * Shape::kStride;
      const int old = begin - first;  // tokens of the unit that are there
      if (loads(first) && old < Shape::kTokens) loader_.rest_of_unit(rows_[i], units_[i], old);
    }
  }

  /// Adds all units to the rows. Queries of two tokens are parked in the warp's part of `area`.
  /// `complete(unit, begin)` puts into the last unit, whose first key is `begin`, what was not
  /// loaded.
  template <class Complete = AsLoaded>
  __device__ __forceinline__ void attend(Rows& rows, const DirectKeys& keys,
                                         MergeArea<Shape::kRows, Shape::kWarps>& area,
                                         const Complete& complete = {}) {
    if (first_ >= end_) return;
    const DirectQueries<Shape> queries(rows, area);
    int begin = first_;
#pragma unroll 1
    while (begin + kDepth * Shape::kStride < end_) {
#pragma unroll
      for (int i = 0; i < kDepth; ++i, begin += Shape::kStride) {
        add_unit(rows, queries, keys, begin, units_[i], begin + kDepth * Shape::kStride);
      }
    }
#pragma unroll
    for (int i = 0; i + 1 < kDepth; ++i) {
      if (is_last(begin)) break;
      add_loaded<false>(rows, queries, keys, begin, units_[i]);
      begin += Shape::kStride;
      units_[0] = units_[i + 1];
    }
    Unit& last = units_[0];
    complete(last, begin);
    add_loaded<true>(rows, queries, keys, begin, last);
  }

  /// The same where attend() found NaN: slowly, from rows without keys and loads of its own. A NaN
  /// of V stays with the rows that attend it.
  template <class Complete = AsLoaded>
  __device__ __forceinline__ void attend_nan(Rows& rows, const DirectKeys& keys,
                                             MergeArea<Shape::kRows, Shape::kWarps>& area,
                                             const Complete& complete = {}) const {
    const DirectQueries<Shape, true> queries(rows, area);
#pragma unroll 1
    for (int begin = first_; begin < end_; begin += Shape::kStride) {
      const uint32_t row = loads(begin) ? loader_.row(loader_.page(begin), begin) : 0;
      Unit unit = {};  // K, then V piece by piece: fewer registers
#pragma unroll
      for (int tile = 0; tile < Shape::kTiles; ++tile) {
        if (loads(begin)) unit.k[tile] = loader_.keys(row, tile);
      }
      if (is_last(begin)) complete(unit, begin);
      DirectScores<Shape> scores = multiply_unit<Shape>(rows, queries, unit, [](int) {});
      weigh_unit<Shape, true>(rows, scores, keys, begin);
#pragma unroll
      for (int step = 0; step < Shape::kTiles / 2; ++step) {
        unit = {};
#pragma unroll
        for (int tile = 2 * step; tile < 2 * step + 2; ++tile) {
          if (loads(begin)) unit.v[tile] = loader_.values(row, tile);
        }
        if (is_last(begin)) complete(unit, begin);
        add_values_with_nan<Shape>(rows, scores, unit, step, keys, begin);
      }
    }
  }

 private:
  /// Of the unit at `begin`: whether it has keys to load, and whether no other comes after it.
  __device__ __forceinline__ bool loads(int begin) const {
    return begin < end_ && begin < loader_.end();
  }
  __device__ __forceinline__ bool is_last(int begin) const {
    return begin + Shape::kStride >= end_;
  }

  /// Adds a unit and puts on its way what takes its place: the unit at `next`, or what repeats the
  /// last key where there is none.
  __device__ __forceinline__ void add_unit(Rows& rows, const DirectQueries<Shape>& queries,
                                           const DirectKeys& keys, int begin, Unit& unit,
                                           int next) {
    const uint32_t row = loader_.row(page_, next);
    page_ = loader_.page(next + Shape::kStride);
    DirectScores<Shape> scores = multiply_unit<Shape>(
        rows, queries, unit, [&](int tile) { unit.k[tile] = loader_.keys(row, tile); });
    weigh_unit<Shape, false>(rows, scores, keys, begin);
    add_values<Shape>(static_cast<int>(threadIdx.x), rows, scores, unit,
                      [&](int tile) { unit.v[tile] = loader_.values(row, tile); });
  }
  /// Adds a unit that none takes the place of.
  template <bool kLast>
  __device__ __forceinline__ void add_loaded(Rows& rows, const DirectQueries<Shape>& queries,
                                             const DirectKeys& keys, int begin, Unit& unit) {
    DirectScores<Shape> scores = multiply_unit<Shape>(rows, queries, unit, [](int) {});
    weigh_unit<Shape, kLast>(rows, scores, keys, begin);
    add_values<Shape>(thread_anew(), rows, scores, unit, [](int) {});
  }

  static constexpr int kDepth = Shape::kDepth;

  DirectLoader<Shape> loader_;
  int first_, end_;  // first key of the warp's first unit, end of the CTA's keys
  uint32_t rows_[kDepth] = {};
  int first_pages_[kDepth] = {};
  int page_ = 0;  // of the unit that the next add_unit() puts on its way
  Unit units_[kDepth];
};

/// Whether any O of the warp's rows is NaN. Its keys are then attended again by attend_nan(), in a
/// function that is not inlined and finds out anew all that it needs: nothing is kept for it over
/// the loop, which has use for every register.
template <class Rows>
__device__ __forceinline__ bool hold_nan(const Rows& rows) {
  bool nan = false;
#pragma unroll
  for (int m = 0; m < Rows::kTiles; ++m) {
#pragma unroll
    for (int i = 0; i < kColumns * 2 * Rows::kHalves; ++i) {
      const float o = rows.o[m][i / (2 * Rows::kHalves)].value[i % (2 * Rows::kHalves)];
      nan = nan || o != o;
    }
  }
  return __any_sync(kWholeWarp, nan) != 0;
}

/// Rows without keys yet. Queries: set_query_row(rows.query[m], half, codes) for each row group.
template <class Shape>
__device__ __forceinline__ typename Shape::Rows empty_rows() {
  typename Shape::Rows rows{};
#pragma unroll
  for (int i = 0; i < Shape::kHeads * Shape::kQueries; ++i) rows.max[i / 2][i % 2] = kNoMaximum;
  return rows;
}

/// Their queries from Q8.
template <class Shape>
__device__ __forceinline__ void load_queries(const AttentionArgs& args, int request, int first_head,
                                             typename Shape::Rows& rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < Shape::kHeads * Shape::kQueries; ++i) {
    const int row = i % Shape::kHeads * kDirectGroup + lane / 4;
    const int64_t token = static_cast<int64_t>(request) * Shape::kQueries + i / Shape::kHeads;
    const int64_t head = token * args.num_q_heads + first_head * kDirectGroup + row;
    set_query_row(rows.query[i / 2], i % 2, load_words4(args.q8 + head * kHeadDim + lane % 4 * 16));
  }
}

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
