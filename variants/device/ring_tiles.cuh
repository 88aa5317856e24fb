// SPDX-License-Identifier: Apache-2.0
// A ring of tiles of K and V in shared memory: their layout, and who copies what into them. The
// layout is that of tensor maps with a swizzle of 64 bytes, whichever way the rows come.
#pragma once

#include "variants/device/attention_keys.cuh"
#include "variants/device/mma.cuh"
#include "variants/device/ptx_phases.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

/// What is copied to a CTA's ring: keys of a request, rows of `heads` kv heads from first_head on.
struct CopyPlace {
  int request, first_head, heads;
  KeyRange keys;
};

/// kKeys keys of kHeads neighbouring kv heads: K, then V, each as [block of 16 keys][head][16][64].
/// The four 16-byte chunks of row r are exchanged: chunk c lies at c ^ (r / 2 % 4).
///
/// Which row of a block stands for which column of a product is free where K and V agree. Column c
/// of eight is row row_of(c): then eight lanes that read K together meet an even and an odd row,
/// 128 bytes, and the 16 that read V together two even and two odd ones whose halves lie apart. No
/// access of a warp meets a bank twice, neither those of copies by copy_async_16().
template <int kKeys, int kHeads>
struct RingTile {
  static constexpr int kHeadBytes = kBlockKeys * kHeadDim;  // of a block
  static constexpr int kBlockBytes = kHeads * kHeadBytes;
  static constexpr int kValuesAt = kKeys / kBlockKeys * kBlockBytes;
  static constexpr int kBytes = 2 * kValuesAt;

  static __device__ __forceinline__ int row_of(int column) {
    const int pair = column >> 1;
    return ((pair & 1) | (pair & 2) << 1) ^ (column & 1) * 3;
  }

  /// Of a key's row of K, head 0.
  static __device__ __forceinline__ constexpr int row_at(int key) {
    return key / kBlockKeys * kBlockBytes + key % kBlockKeys * kHeadDim;
  }
  /// Of a chunk of a row in a block of one head.
  static __device__ __forceinline__ constexpr int in_block(int row, int chunk) {
    return row * kHeadDim + (chunk ^ (row >> 1 & 3)) * 16;
  }

  /// Columns 8n..8n+7 of a block. `block`: K of a head.
  static __device__ __forceinline__ KeyFragment load_keys(const unsigned char* block, int n) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return key_fragment(
        load_words4(block + in_block(row_of(lane / 4), lane % 4) + n * 8 * kHeadDim));
  }

  /// The lane's codes of V for value_fragment(): dims 8g..8g+7 of columns 2t, 2t + 1, 2t + 8 and
  /// 2t + 9. `block`: V of a head.
  static __device__ __forceinline__ void load_values(const unsigned char* block,
                                                     Words2 (&codes)[4]) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    const int t = static_cast<int>(threadIdx.x) % 4;
    const int even = in_block(row_of(2 * t), g / 2) + g % 2 * 8;
    // The other row of the pair: r ^ 3, whose chunks lie at one more or less.
    const int odd = even ^ (3 * kHeadDim + 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      codes[i] = load_words2(block + (i % 2 == 0 ? even : odd) + i / 2 * 8 * kHeadDim);
    }
  }

  /// Dims 16t..16t+15 of key `row` of a block, in order. `block`: V of a head.
  static __device__ __forceinline__ Words4 load_value_row(const unsigned char* block, int row) {
    return load_words4(block + in_block(row, static_cast<int>(threadIdx.x) % 4));
  }
};

/// Copies tiles row by row, kWarps whole warps of the CTA from kFirstWarp on together, each its own
/// part of a tile's keys. Eight neighbouring lanes take two keys' rows of one head.
template <int kKeys, int kHeads, int kWarps, int kFirstWarp>
class RowCopier {
 public:
  using Tile = RingTile<kKeys, kHeads>;
  static constexpr int kArrivals = kWarps * 32;  // at a tile's barrier
  static constexpr int kPassKeys = 8 / kHeads;   // of a warp at a time
  static constexpr int kMine = kKeys / kWarps;   // of a warp in a tile
  static constexpr int kWords = (kMine + 31) / 32;
  static_assert(kKeys % kWarps == 0 && kMine % 8 == 0, "every warp copies as many rows");

  /// Pages of a warp's keys in one tile, one to a lane and word.
  struct Pages {
    int page[kWords];
  };

  /// Keys outside place.keys are neither read nor looked up; zeros are written in their place.
  __device__ __forceinline__ RowCopier(const AttentionArgs& args, const TensorMap& /*k_map*/,
                                       const TensorMap& /*v_map*/, const CopyPlace& place)
      : args_(args), place_(place) {}

  /// Of the tile whose first key is `begin`.
  __device__ __forceinline__ Pages pages(int begin) const {
    const Thread thread;
    const int32_t* const pages = pages_of(args_, place_.request);
    Pages found;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const int in_mine = word * 32 + thread.lane, key = begin + thread.first + in_mine;
      const bool there = in_mine < kMine && key < place_.keys.end;
      found.page[word] = there ? page_of(args_, pages, key) : 0;
    }
    return found;
  }

  /// Starts the copies of that tile; a whole warp. They are this thread's, to be counted by groups
  /// or by arrive_with_copies().
  __device__ __forceinline__ void copy(int begin, const Pages& pages, unsigned char* tile,
                                       PhaseBarrier* /*barrier*/) const {
    const Thread thread;
    const int head = thread.lane / 8 % kHeads, chunk = thread.lane % 4;
    const int in_pass = thread.lane / (8 * kHeads) * 2 + thread.lane % 8 / 4;
    const int first = begin + thread.first + in_pass;
    const int end = head < place_.heads ? place_.keys.end : begin;
    const int row_bytes = args_.num_kv_heads * kHeadDim, page_bytes = row_bytes << args_.page_shift;
    const int column = (place_.first_head + head) * kHeadDim + chunk * 16;
    const uint8_t* const k = args_.k_cache + column;
    const uint8_t* const v = args_.v_cache + column;
    // Chunks are exchanged by the row's number, of which a pass adds what the compiler knows.
    unsigned char* const mine = tile + Tile::row_at(thread.first) + head * Tile::kHeadBytes;
    const int in_first = Tile::in_block(in_pass, chunk);
#pragma unroll
    for (int pass = 0; pass < kMine / kPassKeys; ++pass) {
      const int key = first + pass * kPassKeys;
      const int page = __shfl_sync(kWholeWarp, pages.page[pass * kPassKeys / 32],
                                   pass * kPassKeys % 32 + in_pass);
      const int64_t at = static_cast<int64_t>(page) * page_bytes +
                         (key & ((1 << args_.page_shift) - 1)) * row_bytes;
      const int exchange = (pass * kPassKeys >> 1 & 3) * 16;
      unsigned char* const to = mine + Tile::row_at(pass * kPassKeys) + (in_first ^ exchange);
      copy_async_16(to, k + at, key < end);
      copy_async_16(to + Tile::kValuesAt, v + at, key < end);
    }
  }

 private:
  /// Worked out for each tile: computing has use for every register.
  struct Thread {
    int lane, first;  // key of the warp in a tile

    __device__ __forceinline__ Thread() {
      const int thread = thread_anew();
      lane = thread % 32;
      first = (thread / 32 - kFirstWarp) * kMine;
    }
  };

  const AttentionArgs& args_;
  CopyPlace place_;
};

/// Copies tiles by boxes of a tensor map, 16 keys of all heads at a time, for pages of 16 tokens or
/// more and tiles that begin at a multiple of 16. One warp; rows of a box that nobody attends come
/// along, boxes without an attended key do not.
template <int kKeys, int kHeads>
class BoxCopier {
 public:
  using Tile = RingTile<kKeys, kHeads>;
  static constexpr int kArrivals = 1;
  static constexpr int kBoxes = kKeys / kBlockKeys;
  static_assert(kBoxes <= 32, "one to a lane");

  struct Pages {
    int page;  // of the lane's box
  };

  __device__ __forceinline__ BoxCopier(const AttentionArgs& args, const TensorMap& k_map,
                                       const TensorMap& v_map, const CopyPlace& place)
      : args_(args),
        k_map_(k_map),
        v_map_(v_map),
        pages_(pages_of(args, place.request)),
        end_(place.keys.end),
        first_head_(place.first_head) {}

  __device__ __forceinline__ Pages pages(int begin) const {
    const int key = begin + lane() * kBlockKeys;
    return {lane() < kBoxes && key < end_ ? page_of(args_, pages_, key) : 0};
  }

  /// Starts the copies of that tile, which has an attended key, and arrives at `barrier`, which
  /// counts them.
  __device__ __forceinline__ void copy(int begin, const Pages& pages, unsigned char* tile,
                                       PhaseBarrier* barrier) const {
    // A map of fewer heads than kHeads has smaller boxes.
    const int box_bytes = smaller(kHeads, args_.num_kv_heads) * Tile::kHeadBytes;
    const int boxes = smaller(kBoxes, ceil_div(end_ - begin, kBlockKeys));
    if (lane() == 0) arrive_expecting(barrier, boxes * 2 * box_bytes);
    if (lane() >= boxes) return;
    const int in_page = (begin + lane() * kBlockKeys) & ((1 << args_.page_shift) - 1);
    unsigned char* const to = tile + lane() * Tile::kBlockBytes;
    copy_box_async(to, k_map_, 0, in_page, first_head_, pages.page, barrier);
    copy_box_async(to + Tile::kValuesAt, v_map_, 0, in_page, first_head_, pages.page, barrier);
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

  const AttentionArgs& args_;
  const TensorMap& k_map_;
  const TensorMap& v_map_;
  const int32_t* pages_;
  int end_, first_head_;
};

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
