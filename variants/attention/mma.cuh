// SPDX-License-Identifier: Apache-2.0
// attention/mma: a CTA takes a split of a request for heads_per_cta kv heads. Its threads keep a
// ring of tiles filled, its warps share out the query rows and the keys of each tile.
#pragma once

#include "variants/device/attention_args.h"
#include "variants/device/epilogue.cuh"
#include "variants/device/kv_tiles.cuh"
#include "variants/device/warp_rows.cuh"

namespace muse::attention_mma {

struct Args {
  device::AttentionArgs attention;
};

inline constexpr int kDepth = 3;  // tiles in the ring: one is read while two are on their way

/// Shared memory of a CTA; the merge comes after the loop and takes the ring's place.
MUSE_HOST_DEVICE constexpr int ring_bytes(int tile_kv, int heads_per_cta) {
  return kDepth * tile_kv * heads_per_cta * 2 * device::kHeadDim;
}
MUSE_HOST_DEVICE constexpr int merge_bytes(int rows_per_warp, int warps) {
  return warps * rows_per_warp * (device::kHeadDim + 2) * static_cast<int>(sizeof(float));
}
/// Both; the epilogue's comes behind.
MUSE_HOST_DEVICE constexpr int work_bytes(int tile_kv, int heads_per_cta, int rows_per_warp,
                                          int warps) {
  const int ring = ring_bytes(tile_kv, heads_per_cta), merge = merge_bytes(rows_per_warp, warps);
  return ((ring > merge ? ring : merge) + 15) / 16 * 16;
}

#if defined(MUSE_DEVICE_CODE)

/// How the warps of a CTA share the work: a unit is kRows query rows of one kv head; warps of the
/// same unit take different blocks of each tile.
struct Shares {
  int rows, row_groups;  // query rows of a kv head, units that they make
  int heads, units, key_groups;
  int warp, unit, key_group;  // this one's

  bool __device__ __forceinline__ works() const { return key_group < key_groups; }
};

template <class C, int kRows>
__device__ __forceinline__ Shares shares_of(const device::AttentionArgs& args, int first_head) {
  Shares s;
  s.rows = args.q_len * args.group;
  s.row_groups = device::ceil_div(s.rows, kRows);
  s.heads = device::smaller(C::heads_per_cta, args.num_kv_heads - first_head);
  s.units = s.heads * s.row_groups;
  s.key_groups = C::warps / s.units;
  s.warp = static_cast<int>(threadIdx.x) / 32;
  s.unit = s.warp % s.units;
  s.key_group = s.warp / s.units;
  return s;
}

/// One block of 16 keys. k, v: its first rows in shared memory.
template <class Tile, int kRows>
__device__ __forceinline__ void attend_block(device::WarpRows<kRows>& rows, const unsigned char* k,
                                             const unsigned char* v, float scale,
                                             const device::BlockMask& mask) {
  const bool nan = mask.needed && Tile::values_hold_nan(v);
  device::BlockScores<kRows> scores;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const device::KeyFragment keys = Tile::load_keys(k, n);
#pragma unroll
    for (int tile = 0; tile < rows.kTiles; ++tile) {
      scores.keys[tile][n] = device::multiply_keys(rows.query[tile], keys);
    }
  }
  device::scale_and_mask(rows, scores, scale, mask);
  device::weigh(rows, scores);
  if (nan) {
    device::multiply_values(rows, scores, Tile::template load_values<true>(v));
    device::mark_nan<Tile>(rows, v, mask);
    return;
  }
  device::multiply_values(rows, scores, Tile::load_values(v));
}

/// The warp's blocks of one tile, which starts at key tile_begin. `common`: keys that all rows
/// attend.
template <class C, class Tile, int kRows>
__device__ __forceinline__ void attend_tile(device::WarpRows<kRows>& rows, const Shares& shares,
                                            const unsigned char* tile, float scale, uint32_t reach,
                                            int tile_begin, int end, device::KeyRange common) {
  const unsigned char* head = tile + shares.unit / shares.row_groups * Tile::kHeadBytes;
  for (int block = shares.key_group; block < C::tile_kv / device::kBlockKeys;
       block += shares.key_groups) {
    const int block_begin = tile_begin + block * device::kBlockKeys;
    if (block_begin >= end) return;
    const unsigned char* k = head + block * device::kBlockKeys * device::kHeadDim;
    const bool masked = block_begin < common.begin || block_begin + device::kBlockKeys > common.end;
    attend_block<Tile>(rows, k, k + Tile::kValuesAt, scale, {masked, block_begin, end, reach});
  }
}

/// Fills all of the ring but one tile. The keys' rows may be read before the launch before has
/// ended only where none of them is this step's.
template <class Loader>
__device__ __forceinline__ void fill_ring(const Loader& loader, int begin, unsigned char* ring) {
  constexpr int kKeys = Loader::Tile::kHeadBytes / device::kHeadDim;
  typename Loader::Pages pages[kDepth - 1];
#pragma unroll
  for (int i = 0; i < kDepth - 1; ++i) pages[i] = loader.pages(begin + i * kKeys);
#pragma unroll
  for (int i = 0; i < kDepth - 1; ++i) {
    loader.copy(begin + i * kKeys, pages[i], ring + i * Loader::Tile::kBytes);
  }
}

/// The CTA's keys, up to where its warps have left their rows in the merge area, which lies where
/// the ring was.
template <class C, int kRows>
__device__ __forceinline__ void attend_keys(const device::AttentionArgs& args,
                                            const device::CtaRows& cta, const Shares& shares,
                                            int cache_seqlen, device::KeyRange keys,
                                            unsigned char* ring) {
  using Loader = device::TileLoader<C::tile_kv, C::heads_per_cta, C::warps * 32>;
  using Tile = typename Loader::Tile;
  const Loader loader(args, cta.request, cta.first_head, shares.heads, keys);

  const bool old = keys.begin + (kDepth - 1) * C::tile_kv <= cache_seqlen - args.q_len;
  if (old) fill_ring(loader, keys.begin, ring);
  device::wait_for_predecessor();
  device::allow_successor();
  if (!old) fill_ring(loader, keys.begin, ring);

  const int kv_head = cta.first_head + shares.unit / shares.row_groups;
  device::WarpRows<kRows> rows = device::load_rows<kRows>(
      args, cta.request, kv_head, shares.unit % shares.row_groups * kRows, cache_seqlen);
  const device::KeyRange common = device::intersect(device::common_keys(args, cache_seqlen), keys);
  const float scale = args.softmax_scale * __ldg(args.k_scale) * device::kLog2E;
  const uint32_t reach = device::reach_of(args);

  int read_slot = 0, write_slot = kDepth - 1;
  int ahead = keys.begin + (kDepth - 1) * C::tile_kv;
  typename Loader::Pages pages = loader.pages(ahead);
  for (int begin = keys.begin; begin < keys.end; begin += C::tile_kv) {
    device::wait_copies<kDepth - 2>();
    __syncthreads();  // this tile is there for all, and all have read the one before
    loader.copy(ahead, pages, ring + write_slot * Tile::kBytes);
    ahead += C::tile_kv;
    pages = loader.pages(ahead);
    if (shares.works()) {
      attend_tile<C, Tile>(rows, shares, ring + read_slot * Tile::kBytes, scale, reach, begin,
                           keys.end, common);
    }
    read_slot = read_slot == kDepth - 1 ? 0 : read_slot + 1;
    write_slot = write_slot == kDepth - 1 ? 0 : write_slot + 1;
  }

  device::wait_copies<0>();
  __syncthreads();  // the ring has been read, and nothing writes to it any more
  auto& area = *reinterpret_cast<device::MergeArea<kRows, C::warps>*>(ring);
  static_assert(sizeof(area) == merge_bytes(kRows, C::warps));
  static_assert(kDepth * Tile::kBytes == ring_bytes(C::tile_kv, C::heads_per_cta));
  area.leave(static_cast<int>(threadIdx.x), rows);
}

/// grid: splits, groups of kv heads, requests.
template <class C, int kRows>
__device__ __forceinline__ void attend(const device::AttentionArgs& args) {
  using Epilogue = device::Epilogue<C>;
  using Area = device::MergeArea<kRows, C::warps>;
  unsigned char* const ring = device::dynamic_shared();
  unsigned char* const behind = ring + work_bytes(C::tile_kv, C::heads_per_cta, kRows, C::warps);
  const int cache_seqlen = __ldg(args.cache_seqlens + blockIdx.z);
  const device::KeyRange all = device::request_keys(args, cache_seqlen);
  const device::Splits splits = device::tile_splits<C>(all);
  const device::CtaRows cta = device::cta_rows<C>(args, splits.count);
  if (!Epilogue::needed(cta)) {
    device::wait_for_predecessor();
    return;
  }
  const Shares shares = shares_of<C, kRows>(args, cta.first_head);
  Epilogue::begin(args, cta, behind);
  Epilogue::keep(cta, behind);
  if (cta.has_keys()) {
    attend_keys<C, kRows>(args, cta, shares, cache_seqlen,
                          device::split_keys(all, splits, cta.split), ring);
  } else {
    device::wait_for_predecessor();
    device::allow_successor();
  }
  static_assert(C::heads_per_cta <= 2, "no division");
  Epilogue::meet();
  Epilogue::finish(args, behind, [&](int row, int chunk) {
    const int head = row >= shares.rows ? 1 : 0, in_head = row - head * shares.rows;
    const int unit = head * shares.row_groups + in_head / kRows;
    return reinterpret_cast<const Area*>(ring)->merged(
        unit * kRows + in_head % kRows, shares.units * kRows, shares.key_groups, chunk);
  });
}

/// Warps of 32 rows on an SM. At 168 registers they would spill below CC 9.0, by the software
/// conversion too, and where the epilogue merges CTAs.
template <class C>
__device__ constexpr int warps_of_32_rows() {
#if __CUDA_ARCH__ < 900
  return 8;
#else
  return C::cluster == 1 && C::ticket == 0 ? 12 : 8;
#endif
}

// One kernel for each number of query rows that a warp holds: a problem's geometry picks it. The
// second bound is the warps per SM for which registers suffice; left to itself the compiler may
// spill to fit one more.
template <class C>
__global__ void __launch_bounds__(C::warps * 32, 16 / C::warps)
    attend_8_rows(const __grid_constant__ Args block) {
  attend<C, 8>(block.attention);
}

template <class C>
__global__ void __launch_bounds__(C::warps * 32, 16 / C::warps)
    attend_16_rows(const __grid_constant__ Args block) {
  attend<C, 16>(block.attention);
}

template <class C>
__global__ void __launch_bounds__(C::warps * 32, warps_of_32_rows<C>() / C::warps)
    attend_32_rows(const __grid_constant__ Args block) {
  attend<C, 32>(block.attention);
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::attention_mma
