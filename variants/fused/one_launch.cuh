// SPDX-License-Identifier: Apache-2.0
// fused/one_launch: the step in one kernel. A CTA takes a split of a request's keys as
// attention/register_direct does, with queries made from qkv while old keys are on their way; the
// warps whose units hold the step's own keys make those from qkv too and store them to the cache.
#pragma once

#include "variants/device/attention_args.h"
#include "variants/device/direct_rows.cuh"
#include "variants/device/epilogue.cuh"
#include "variants/device/own_tokens.cuh"
#include "variants/device/prepare_args.h"
#include "variants/device/swapped_products.cuh"
#include "variants/device/token_rows.cuh"

namespace muse::fused_one_launch {

struct Args {
  device::AttentionArgs attention;
  device::PrepareArgs prepare;  // q8: the tap, null when timed
};

/// Shared memory of a CTA: the rows of its warps; the epilogue's; Q8 of its rows; K8 and V8
/// of own tokens.
MUSE_HOST_DEVICE constexpr int query_bytes(int rows) { return rows * device::kHeadDim; }
/// Of each own token its codes, and what they are made of.
MUSE_HOST_DEVICE constexpr int own_bytes(int tokens, int heads_per_cta) {
  constexpr int kRow = device::kHeadDim, kBf16Row = kRow * 2, kCosSin = kRow * 4, kOthers = 16;
  return tokens * (heads_per_cta * 2 * (kRow + kBf16Row) + kCosSin + kOthers);
}

#if defined(MUSE_DEVICE_CODE)

/// Row groups of 8 query heads in the order of direct_rows.cuh: query, then kv head.
template <class Shape>
inline constexpr int kGroups = Shape::kHeads* Shape::kQueries;

/// Where a CTA stands: its rows, and the keys of its request.
struct Place {
  device::CtaRows cta;
  int cache_seqlen;
  device::KeyRange keys;  // the CTA's
};

/// A query row of the CTA, counted by row groups.
struct QueryPlace {
  int token, head;
};
template <class Shape>
__device__ __forceinline__ QueryPlace query_place(const device::CtaRows& cta, int row) {
  const int group = row / device::kDirectGroup, in_group = row % device::kDirectGroup;
  return {cta.request * Shape::kQueries + group / Shape::kHeads,
          (cta.first_head + group % Shape::kHeads) * device::kDirectGroup + in_group};
}
__device__ __forceinline__ int64_t q8_start(const device::PrepareArgs& args, QueryPlace at) {
  return device::row_start(at.token, args.num_q_heads, at.head);
}

/// K8 and V8 of the step's own tokens, whose keys lie in units of one warp or two. Until then they
/// wait in shared memory: registers are the loop's.
template <class Shape>
class OwnTokens {
  static_assert(Shape::kQueries == 1 || Shape::kWarps > 1,
                "the last two units belong to two warps, so that both are last ones");

 public:
  /// first: key of the request's first own token. codes: own_bytes() of shared memory.
  __device__ __forceinline__ OwnTokens(int first, unsigned char* codes)
      : first_(first), codes_(codes) {}

  using Stage = device::OwnStage<Shape::kHeads>;
  static_assert(own_bytes(1, Shape::kHeads) ==
                Shape::kHeads * 2 * device::kHeadDim + static_cast<int>(sizeof(Stage)));

  /// What token i's codes are made of: behind all codes.
  __device__ __forceinline__ Stage& stage(int i) const {
    constexpr int kCodes = Shape::kQueries * Shape::kHeads * 2 * device::kHeadDim;
    return reinterpret_cast<Stage*>(codes_ + kCodes)[i];
  }

  /// Whether this warp has that token's key; it then stores it. keys: the CTA's.
  __device__ __forceinline__ bool owns(device::KeyRange keys, int i) const {
    const int key = first_ + i;
    return key >= keys.begin && key < keys.end &&
           (key - keys.begin) / Shape::kTokens % Shape::kWarps ==
               static_cast<int>(threadIdx.x) / 32;
  }

  __device__ __forceinline__ void put(int i, const device::OwnCodes<Shape::kHeads>& codes) const {
    if (lane() / 4 < Shape::kHeads) device::store_words4(loaded(2 * i, lane()), codes.key);
#pragma unroll
    for (int h = 0; h < Shape::kHeads; ++h) {
      if (lane() % 4 == 0) device::store_words2(value(i, h), codes.value[h]);
    }
    __syncwarp();  // operator() of the same warp reads them
  }

  /// Into the warp's last unit, whose first key is `begin`.
  __device__ __forceinline__ void operator()(device::DirectUnit<Shape>& unit, int begin) const {
#pragma unroll
    for (int i = 0; i < Shape::kQueries; ++i) {
      const int place = first_ + i - begin;
      if (place < 0 || place >= Shape::kTokens) continue;
      const int lane = device::thread_anew() % 32;
      const device::Words4 k = device::load_words4(loaded(2 * i, lane));
      const device::Words4 v = device::load_words4(loaded(2 * i + 1, lane));
#pragma unroll
      for (int tile = 0; tile < Shape::kTiles; ++tile) {
        if (lane / 4 / Shape::kHeads != place - tile * Shape::kTileTokens) continue;
        unit.k[tile] = k;
        unit.v[tile] = v;
      }
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  /// What this lane would have loaded of a row: 2i is K of token i, 2i + 1 its V.
  __device__ __forceinline__ unsigned char* loaded(int row, int lane) const {
    return codes_ + (row * Shape::kHeads + lane / 4 % Shape::kHeads) * device::kHeadDim +
           lane % 4 * 16;
  }
  __device__ __forceinline__ unsigned char* value(int i, int head) const {
    return codes_ + ((2 * i + 1) * Shape::kHeads + head) * device::kHeadDim + lane() / 4 * 8;
  }

  int first_;
  unsigned char* codes_;
};

/// Queries from the CTA's Q8.
template <class Shape>
__device__ __forceinline__ void take_queries(const unsigned char* q8, typename Shape::Rows& rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kGroups<Shape>; ++i) {
    const int at = (i * device::kDirectGroup + lane / 4) * device::kHeadDim + lane % 4 * 16;
    device::set_query_row(rows.query[i / 2], i % 2, device::load_words4(q8 + at));
  }
}

/// Queries that the CTA's warps share out, four rows at a time with eight lanes to a row, and pass
/// on through shared memory. What they are made of is copied there as well, each lane its own: a
/// wait for loads into registers would be one for the keys, too, which come after them.
template <class Shape>
struct CtaQueries {
  static constexpr int kThreads = Shape::kWarps * 32;
  static constexpr int kPass = Shape::kWarps * device::kWarpRows;
  static constexpr int kPasses = (Shape::kRows + kPass - 1) / kPass;
  static_assert(kPasses * 3 * kThreads * sizeof(device::Words4) <= sizeof(typename Shape::Area),
                "they lie where the warps' rows come later");

  device::Words4* stage;  // of this lane: row, cosines and sines of each pass

  __device__ __forceinline__ explicit CtaQueries(typename Shape::Area& area)
      : stage(reinterpret_cast<device::Words4*>(&area) + threadIdx.x) {}

  static __device__ __forceinline__ int row_of(int pass) {
    return pass * kPass + static_cast<int>(threadIdx.x) / device::kRowLanes;
  }
  static __device__ __forceinline__ int first_dim() {
    return static_cast<int>(threadIdx.x) % device::kRowLanes * device::kSlice;
  }
  /// Whole warps have rows or have none.
  static __device__ __forceinline__ bool exists(int pass) { return row_of(pass) < Shape::kRows; }
  __device__ __forceinline__ device::Words4* piece(int pass, int i) const {
    return stage + (pass * 3 + i) * kThreads;
  }

  __device__ __forceinline__ void copy_rows(const device::PrepareArgs& args,
                                            const device::CtaRows& cta) const {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      if (!exists(i)) continue;
      const QueryPlace at = query_place<Shape>(cta, row_of(i));
      device::copy_async_16(piece(i, 0), device::qkv_row(args, at.token, at.head) + first_dim(),
                            true);
    }
  }
  __device__ __forceinline__ void copy_rotations(const device::PrepareArgs& args,
                                                 const int64_t (&position)[Shape::kQueries]) const {
    if (args.cos_sin == nullptr) return;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      if (!exists(i)) continue;
      const bool second = row_of(i) >= device::kDirectGroup * Shape::kHeads;
      const int64_t at = second ? position[Shape::kQueries - 1] : position[0];
      const float* cosines = args.cos_sin + at * device::kHeadDim + first_dim() / 2;
      device::copy_async_16(piece(i, 1), cosines, true);
      device::copy_async_16(piece(i, 2), cosines + device::kHeadDim / 2, true);
    }
  }
  /// Waits for all copies of this thread.
  __device__ __forceinline__ void set(const device::PrepareArgs& args, const device::CtaRows& cta,
                                      bool tap, unsigned char* q8,
                                      typename Shape::Rows& rows) const {
    device::wait_copies<0>();
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      if (!exists(i)) continue;
      device::Slice x = device::unpack_bf16(*piece(i, 0));
      x = device::scaled(x, device::reciprocal_rms(x));
      if (args.cos_sin != nullptr) {
        x = device::rotated(x, device::as_rotation(*piece(i, 1), *piece(i, 2)));
      }
      const device::Words2 codes = device::quantised(x);
      device::store_words2(q8 + row_of(i) * device::kHeadDim + first_dim(), codes);
      if (tap) {
        const QueryPlace at = query_place<Shape>(cta, row_of(i));
        device::store_words2(args.q8 + q8_start(args, at) + first_dim(), codes);
      }
    }
    __syncthreads();  // all rows are there; nothing else is ever written in their place
    take_queries<Shape>(q8, rows);
  }
};

/// Regions of the CTA's shared memory.
template <class C, class Shape>
struct Regions {
  using Area = typename Shape::Area;
  static_assert(sizeof(Area) == device::direct_merge_bytes(Shape::kRows, C::warps));

  static __device__ __forceinline__ Area& merge() {
    return *reinterpret_cast<Area*>(device::dynamic_shared());
  }
  static __device__ __forceinline__ unsigned char* epilogue() {
    return device::dynamic_shared() + device::direct_merge_bytes(Shape::kRows, C::warps);
  }
  static __device__ __forceinline__ unsigned char* q8() {
    return epilogue() + device::epilogue_bytes(Shape::kRows, C::cluster, C::gate != 0);
  }
  static __device__ __forceinline__ unsigned char* own() {
    return q8() + query_bytes(Shape::kRows);
  }
};

/// The warp's rows once more, where some hold NaN; see hold_nan().
template <class C, class Shape>
__device__ __noinline__ void leave_nan(const device::AttentionArgs& args) {
  __syncwarp();  // the warp has left its rows, whose place is taken once more
  const int cache_seqlen = __ldg(args.cache_seqlens + blockIdx.z);
  const int loadable = cache_seqlen - Shape::kQueries;
  const device::KeyRange all = device::request_keys(args, cache_seqlen);
  const device::CtaRows cta = device::cta_rows<C>(args, device::direct_splits<C, Shape>(all));
  const device::KeyRange keys = device::direct_split<C, Shape>(all, cta.splits, cta.split);
  const device::DirectWalk<Shape> walk(args, cta.request, cta.first_head, keys, loadable);
  auto rows = Shape::Products::empty();
  take_queries<Shape>(Regions<C, Shape>::q8(), rows);
  auto& area = Regions<C, Shape>::merge();
  walk.attend_nan(rows, device::direct_keys(args, cache_seqlen, keys), area,
                  OwnTokens<Shape>(loadable, Regions<C, Shape>::own()));
  area.leave(device::thread_anew(), rows);
}

/// The CTA's keys, up to where its warps have left their rows in the merge area.
template <class C, class Shape>
__device__ __forceinline__ void attend_keys(const Args& block, const device::AttentionArgs& args,
                                            const Place& at,
                                            const int64_t (&position)[Shape::kQueries],
                                            device::DirectWalk<Shape>& walk) {
  using Epilogue = device::Epilogue<C>;
  constexpr int kQueries = Shape::kQueries;
  const int loadable = at.cache_seqlen - kQueries;
  const OwnTokens<Shape> own(loadable, Regions<C, Shape>::own());
  bool owned[kQueries];
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    owned[i] = own.owns(at.keys, i);
    if (!owned[i]) continue;
    const int token = at.cta.request * kQueries + i;
    device::copy_own(block.prepare, token, position[i], at.cta.first_head, own.stage(i));
  }
  device::commit_copies();
  walk.load_old(loadable);

  auto rows = Shape::Products::empty();
  const bool tap = block.prepare.q8 != nullptr && at.cta.split == 0;
  CtaQueries<Shape>(Regions<C, Shape>::merge())
      .set(block.prepare, at.cta, tap, Regions<C, Shape>::q8(), rows);
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    if (!owned[i]) continue;
    own.put(i, device::store_own(block.prepare, own.stage(i), at.cta.first_head));
  }
  Epilogue::meet();
  auto& area = Regions<C, Shape>::merge();
  walk.attend(rows, device::direct_keys(args, at.cache_seqlen, at.keys), area, own);
  area.leave(device::thread_anew(), rows);
  if (device::hold_nan(rows)) leave_nan<C, Shape>(block.attention);
}

/// Starts to bring the request's row of the page table into L2 while its length is on its way:
/// which entries it needs is not known yet, so long rows are left alone.
__device__ __forceinline__ void prefetch_pages(const device::AttentionArgs& args) {
  constexpr int kMostBytes = 64 << 10, kSector = 32;
  const int bytes = args.max_pages * static_cast<int>(sizeof(int32_t));
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kSector;
  if (bytes > kMostBytes || at >= bytes) return;
  device::prefetch_to_l2(device::pages_of(args, static_cast<int>(blockIdx.z)) +
                         at / static_cast<int>(sizeof(int32_t)));
}

/// What the configuration leaves open for the shared code.
template <class C>
struct Choices : C {
  static constexpr int tokens = 32 / C::heads_per_cta;  // 4 KB a unit
  static constexpr int transpose = 1;                   // by movmatrix, where products are swapped
};

/// grid: splits, groups of kv heads, requests.
template <class Configuration, int kQueries>
__device__ __forceinline__ void step(const Args& block) {
  using C = Choices<Configuration>;
  using Shape = typename device::ChosenShape<C, kQueries, C::swapped != 0>::Shape;
  using Epilogue = device::Epilogue<C>;
  const device::AttentionArgs args = device::direct_args<Shape>(block.attention);
  device::wait_for_predecessor();
  device::allow_successor();
  Place at;
  at.cache_seqlen = __ldg(args.cache_seqlens + blockIdx.z);
  at.cta = device::cta_rows<C>(args, 0);
  prefetch_pages(args);
  int64_t position[kQueries];
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    position[i] = device::load_position(block.prepare, at.cta.request * kQueries + i);
  }
  const CtaQueries<Shape> queries(Regions<C, Shape>::merge());
  queries.copy_rows(block.prepare, at.cta);
  queries.copy_rotations(block.prepare, position);

  const device::KeyRange all = device::request_keys(args, at.cache_seqlen);
  at.cta.splits = device::direct_splits<C, Shape>(all);
  at.keys = device::direct_split<C, Shape>(all, at.cta.splits, at.cta.split);
  device::DirectWalk<Shape> walk(args, at.cta.request, at.cta.first_head, at.keys,
                                 at.cache_seqlen - kQueries);
  walk.look_up();
  walk.prefetch_pages(at.keys.begin);
  unsigned char* const epilogue = Regions<C, Shape>::epilogue();
  if (!Epilogue::needed(at.cta)) {
    device::wait_copies<0>();
    return;
  }
  Epilogue::begin(args, at.cta, epilogue);
  Epilogue::keep(at.cta, epilogue);
  if (at.cta.has_keys()) {
    attend_keys<C, Shape>(block, args, at, position, walk);
  } else {
    Epilogue::meet();
  }
  const auto merged = [](int row, int chunk) {
    return Regions<C, Shape>::merge().merged(Shape::row_of(row), Shape::kRows, C::warps, chunk);
  };
  Epilogue::finish(args, epilogue, merged);
}

/// CTAs on an SM by the registers that a thread may have. Below CC 9.0 they do not suffice for 16
/// warps.
template <class C>
__device__ constexpr int ctas_per_sm(int most_warps) {
#if __CUDA_ARCH__ < 900
  most_warps = most_warps < 12 ? most_warps : 12;
#endif
  const int warps = C::warps_per_sm < most_warps ? C::warps_per_sm : most_warps;
  return warps < C::warps ? 1 : warps / C::warps;
}

// One kernel for each number of query tokens of a request.
template <class C>
__global__ void __launch_bounds__(C::warps * 32, ctas_per_sm<C>(16))
    step_1_token(const __grid_constant__ Args block) {
  step<C, 1>(block);
}

template <class C>
__global__ void __launch_bounds__(C::warps * 32, ctas_per_sm<C>(8))
    step_2_tokens(const __grid_constant__ Args block) {
  if constexpr (C::warps <= device::kMostWarpsOf2Tokens && C::swapped == 0) step<C, 2>(block);
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::fused_one_launch
