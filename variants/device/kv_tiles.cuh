// SPDX-License-Identifier: Apache-2.0
// Tiles of K and V in shared memory, gathered page by page with asynchronous 16-byte copies, and
// how warps read them as fragments: whole rows of 64 bytes, no access of a warp hits a bank twice.
#pragma once

#include "variants/device/attention_keys.cuh"
#include "variants/device/mma.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

/// kKeys keys of kHeads neighbouring kv heads: K [head][key][64], then V [head][slot][64].
///
/// A lane wants V of keys 2t and 2t + 1: in the order of keys the four lanes of a quad would meet
/// in the same banks. So key 2t + e + 8h of a block lies in slot 8h + 4e + t, and every other pair
/// of slots has its halves exchanged. K is read in the order of keys, a row by four lanes.
template <int kKeys, int kHeads>
struct KvTile {
  static constexpr int kHeadBytes = kKeys * kHeadDim;
  static constexpr int kValuesAt = kHeads * kHeadBytes;
  static constexpr int kBytes = 2 * kValuesAt;

  /// Offset of 16 bytes: `chunk` counts over the row of all heads.
  static __device__ __forceinline__ int key_offset(int key, int chunk) {
    return (chunk / 4) * kHeadBytes + key * kHeadDim + (chunk % 4) * 16;
  }
  static __device__ __forceinline__ int value_offset(int key, int chunk) {
    const int slot = (key & ~7) | (key & 1) << 2 | (key >> 1 & 3);
    return kValuesAt + (chunk / 4) * kHeadBytes + slot * kHeadDim + ((chunk % 4) ^ (slot & 2)) * 16;
  }

  /// Keys 8n..8n+7 of a block. `block`: its first K row.
  static __device__ __forceinline__ KeyFragment load_keys(const unsigned char* block, int n) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return key_fragment(load_words4(block + n * 8 * kHeadDim + lane * 16));
  }

  /// `block`: its first V row. kWithoutNan: 0 in place of NaN.
  template <bool kWithoutNan = false>
  static __device__ __forceinline__ ValueFragment load_values(const unsigned char* block) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    const int t = static_cast<int>(threadIdx.x) % 4;
    const unsigned char* mine = block + t * kHeadDim + ((g >> 1) ^ (t & 2)) * 16 + (g & 1) * 8;
    Words2 codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      codes[i] = load_words2(mine + i * 4 * kHeadDim);
      if (kWithoutNan) {
        codes[i] = {without_nan(codes[i].word[0]), without_nan(codes[i].word[1])};
      }
    }
    return value_fragment(codes);
  }

  /// Whether any value of a block is NaN; the whole warp. `block`: its first V row.
  static __device__ __forceinline__ bool values_hold_nan(const unsigned char* block) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    uint32_t nan = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Words4 codes = load_words4(block + (2 * lane + i) * 16);
#pragma unroll
      for (int w = 0; w < 4; ++w) nan |= nan_codes(codes.word[w]);
    }
    return __any_sync(kWholeWarp, nan != 0);
  }

  /// Dims 16t..16t+15 of one key of a block, in order. `block`: its first V row.
  static __device__ __forceinline__ Words4 load_value_row(const unsigned char* block, int key) {
    return load_words4(block + value_offset(key, static_cast<int>(threadIdx.x) % 4) - kValuesAt);
  }
};

/// Copies a split's tiles, all threads of the CTA together: neighbouring lanes take the 16-byte
/// chunks of one key's row, and each key's page is looked up one tile ahead.
template <int kKeys, int kHeads, int kThreads>
class TileLoader {
 public:
  using Tile = KvTile<kKeys, kHeads>;
  static constexpr int kChunks = kHeads * 4;  // of a key's row
  static constexpr int kKeysPerPass = kThreads / kChunks;
  static constexpr int kPasses = kKeys / kKeysPerPass;
  static_assert(kKeys % kKeysPerPass == 0, "every thread copies as many rows");

  /// Pages of the keys this thread copies in one tile.
  struct Pages {
    int page[kPasses];
  };

  /// `heads`: how many of the kHeads there are. Keys outside `keys` are neither read nor looked up.
  __device__ __forceinline__ TileLoader(const AttentionArgs& args, int request, int first_head,
                                        int heads, KeyRange keys)
      : args_(args),
        pages_(pages_of(args, request)),
        chunk_(static_cast<int>(threadIdx.x) % kChunks),
        end_(chunk_ < heads * 4 ? keys.end : keys.begin),
        column_(first_head * kHeadDim + chunk_ * 16) {}

  /// Of the tile whose first key is `begin`.
  __device__ __forceinline__ Pages pages(int begin) const {
    Pages found;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int key = begin + in_tile(pass);
      found.page[pass] = key < end_ ? page_of(args_, pages_, key) : 0;
    }
    return found;
  }

  /// Starts the copies of that tile and closes their group. Rows past the split become zeros: what
  /// is multiplied by P = 0 has to be finite.
  __device__ __forceinline__ void copy(int begin, const Pages& pages, unsigned char* tile) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int key = begin + in_tile(pass);
      const bool read = key < end_;
      const int64_t at = read ? row_offset(args_, pages.page[pass], key) + column_ : 0;
      copy_async_16(tile + Tile::key_offset(in_tile(pass), chunk_), args_.k_cache + at, read);
      copy_async_16(tile + Tile::value_offset(in_tile(pass), chunk_), args_.v_cache + at, read);
    }
    commit_copies();
  }

 private:
  __device__ __forceinline__ int in_tile(int pass) const {
    return pass * kKeysPerPass + static_cast<int>(threadIdx.x) / kChunks;
  }

  const AttentionArgs& args_;
  const int32_t* pages_;
  int chunk_, end_, column_;
};

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
