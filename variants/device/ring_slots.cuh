// SPDX-License-Identifier: Apache-2.0
// The ring itself: slots for tiles, who may write to and read from one when, with warps that do
// both or with roles. A configuration C has tile_kv, depth (slots), warps (computing ones), boxes
// (by tensor map), roles (warps that only copy) and ahead (tiles that a warp reads from at a time,
// less one).
#pragma once

#include "variants/device/ring_tiles.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

/// How many warps copy: of all a power of two.
__device__ constexpr int copying_warps(int warps, int roles, int boxes) {
  if (boxes != 0) return 1;
  return roles != 0 || warps < 8 ? 4 : 8;
}

template <class C, int kHeads, bool kBoxes>
struct CopierOf {
  using Type = RowCopier<C::tile_kv, kHeads, copying_warps(C::warps, C::roles, C::boxes),
                         C::roles != 0 ? C::warps : 0>;
};
template <class C, int kHeads>
struct CopierOf<C, kHeads, true> {
  using Type = BoxCopier<C::tile_kv, kHeads>;
};

/// Where the ring lies and what tells of its tiles.
template <class C, int kHeads>
struct RingSlots {
  using Copier = typename CopierOf<C, kHeads, C::boxes != 0>::Type;
  using Tile = typename Copier::Tile;
  static constexpr bool kBoxes = C::boxes != 0, kRoles = C::roles != 0;
  static constexpr int kTileKeys = C::tile_kv, kDepth = C::depth;
  static constexpr int kCopyingWarps = copying_warps(C::warps, C::roles, C::boxes);
  /// Tiles on their way before the first is read. Without roles a tile's slot is filled anew once
  /// all warps have met behind it, by when one may have entered `ahead` more.
  static constexpr int kFilled = kRoles ? kDepth : kDepth - 1 - C::ahead;
  static_assert(kFilled >= 1, "a tile is read while the next one is on its way");

  unsigned char* ring;
  PhaseBarrier* barriers;  // [2][kDepth]: full, empty; then one for all warps

  __device__ __forceinline__ unsigned char* tile(int slot) const {
    return ring + slot * Tile::kBytes;
  }
  __device__ __forceinline__ PhaseBarrier* full(int slot) const { return barriers + slot; }
  __device__ __forceinline__ PhaseBarrier* empty(int slot) const {
    return barriers + kDepth + slot;
  }
  __device__ __forceinline__ PhaseBarrier* read() const { return barriers + 2 * kDepth; }
  static __device__ __forceinline__ int after(int slot) {
    return slot == kDepth - 1 ? 0 : slot + 1;
  }

  /// All threads, before anything else. `readers`: warps that leave each tile. `all`: of the CTA.
  __device__ __forceinline__ void open(int readers, int all) const {
    if constexpr (kRoles || kBoxes) {
      if (threadIdx.x == 0) {
#pragma unroll 1
        for (int slot = 0; slot < kDepth; ++slot) {
          init_barrier(full(slot), Copier::kArrivals);
          init_barrier(empty(slot), readers * 32);
        }
        init_barrier(read(), all * 32);
        publish_barriers();
      }
      __syncthreads();
    }
  }

  /// With roles, all warps, once: all have come here. They come from different places, where
  /// __syncthreads() has to be one place for all.
  __device__ __forceinline__ void meet() const {
    arrive_at(read());
    wait_at(read(), 0);
  }
};

/// All warps copy and compute; a barrier of the CTA a tile. Who enters a tile has left all but the
/// `ahead` ones before it.
template <class Slots>
class CommonRing {
 public:
  using Copier = typename Slots::Copier;
  using Tile = typename Slots::Tile;

  __device__ __forceinline__ CommonRing(const Slots& slots, const Copier& copier, KeyRange keys)
      : slots_(slots),
        copier_(copier),
        end_(keys.end),
        next_(keys.begin),
        copies_(static_cast<int>(threadIdx.x) / 32 < Slots::kCopyingWarps) {}

  /// The first tiles start on their way.
  __device__ __forceinline__ void fill() {
    typename Copier::Pages pages[Slots::kFilled];
#pragma unroll
    for (int i = 0; i < Slots::kFilled; ++i) {
      pages[i] = copier_.pages(next_ + i * Slots::kTileKeys);
    }
#pragma unroll
    for (int i = 0; i < Slots::kFilled; ++i) start_next(pages[i]);
    pages_ = copier_.pages(next_);
  }

  /// The next tile, once it is there. All threads call it, for every tile.
  __device__ __forceinline__ const unsigned char* enter() {
    if constexpr (!Slots::kBoxes) wait_copies<Slots::kFilled - 1>();
    __syncthreads();  // all have left the tile whose slot is filled anew
    start_next(pages_);
    pages_ = copier_.pages(next_);
    if constexpr (Slots::kBoxes) wait_at(slots_.full(read_), parity_);
    const unsigned char* const tile = slots_.tile(read_);
    read_ = Slots::after(read_);
    if (read_ == 0) parity_ ^= 1;
    return tile;
  }
  __device__ __forceinline__ void leave() {}

 private:
  __device__ __forceinline__ void start_next(const typename Copier::Pages& pages) {
    if (copies_ && next_ < end_) {
      copier_.copy(next_, pages, slots_.tile(write_), slots_.full(write_));
    }
    if constexpr (!Slots::kBoxes) commit_copies();
    next_ += Slots::kTileKeys;
    write_ = Slots::after(write_);
  }

  const Slots& slots_;
  const Copier& copier_;
  int end_, next_;
  bool copies_;
  int read_ = 0, write_ = 0, parity_ = 0;
  typename Copier::Pages pages_;
};

/// What computing warps see of a ring that others fill.
template <class Slots>
class ReadRing {
 public:
  using Tile = typename Slots::Tile;

  explicit __device__ __forceinline__ ReadRing(const Slots& slots) : slots_(slots) {}

  /// The next tile, once it is there; a whole warp.
  __device__ __forceinline__ const unsigned char* enter() {
    wait_at(slots_.full(read_), parity_);
    const unsigned char* const tile = slots_.tile(read_);
    read_ = Slots::after(read_);
    if (read_ == 0) parity_ ^= 1;
    return tile;
  }
  /// The oldest tile that the warp has not left has been read. Every lane arrives for itself: of one
  /// for all, behind a __syncwarp(), racecheck does not know that it covers the others' reads.
  __device__ __forceinline__ void leave() {
    arrive_at(slots_.empty(left_));
    left_ = Slots::after(left_);
  }

 private:
  const Slots& slots_;
  int read_ = 0, left_ = 0, parity_ = 0;
};

/// The whole life of a warp that fills it, kCopyingWarps of them. A tile's pages are looked up
/// kDepth tiles ahead. `old`: whether the first kFilled tiles may be read before the launch before
/// has ended.
template <class Slots>
__device__ __forceinline__ void fill_ring(const Slots& slots, const typename Slots::Copier& copier,
                                          KeyRange keys, bool old) {
  typename Slots::Copier::Pages pages[Slots::kDepth];
#pragma unroll
  for (int slot = 0; slot < Slots::kDepth; ++slot) {
    pages[slot] = copier.pages(keys.begin + slot * Slots::kTileKeys);
  }
  if (!old) wait_for_predecessor();
  int parity = 1;  // of the phase before the first: slots are empty at first
#pragma unroll 1
  for (int begin = keys.begin; begin < keys.end; parity ^= 1) {
#pragma unroll
    for (int slot = 0; slot < Slots::kDepth; ++slot) {
      if (begin >= keys.end) break;
      wait_at(slots.empty(slot), parity);
      copier.copy(begin, pages[slot], slots.tile(slot), slots.full(slot));
      if constexpr (!Slots::kBoxes) arrive_with_copies(slots.full(slot));
      pages[slot] = copier.pages(begin + Slots::kDepth * Slots::kTileKeys);
      begin += Slots::kTileKeys;
    }
    if (old) {  // what follows may be of this step
      wait_for_predecessor();
      old = false;
    }
  }
}

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
