// SPDX-License-Identifier: Apache-2.0
// attention/register_dealt: a CTA takes whichever split of whichever request it is dealt, for both
// kv heads; its warps share out the split's units of keys and are merged through shared memory.
#pragma once

#include "variants/device/attention_args.h"
#include "variants/device/dealt_splits.cuh"
#include "variants/device/direct_rows.cuh"
#include "variants/device/epilogue.cuh"

namespace muse::attention_register_dealt {

struct Args {
  device::AttentionArgs attention;
};

/// CTAs on an SM: warps whose registers hold the rows of `queries` tokens and the units on their
/// way.
MUSE_HOST_DEVICE constexpr int ctas_per_sm(int tokens, int depth, int warps, int queries) {
  const int fit = queries == 2 || tokens * depth > 32 ? 8 : tokens * depth > 16 ? 12 : 16;
  return fit < warps ? 1 : fit / warps;
}

#if defined(MUSE_DEVICE_CODE)

template <class C>
struct WholeRows : C {
  static constexpr int heads_per_cta = device::kDirectKvHeads, cluster = 1;
};

/// What a CTA was dealt: where deal() left it in shared memory, behind the merge area.
template <class Shape>
struct Dealt {
  using Area = typename Shape::Area;

  static __device__ __forceinline__ Area& area() {
    return *reinterpret_cast<Area*>(device::dynamic_shared());
  }
  static __device__ __forceinline__ device::DealtPiece* piece() {
    return reinterpret_cast<device::DealtPiece*>(device::dynamic_shared() + sizeof(Area));
  }
  static __device__ __forceinline__ unsigned char* behind() {
    return reinterpret_cast<unsigned char*>(piece() + 1);
  }

  // What the epilogue asks for.
  static __device__ __forceinline__ device::BlockIndex block() {
    const device::Words4 words = device::load_shared_words4(piece());
    return {static_cast<int>(words.word[1]), 0, static_cast<int>(words.word[0])};
  }
  static __device__ __forceinline__ int splits(const int*) {
    return static_cast<int>(device::load_shared_word(&piece()->count));
  }
  static __device__ __forceinline__ int64_t group(const device::CtaRows& rows) {
    return rows.request;
  }
};

/// The warp's rows once more, where some hold NaN; see hold_nan().
template <class Shape>
__device__ __noinline__ void leave_nan(const device::AttentionArgs& args) {
  __syncwarp();  // the warp has left its rows, whose place is taken once more
  const device::DealtPiece piece = *Dealt<Shape>::piece();
  const int cache_seqlen = __ldg(args.cache_seqlens + piece.request);
  const device::KeyRange keys =
      device::dealt_keys<Shape::kTokens>(device::request_keys(args, cache_seqlen), piece);
  const device::DirectWalk<Shape> walk(args, piece.request, 0, keys, keys.end);
  auto rows = Shape::Products::empty();
  device::load_queries<Shape>(args, piece.request, 0, rows);
  walk.attend_nan(rows, device::direct_keys(args, cache_seqlen, keys), Dealt<Shape>::area());
  Dealt<Shape>::area().leave(device::thread_anew(), rows);
}

/// The split's keys, up to where the CTA's warps have left their rows in the merge area. `begin()`
/// is called while the first pages are looked up.
template <class Shape, class Begin>
__device__ __forceinline__ void attend_keys(const device::AttentionArgs& given,
                                            const device::AttentionArgs& args,
                                            const device::DealtPiece& piece, const Begin& begin) {
  const int cache_seqlen = __ldg(args.cache_seqlens + piece.request);
  const int old_end = cache_seqlen - Shape::kQueries;
  const device::KeyRange keys =
      device::dealt_keys<Shape::kTokens>(device::request_keys(args, cache_seqlen), piece);
  device::DirectWalk<Shape> walk(args, piece.request, 0, keys, keys.end);
  walk.look_up();
  begin();
  walk.load_old(device::smaller(keys.end, old_end));
  auto rows = Shape::Products::empty();
  const device::DirectKeys described = device::direct_keys(args, cache_seqlen, keys);
  device::wait_for_predecessor();
  device::allow_successor();
  walk.load_new(old_end);
  device::load_queries<Shape>(args, piece.request, 0, rows);
  walk.attend(rows, described, Dealt<Shape>::area());
  Dealt<Shape>::area().leave(device::thread_anew(), rows);
  if (device::hold_nan(rows)) leave_nan<Shape>(given);
}

/// grid: CTAs to deal splits to, no fewer than there are requests.
template <class Chosen, int kQueries>
__device__ __forceinline__ void attend(const device::AttentionArgs& given) {
  using C = WholeRows<Chosen>;
  using Shape = device::DirectShape<C, kQueries>;
  using Epilogue = device::Epilogue<C, Dealt<Shape>>;
  using Dealer = device::SplitDealer<C::warps, C::splits>;
  static_assert(
      sizeof(typename Dealer::Scratch) <= sizeof(typename Dealt<Shape>::Area) &&
          sizeof(typename Dealt<Shape>::Area) == device::direct_merge_bytes(Shape::kRows, C::warps),
      "lengths lie where the warps' rows come later");
  const device::AttentionArgs args = device::direct_args<Shape>(given);
  Dealer::deal(
      static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), args.batch,
      [&](int request) {
        const device::KeyRange keys =
            device::request_keys(args, __ldg(args.cache_seqlens + request));
        return device::larger(1, device::ceil_div(keys.end - keys.begin, Shape::kTokens));
      },
      *reinterpret_cast<typename Dealer::Scratch*>(device::dynamic_shared()),
      Dealt<Shape>::piece());
  device::DealtPiece piece = *Dealt<Shape>::piece();
  // Two tokens have registers for it left, and none to spare for what it does to their order.
  if constexpr (kQueries == 1) piece = device::same_in_warp(piece);
  if (piece.count == 0) {
    device::wait_for_predecessor();
    return;
  }
  attend_keys<Shape>(given, args, piece, [&] {
    const device::CtaRows cta =
        device::cta_rows<C>(args, piece.count, {piece.index, 0, piece.request});
    Epilogue::begin(args, cta, Dealt<Shape>::behind());
    // Nobody reads it. But without this store the compiler (NVRTC 13.0, CC 9.0) moves two registers
    // of two units on their way to local memory, and with it two of one unit.
    if constexpr (C::depth == 2) Epilogue::keep(cta, Dealt<Shape>::behind());
  });
  Epilogue::finish(args, Dealt<Shape>::behind(), [](int row, int chunk) {
    return Dealt<Shape>::area().merged(Shape::row_of(row), Shape::kRows, C::warps, chunk);
  });
}

// One kernel for each number of query tokens of a request.
template <class C>
__global__ void __launch_bounds__(C::warps * 32, ctas_per_sm(C::tokens, C::depth, C::warps, 1))
    attend_1_token(const __grid_constant__ Args block) {
  attend<C, 1>(block.attention);
}

template <class C>
__global__ void __launch_bounds__(C::warps * 32, ctas_per_sm(C::tokens, C::depth, C::warps, 2))
    attend_2_tokens(const __grid_constant__ Args block) {
  if constexpr (C::warps <= device::kMostWarpsOf2Tokens && C::tokens * C::depth <= 32) {
    attend<C, 2>(block.attention);
  }
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::attention_register_dealt
