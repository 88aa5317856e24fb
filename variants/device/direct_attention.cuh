// SPDX-License-Identifier: Apache-2.0
// A CTA of split-KV attention on direct_rows.cuh: its warps share out the split's units of keys and
// are merged through shared memory at the end.
#pragma once

#include "variants/device/attention_args.h"
#include "variants/device/direct_rows.cuh"
#include "variants/device/epilogue.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

/// The warp's rows once more, where some hold NaN; see hold_nan().
template <class C, class Shape>
__device__ __noinline__ void leave_split_again(const AttentionArgs& args) {
  __syncwarp();  // the warp has left its rows, whose place is taken once more
  const int cache_seqlen = __ldg(args.cache_seqlens + blockIdx.z);
  const KeyRange all = request_keys(args, cache_seqlen);
  const CtaRows cta = cta_rows<C>(args, direct_splits<C, Shape>(all));
  const KeyRange keys = direct_split<C, Shape>(all, cta.splits, cta.split);
  const DirectWalk<Shape> walk(args, cta.request, cta.first_head, keys, keys.end);
  auto rows = Shape::Products::empty();
  load_queries<Shape>(args, cta.request, cta.first_head, rows);
  auto& area = *reinterpret_cast<typename Shape::Area*>(dynamic_shared());
  walk.attend_nan(rows, direct_keys(args, cache_seqlen, keys), area);
  area.leave(thread_anew(), rows);
}

/// The CTA's keys, up to where its warps have left their rows in the merge area.
template <class C, class Shape>
__device__ __forceinline__ void attend_split_keys(const AttentionArgs& given,
                                                  const AttentionArgs& args, const CtaRows& cta,
                                                  int cache_seqlen, KeyRange keys,
                                                  DirectWalk<Shape>& walk,
                                                  typename Shape::Area& area) {
  const int old_end = cache_seqlen - Shape::kQueries;
  walk.load_old(smaller(keys.end, old_end));
  auto rows = Shape::Products::empty();
  const DirectKeys described = direct_keys(args, cache_seqlen, keys);
  wait_for_predecessor();
  allow_successor();
  walk.load_new(old_end);
  load_queries<Shape>(args, cta.request, cta.first_head, rows);
  Epilogue<C>::meet();
  walk.attend(rows, described, area);
  area.leave(thread_anew(), rows);
  if (hold_nan(rows)) leave_split_again<C, Shape>(given);
}

/// What a CTA does. grid: splits, groups of kv heads, requests.
template <class C, class Shape>
__device__ __forceinline__ void attend_split(const AttentionArgs& given) {
  using Ends = Epilogue<C>;
  using Area = typename Shape::Area;
  const AttentionArgs args = direct_args<Shape>(given);
  unsigned char* const behind = dynamic_shared() + sizeof(Area);
  const int cache_seqlen = __ldg(args.cache_seqlens + blockIdx.z);
  const KeyRange all = request_keys(args, cache_seqlen);
  const CtaRows cta = cta_rows<C>(args, direct_splits<C, Shape>(all));
  const KeyRange keys = direct_split<C, Shape>(all, cta.splits, cta.split);
  DirectWalk<Shape> walk(args, cta.request, cta.first_head, keys, keys.end);
  walk.look_up();
  walk.prefetch_pages(keys.begin);
  if (!Ends::needed(cta)) {
    wait_for_predecessor();
    return;
  }
  Ends::begin(args, cta, behind);
  auto& area = *reinterpret_cast<Area*>(dynamic_shared());
  static_assert(
      sizeof(Area) == direct_merge_bytes(Shape::kRows, C::warps) && sizeof(Area) % 16 == 0,
      "the epilogue's comes behind");
  Ends::keep(cta, behind);
  if (cta.has_keys()) {
    attend_split_keys<C, Shape>(given, args, cta, cache_seqlen, keys, walk, area);
  } else {
    wait_for_predecessor();
    allow_successor();
    Ends::meet();
  }
  Ends::finish(args, behind, [&](int row, int chunk) {
    return area.merged(Shape::row_of(row), Shape::kRows, C::warps, chunk);
  });
}

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
