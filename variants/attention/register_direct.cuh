// SPDX-License-Identifier: Apache-2.0
// attention/register_direct: a CTA takes a split of a request for heads_per_cta kv heads; its warps
// share out the split's units of keys and are merged through shared memory at the end.
#pragma once

#include "variants/device/attention_args.h"
#include "variants/device/direct_rows.cuh"
#include "variants/device/epilogue.cuh"

namespace muse::attention_register_direct {

struct Args {
  device::AttentionArgs attention;
};

/// Rows of two tokens beside two units of 8 KB are more than registers hold: refused.
MUSE_HOST_DEVICE constexpr bool holds_2_tokens(int tokens, int depth, int heads_per_cta) {
  return tokens * depth * heads_per_cta <= 64;
}

#if defined(MUSE_DEVICE_CODE)

/// The warp's rows once more, where some hold NaN; see hold_nan().
template <class C, class Shape>
__device__ __noinline__ void leave_nan(const device::AttentionArgs& args) {
  __syncwarp();  // the warp has left its rows, whose place is taken once more
  const int cache_seqlen = __ldg(args.cache_seqlens + blockIdx.z);
  const device::KeyRange all = device::request_keys(args, cache_seqlen);
  const device::CtaRows cta =
      device::cta_rows<C>(args, device::direct_splits<Shape>(all, C::splits));
  const device::KeyRange keys = device::direct_split<Shape, C::splits>(all, cta.splits, cta.split);
  const device::DirectWalk<Shape> walk(args, cta.request, cta.first_head, keys, keys.end);
  auto rows = device::empty_rows<Shape>();
  device::load_queries<Shape>(args, cta.request, cta.first_head, rows);
  auto& area =
      *reinterpret_cast<device::MergeArea<Shape::kRows, C::warps>*>(device::dynamic_shared());
  walk.attend_nan(rows, device::direct_keys(args, cache_seqlen, keys), area);
  area.leave(device::thread_anew(), rows);
}

/// The CTA's keys, up to where its warps have left their rows in the merge area.
template <class C, class Shape>
__device__ __forceinline__ void attend_keys(const device::AttentionArgs& given,
                                            const device::AttentionArgs& args,
                                            const device::CtaRows& cta, int cache_seqlen,
                                            device::KeyRange keys,
                                            device::MergeArea<Shape::kRows, C::warps>& area) {
  const int old_end = cache_seqlen - Shape::kQueries;
  device::DirectWalk<Shape> walk(args, cta.request, cta.first_head, keys, keys.end);
  walk.start(device::smaller(keys.end, old_end));
  auto rows = device::empty_rows<Shape>();
  const device::DirectKeys described = device::direct_keys(args, cache_seqlen, keys);
  device::wait_for_predecessor();
  device::allow_successor();
  walk.load_new(old_end);
  device::load_queries<Shape>(args, cta.request, cta.first_head, rows);
  walk.attend(rows, described, area);
  area.leave(device::thread_anew(), rows);
  if (device::hold_nan(rows)) leave_nan<C, Shape>(given);
}

/// grid: splits, groups of kv heads, requests.
template <class C, int kQueries>
__device__ __forceinline__ void attend(const device::AttentionArgs& given) {
  using Epilogue = device::Epilogue<C>;
  using Shape = device::DirectShape<C, kQueries>;
  using Area = device::MergeArea<Shape::kRows, C::warps>;
  const device::AttentionArgs args = device::direct_args<Shape>(given);
  unsigned char* const behind = device::dynamic_shared() + sizeof(Area);
  const int cache_seqlen = __ldg(args.cache_seqlens + blockIdx.z);
  Epilogue::begin(args, device::cta_rows<C>(args, 0), behind);
  const device::KeyRange all = device::request_keys(args, cache_seqlen);
  const int splits = device::direct_splits<Shape>(all, C::splits);
  const device::CtaRows cta = device::cta_rows<C>(args, splits);
  if (!Epilogue::needed(cta)) {
    device::wait_for_predecessor();
    Epilogue::leave();
    return;
  }
  auto& area = *reinterpret_cast<Area*>(device::dynamic_shared());
  static_assert(
      sizeof(Area) == device::direct_merge_bytes(Shape::kRows, C::warps) && sizeof(Area) % 16 == 0,
      "the epilogue's comes behind");
  Epilogue::keep(cta, behind);
  if (cta.has_keys()) {
    attend_keys<C, Shape>(given, args, cta, cache_seqlen,
                          device::direct_split<Shape, C::splits>(all, splits, cta.split), area);
  } else {
    device::wait_for_predecessor();
    device::allow_successor();
  }
  Epilogue::finish(args, behind, [&](int row, int chunk) {
    return area.merged(Shape::row_of(row), Shape::kRows, C::warps, chunk);
  });
}

/// CTAs on an SM: warps whose registers hold their share of rows and the units on their way.
template <class C>
MUSE_HOST_DEVICE constexpr int ctas_per_sm(int queries) {
  const int rows = C::heads_per_cta * queries;
  const int keys = C::heads_per_cta * C::tokens * C::depth;  // of one head, on their way
  const int warps = rows > 2 || keys > 64 ? 8 : keys > 32 ? 12 : 16;
  return warps < C::warps ? 1 : warps / C::warps;
}

// One kernel for each number of query tokens of a request.
template <class C>
__global__ void __launch_bounds__(C::warps * 32, ctas_per_sm<C>(1))
    attend_1_token(const __grid_constant__ Args block) {
  attend<C, 1>(block.attention);
}

template <class C>
__global__ void __launch_bounds__(C::warps * 32, ctas_per_sm<C>(2))
    attend_2_tokens(const __grid_constant__ Args block) {
  if constexpr (C::warps <= device::kMostWarpsOf2Tokens &&
                holds_2_tokens(C::tokens, C::depth, C::heads_per_cta)) {
    attend<C, 2>(block.attention);
  }
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::attention_register_direct
