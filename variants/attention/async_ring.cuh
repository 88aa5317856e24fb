// SPDX-License-Identifier: Apache-2.0
// attention/async_ring: a CTA takes a split of a request for two kv heads. A ring of tiles in
// shared memory is kept filled by all of its warps or by four that do nothing else; each computing
// warp takes steps of keys for its query rows, and may have the next step's scores on their way
// while it weighs those of this one.
#pragma once

#include "variants/device/attention_args.h"
#include "variants/device/epilogue.cuh"
#include "variants/device/ring_slots.cuh"
#include "variants/device/ring_steps.cuh"
#include "variants/device/tensor_map.h"
#include "variants/device/warp_rows.cuh"

namespace muse::attention_async_ring {

struct Args {
  device::AttentionArgs attention;
  device::TensorMap k_map, v_map;  // e4m3 [pages, ps, Hkv, D], boxes of [1, 16, heads, 64]: `boxes`
};

inline constexpr int kHeads = 2;  // kv heads of a CTA

/// Where warps have roles, four more only copy: a group that can give registers away.
inline constexpr int kCopyingGroup = 4;
MUSE_HOST_DEVICE constexpr int block_warps(int warps, int roles) {
  return warps + (roles != 0 ? kCopyingGroup : 0);
}

/// Shared memory of a CTA; the merge comes after the loop and takes the ring's place.
MUSE_HOST_DEVICE constexpr int ring_bytes(int tile_kv, int depth) {
  return depth * tile_kv * kHeads * 2 * device::kHeadDim;
}
MUSE_HOST_DEVICE constexpr int merge_bytes(int rows_per_warp, int warps) {
  return warps * rows_per_warp * (device::kHeadDim + 2) * static_cast<int>(sizeof(float));
}
/// Where the barriers begin: full and empty for each of `depth` tiles, and one for all warps.
MUSE_HOST_DEVICE constexpr int barriers_at(int tile_kv, int depth, int rows_per_warp, int warps) {
  const int ring = ring_bytes(tile_kv, depth), merge = merge_bytes(rows_per_warp, warps);
  return ((ring > merge ? ring : merge) + 15) / 16 * 16;
}
/// All of it; the epilogue's comes behind.
MUSE_HOST_DEVICE constexpr int work_bytes(int tile_kv, int depth, int rows_per_warp, int warps) {
  return barriers_at(tile_kv, depth, rows_per_warp, warps) + (depth + 1) * 16;
}

#if defined(MUSE_DEVICE_CODE)

/// The configuration as the epilogue sees it: every warp, those that copy too.
template <class C>
struct Whole : C {
  static constexpr int warps = block_warps(C::warps, C::roles);
  static constexpr int heads_per_cta = kHeads;
};

/// CTAs on an SM for which registers suffice: left to itself the compiler may spill to fit one
/// more.
template <class C, int kRows>
__device__ constexpr int ctas_per_sm() {
#if __CUDA_ARCH__ < 900
  const bool few = true;  // the software conversion
#else
  const bool few = C::ahead != 0 || C::cluster > 1;
#endif
  const int computing = C::roles != 0 ? 8 : kRows > 16 ? (few ? 8 : 12) : C::ahead != 0 ? 12 : 16;
  return C::warps >= computing ? 1 : computing / C::warps;
}

/// Where warps have roles, registers of a thread: what the launch gives, and what those that copy
/// and those that compute make of it.
template <class C>
struct Registers {
  static constexpr int kThreads = Whole<C>::warps * 32;
  static constexpr int kLaunch = 65536 / (kThreads * ctas_per_sm<C, 32>()) / 8 * 8;
  static constexpr int kCopying = C::boxes != 0 ? 40 : C::warps < 8 ? 56 : 72;
  static constexpr int kComputing =
      (kLaunch * Whole<C>::warps - kCopying * kCopyingGroup) / C::warps / 8 * 8;
};

/// How the computing warps of a CTA share the work: a unit is kRows query rows of one kv head;
/// warps of the same unit take different steps of each tile.
struct Shares {
  int rows, row_groups;  // query rows of a kv head, units that they make
  int heads, units, key_groups;
  int warp, unit, key_group;  // this one's

  bool __device__ __forceinline__ works() const { return warp < units * key_groups; }
};

template <class C, int kRows>
__device__ __forceinline__ Shares shares_of(const device::AttentionArgs& args, int first_head) {
  Shares s;
  s.rows = args.q_len * args.group;
  s.row_groups = device::ceil_div(s.rows, kRows);
  s.heads = device::smaller(kHeads, args.num_kv_heads - first_head);
  s.units = s.heads * s.row_groups;
  s.key_groups = C::warps / s.units;
  s.warp = static_cast<int>(threadIdx.x) / 32;
  s.unit = s.warp % s.units;
  s.key_group = s.warp / s.units;
  return s;
}

/// A warp's steps through the tiles of a ring.
template <class C, class Ring>
class Walk {
 public:
  using Tile = typename Ring::Tile;

  __device__ __forceinline__ Walk(Ring& ring, const Shares& shares, device::KeyRange keys)
      : ring_(ring),
        end_(keys.end),
        first_(shares.key_group * C::step),
        stride_(shares.key_groups * C::step),
        in_tile_(first_),
        tile_begin_(keys.begin),
        head_at_(shares.unit / shares.row_groups * Tile::kHeadBytes),
        tile_(ring.enter()) {}

  /// Whether there is a step here.
  __device__ __forceinline__ bool here() const { return begin() < end_; }
  __device__ __forceinline__ int begin() const { return tile_begin_ + in_tile_; }
  __device__ __forceinline__ const unsigned char* k() const {
    return tile_ + head_at_ + in_tile_ * (Tile::kBlockBytes / device::kBlockKeys);
  }
  __device__ __forceinline__ bool last_in_tile() const { return in_tile_ + stride_ >= C::tile_kv; }
  /// Enters the next tile behind the last step of one.
  __device__ __forceinline__ void advance() {
    in_tile_ += stride_;
    if (in_tile_ < C::tile_kv) return;
    in_tile_ = first_;
    tile_begin_ += C::tile_kv;
    if (tile_begin_ < end_) tile_ = ring_.enter();
  }

 private:
  Ring& ring_;
  int end_, first_, stride_, in_tile_, tile_begin_, head_at_;
  const unsigned char* tile_;
};

/// What a warp needs to know of its keys besides the keys.
struct StepKeys {
  device::KeyRange keys;    // the CTA's
  device::KeyRange common;  // those that all rows attend
  float scale;              // from the dot product of the bytes to units of log2
  uint32_t reach;
  uint32_t own;  // packed, by first_own()
};

/// The own key of the request's first query; read again rather than kept.
__device__ __forceinline__ int first_own(const device::AttentionArgs& args) {
  return __ldg(args.cache_seqlens + device::block_anew().z) - args.q_len;
}

/// All of a warp's steps.
template <class C, class Ring, int kRows>
__device__ __forceinline__ void attend_steps(device::WarpRows<kRows>& rows, Ring& ring,
                                             const device::AttentionArgs& args,
                                             const Shares& shares, const StepKeys& of) {
  using Tile = typename Ring::Tile;
  Walk<C, Ring> walk(ring, shares, of.keys);
  if (!walk.here()) return;
  device::StepScores<kRows, C::step> scores;
  if constexpr (C::ahead != 0) scores = device::multiply_step<Tile, C::step>(rows, walk.k());
  bool more = true;
  while (more) {
    const int begin = walk.begin();
    const unsigned char* const k = walk.k();
    const unsigned char* const v = k + Tile::kValuesAt;
    const bool last = walk.last_in_tile();
    const bool masked = begin < of.common.begin || begin + C::step > of.common.end;
    const device::StepMask mask{begin, of.keys, of.reach};
    if constexpr (C::ahead != 0) {
      walk.advance();
      more = walk.here();
    } else {
      scores = device::multiply_step<Tile, C::step>(rows, k);
    }
    if (masked) {
      if constexpr (C::ahead != 0) device::unpack_own_keys(rows, of.own, first_own(args));
      device::mask_step<Tile>(rows, scores, mask);
    }
    device::raise_maxima(rows, scores, of.scale);
    // Beyond the end the same keys again: no branch lies between these products and the weights.
    const unsigned char* const next = C::ahead != 0 && more ? walk.k() : k;
    if (masked) {
      if constexpr (C::ahead != 0) device::unpack_own_keys(rows, of.own, first_own(args));
      device::add_masked_step<Tile>(rows, device::weigh_step(rows, scores, of.scale), v, mask);
      if constexpr (C::ahead != 0) scores = device::multiply_step<Tile, C::step>(rows, next);
    } else if constexpr (C::ahead != 0) {
      const auto next_scores = device::multiply_step<Tile, C::step>(rows, next);
      device::add_step<Tile>(rows, device::weigh_step(rows, scores, of.scale), v);
      scores = next_scores;
    } else {
      device::add_step<Tile>(rows, device::weigh_step(rows, scores, of.scale), v);
    }
    if (last) ring.leave();
    if constexpr (C::ahead == 0) {
      walk.advance();
      more = walk.here();
    }
  }
}

/// A computing warp's part of the CTA's keys.
template <class C, class Ring, int kRows>
__device__ __forceinline__ void attend_part(device::WarpRows<kRows>& rows, Ring& ring,
                                            const device::AttentionArgs& args,
                                            const device::CtaRows& cta, const Shares& shares,
                                            int cache_seqlen, device::KeyRange keys) {
  const int kv_head = cta.first_head + shares.unit / shares.row_groups;
  const int first_row = shares.unit % shares.row_groups * kRows;
  rows = device::load_rows<kRows>(args, cta.request, kv_head, first_row, cache_seqlen);
  attend_steps<C>(rows, ring, args, shares,
                  {keys, device::intersect(device::common_keys(args, cache_seqlen), keys),
                   args.softmax_scale * __ldg(args.k_scale) * device::kLog2E,
                   device::reach_of(args), device::pack_own_keys(rows, cache_seqlen - args.q_len)});
}

/// The CTA's keys, up to where its warps have left their rows in the merge area, which lies where
/// the ring was.
template <class C, int kRows>
__device__ __forceinline__ void attend_keys(const Args& block, const device::CtaRows& cta,
                                            const Shares& shares, int cache_seqlen,
                                            device::KeyRange keys, unsigned char* ring) {
  using Slots = device::RingSlots<C, kHeads>;
  const device::AttentionArgs& args = block.attention;
  const Slots slots{ring, reinterpret_cast<device::PhaseBarrier*>(
                              ring + barriers_at(C::tile_kv, C::depth, kRows, C::warps))};
  slots.open(shares.units * shares.key_groups, Whole<C>::warps);
  const typename Slots::Copier copier(args, block.k_map, block.v_map,
                                      {cta.request, cta.first_head, shares.heads, keys});
  // The keys' rows may be read before the launch before has ended only where none of them is this
  // step's.
  const bool old = device::smaller(keys.begin + Slots::kFilled * C::tile_kv, keys.end) <=
                   cache_seqlen - args.q_len;
  auto& area = *reinterpret_cast<device::MergeArea<kRows, C::warps>*>(ring);
  static_assert(sizeof(area) == merge_bytes(kRows, C::warps));
  static_assert(C::depth * Slots::Tile::kBytes == ring_bytes(C::tile_kv, C::depth));

  if (C::roles != 0 && shares.warp >= C::warps) {
    device::give_registers<Registers<C>::kCopying>();
    if (shares.warp - C::warps < Slots::kCopyingWarps) {
      device::fill_ring(slots, copier, keys, old);
    } else {
      device::wait_for_predecessor();
    }
    slots.meet();
    // All have registers of a kind up to here: what a warp takes back early, those that compute
    // would wait for without end.
    device::take_registers<Registers<C>::kLaunch>();
    return;
  }
  device::WarpRows<kRows> rows{};
  if constexpr (C::roles != 0) {
    device::take_registers<Registers<C>::kComputing>();
    device::wait_for_predecessor();
    device::allow_successor();
    device::ReadRing<Slots> reader(slots);
    if (shares.works()) attend_part<C>(rows, reader, args, cta, shares, cache_seqlen, keys);
  } else {
    device::CommonRing<Slots> common(slots, copier, keys);
    if (old) common.fill();
    device::wait_for_predecessor();
    device::allow_successor();
    if (!old) common.fill();
    if (shares.works()) {
      attend_part<C>(rows, common, args, cta, shares, cache_seqlen, keys);
    } else {
      for (int begin = keys.begin; begin < keys.end; begin += C::tile_kv) common.enter();
    }
    device::wait_copies<0>();
  }
  // The ring has been read, and nothing writes to it any more.
  if constexpr (C::roles != 0) {
    slots.meet();
    device::give_registers<Registers<C>::kLaunch>();
  } else {
    __syncthreads();
  }
  area.leave(static_cast<int>(threadIdx.x), rows);
}

/// grid: splits, pairs of kv heads, requests.
template <class C, int kRows>
__device__ __forceinline__ void attend(const Args& block) {
  if constexpr (!device::kHasPhaseBarriers && (C::roles != 0 || C::boxes != 0)) return;
  using Epilogue = device::Epilogue<Whole<C>>;
  using Area = device::MergeArea<kRows, C::warps>;
  const device::AttentionArgs& args = block.attention;
  unsigned char* const ring = device::dynamic_shared();
  unsigned char* const behind = ring + work_bytes(C::tile_kv, C::depth, kRows, C::warps);
  const int cache_seqlen = __ldg(args.cache_seqlens + blockIdx.z);
  device::KeyRange all = device::request_keys(args, cache_seqlen);
  // Boxes begin at whole blocks; no row attends what comes in before the window.
  if constexpr (C::boxes != 0) all.begin = all.begin / device::kBlockKeys * device::kBlockKeys;
  const device::Splits splits = device::tile_splits<C>(all);
  const device::CtaRows cta = device::cta_rows<Whole<C>>(args, splits.count);
  if (!Epilogue::needed(cta)) {
    device::wait_for_predecessor();
    return;
  }
  Epilogue::begin(args, cta, behind);
  const Shares shares = shares_of<C, kRows>(args, cta.first_head);
  Epilogue::keep(cta, behind);
  if (cta.has_keys()) {
    attend_keys<C, kRows>(block, cta, shares, cache_seqlen,
                          device::split_keys(all, splits, cta.split), ring);
  } else {
    device::wait_for_predecessor();
    device::allow_successor();
  }
  // Anew: the loop has use for every register.
  const Shares of = shares_of<C, kRows>(args, device::block_anew().y * kHeads);
  Epilogue::meet();
  Epilogue::finish(args, behind, [&](int row, int chunk) {
    const int head = row >= of.rows ? 1 : 0, in_head = row - head * of.rows;
    const int unit = head * of.row_groups + in_head / kRows;
    return reinterpret_cast<const Area*>(ring)->merged(unit * kRows + in_head % kRows,
                                                       of.units * kRows, of.key_groups, chunk);
  });
}

// One kernel for each number of query rows that a warp holds: a problem's geometry picks it.
template <class C>
__global__ void __launch_bounds__(Whole<C>::warps * 32, ctas_per_sm<C, 8>())
    attend_8_rows(const __grid_constant__ Args block) {
  attend<C, 8>(block);
}

template <class C>
__global__ void __launch_bounds__(Whole<C>::warps * 32, ctas_per_sm<C, 16>())
    attend_16_rows(const __grid_constant__ Args block) {
  attend<C, 16>(block);
}

template <class C>
__global__ void __launch_bounds__(Whole<C>::warps * 32, ctas_per_sm<C, 32>())
    attend_32_rows(const __grid_constant__ Args block) {
  attend<C, 32>(block);
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::attention_async_ring
