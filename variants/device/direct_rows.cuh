// SPDX-License-Identifier: Apache-2.0
// Attention of a warp over its units of keys: no barrier until warps are merged. A buffer is
// refilled piece by piece with the warp's next unit as soon as a piece is converted.
#pragma once

#include "variants/device/direct_products.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

/// How many splits a request's keys make: no more than give every warp of a CTA a unit, or where
/// the configuration fills the chip `fill` units, whole clusters where there are several. Without
/// that it follows from the request's own keys alone, so that a batch changes no bit.
template <class C, class Shape>
__device__ __forceinline__ int direct_splits(KeyRange keys) {
  const int count = keys.end - keys.begin;
  if constexpr (C::fill == 0) {
    return larger(1, smaller(C::splits, ceil_div(count, Shape::kStride)));
  } else {
    const int most = smaller(most_splits<C>(), count / (C::fill * Shape::kStride));
    return larger(1, most > C::cluster ? most - most % C::cluster : most);
  }
}

/// Split number `split` of `count`, which direct_splits() found: whole units, their numbers differ
/// by one at most.
template <class C, class Shape>
__device__ __forceinline__ KeyRange direct_split(KeyRange keys, int count, int split) {
  constexpr int kCapacity = C::splits;
  constexpr bool kFewer = C::fill != 0;  // than `capacity`, with more than a unit to each warp
  const int units = ceil_div(keys.end - keys.begin, Shape::kTokens);
  // Fewer splits than there may be have at most a unit to each warp. So little divides exactly in
  // f32, and in fewer instructions, from a half further up; 2^21 would be too much.
  static_assert(kCapacity * Shape::kWarps <= 1 << 16);
  const float inexact =
      (static_cast<float>(units) + 0.5F) * reciprocal_approx(static_cast<float>(count));
  int each = !kFewer && count == kCapacity ? units / kCapacity : static_cast<int>(inexact);
  int more = units - each * count;  // the first `more` have one more
  if (kFewer) {                     // off by one at most: units are below 2^24
    const int off = more < 0 ? -1 : more >= count ? 1 : 0;
    each += off;
    more -= off * count;
  }
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
  using Products = typename Shape::Products;
  using Scores = typename Products::Scores;

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
  /// Starts to bring the table's entries of the CTA's keys, of which the first is `begin`, into L2
  /// before memory is busy with the rows.
  __device__ __forceinline__ void prefetch_pages(int begin) const {
    constexpr int kSector = 32 / static_cast<int>(sizeof(int32_t));  // entries
    const int end = smaller(end_, loader_.end());
#pragma unroll 1
    for (int i = loader_.entry(begin) / kSector + static_cast<int>(threadIdx.x);
         i * kSector < loader_.entry(end); i += Shape::kWarps * 32) {
      loader_.prefetch_entry(i * kSector);
    }
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
                                         typename Shape::Area& area,
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
                                             typename Shape::Area& area,
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
      Scores scores = Products::multiply(rows, queries, unit, NoRefill{});
      Products::template weigh<true>(rows, scores, keys, begin);
#pragma unroll
      for (int step = 0; step < Shape::kTiles / kStepTiles; ++step) {
        unit = {};
#pragma unroll
        for (int i = 0; i < kStepTiles; ++i) {
          const int tile = step * kStepTiles + i;
          if (loads(begin)) unit.v[tile] = loader_.values(row, tile);
        }
        if (is_last(begin)) complete(unit, begin);
        Products::add_values_with_nan(rows, scores, unit, step, keys, begin);
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
    Scores scores = Products::multiply(rows, queries, unit,
                                       [&](int tile) { unit.k[tile] = loader_.keys(row, tile); });
    Products::template weigh<false>(rows, scores, keys, begin);
    Products::add_values(static_cast<int>(threadIdx.x), rows, scores, unit,
                         [&](int tile) { unit.v[tile] = loader_.values(row, tile); });
  }
  /// Adds a unit that none takes the place of.
  template <bool kLast>
  __device__ __forceinline__ void add_loaded(Rows& rows, const DirectQueries<Shape>& queries,
                                             const DirectKeys& keys, int begin, Unit& unit) {
    Scores scores = Products::multiply(rows, queries, unit, NoRefill{});
    Products::template weigh<kLast>(rows, scores, keys, begin);
    Products::add_values(thread_anew(), rows, scores, unit, NoRefill{});
  }

  static constexpr int kDepth = Shape::kDepth;
  static constexpr int kStepTiles = Products::kStepTiles;

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
  float sum[4] = {};  // NaN where one of its terms is; where infinities meet it is one for nothing
#pragma unroll
  for (int m = 0; m < Rows::kTiles; ++m) {
#pragma unroll
    for (int i = 0; i < kColumns * 2 * Rows::kHalves; ++i) {
      sum[i % 4] += rows.o[m][i / (2 * Rows::kHalves)].value[i % (2 * Rows::kHalves)];
    }
  }
  const float all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  return __any_sync(kWholeWarp, all != all) != 0;
}

/// Queries of rows from Q8.
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
