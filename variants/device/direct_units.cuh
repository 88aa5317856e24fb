// SPDX-License-Identifier: Apache-2.0
// Keys as a warp loads them, straight into the fragments of its matrix products.
//
// Groups of 8 query heads, one kv head to each. A unit is `tokens` keys, held by the warp in
// registers. Columns of Q * K are (token, kv head) pairs, and what crosses kv heads becomes zeros
// in P. With g = lane / 4, t = lane % 4, and a tile of 8 columns a lane loads of K and of V 16
// bytes: column g, dims 16t..16t+15. So with two kv heads an octet of lanes takes a whole row of
// 128 bytes: the L2 is asked once for each. P * V wants dims 8g..8g+7 of columns 2t and 2t + 1: see
// value_columns().
//   Row group r (8 rows, half r % 2 of tile r / 2 of WarpRows): query r / kHeads, kv head r %
//   kHeads.
#pragma once

#include "variants/device/attention_keys.cuh"
#include "variants/device/warp_rows.cuh"

namespace muse::device {

inline constexpr int kDirectGroup = 8;    // query heads of a kv head
inline constexpr int kDirectKvHeads = 2;  // of the model: a row of the cache is 128 bytes

/// With more the registers of a warp do not hold the rows of two tokens.
inline constexpr int kMostWarpsOf2Tokens = 8;

/// Shared memory that the rows of a CTA's warps take once they are merged.
MUSE_HOST_DEVICE constexpr int direct_merge_bytes(int rows, int warps) {
  return warps * rows * (kHeadDim + 2) * static_cast<int>(sizeof(float));
}

#if defined(MUSE_DEVICE_CODE)

inline constexpr uint32_t kDirectRowBytes = kDirectKvHeads * kHeadDim;

template <class Shape>
struct RowProducts;  // direct_products.cuh

/// Another order of operands derives from this and names its own Rows, Area and Products. C names
/// by its members: heads_per_cta (1, 2), tokens of a unit (16, 32), warps of a CTA, depth
/// (units of a warp on their way at a time). kQueries: query tokens of a request, 1 or 2.
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
  using Area = MergeArea<kRows, kWarps>;
  using Products = RowProducts<DirectShape>;

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
  /// Of the request's row of the table, the entry of a key.
  __device__ __forceinline__ int entry(int key) const { return key >> page_shift_; }
  /// Starts to bring it into L2; one of the row.
  __device__ __forceinline__ void prefetch_entry(int entry) const {
    prefetch_to_l2(table_ + (first_entry_ + static_cast<uint32_t>(entry)));
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

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::device
