// SPDX-License-Identifier: Apache-2.0
// Which keys a query attends, where their rows lie, and how a request's keys are cut into splits:
// all on the device, from the lengths as they are when the kernel runs.
#pragma once

#include "variants/device/attention_args.h"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

/// Keys [begin, end) of a request; empty where end <= begin.
struct KeyRange {
  int begin, end;
};

__device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ int ceil_div(int a, int b) { return (a + b - 1) / b; }

__device__ __forceinline__ KeyRange intersect(KeyRange a, KeyRange b) {
  return {larger(a.begin, b.begin), smaller(a.end, b.end)};
}

/// The keys of a request of `cache_seqlen` keys that its query i attends: its own and those before
/// it, `window` at most.
__device__ __forceinline__ KeyRange query_keys(const AttentionArgs& args, int cache_seqlen, int i) {
  const int own = cache_seqlen - args.q_len + i;
  return {args.window > 0 ? larger(0, own - (args.window - 1)) : 0, own + 1};
}

/// The keys that any of its queries attends. There are no others in between.
__device__ __forceinline__ KeyRange request_keys(const AttentionArgs& args, int cache_seqlen) {
  return {query_keys(args, cache_seqlen, 0).begin,
          query_keys(args, cache_seqlen, args.q_len - 1).end};
}

/// The keys that all of its queries attend: no mask is needed among them.
__device__ __forceinline__ KeyRange common_keys(const AttentionArgs& args, int cache_seqlen) {
  return {query_keys(args, cache_seqlen, args.q_len - 1).begin,
          query_keys(args, cache_seqlen, 0).end};
}

/// `count` pieces of `size` keys, the last one shorter, none empty but the only one of a request
/// without keys. They follow from the request's own keys alone, so that a batch changes no bit.
struct Splits {
  int count, size;
};

/// How many splits a request may have: C::splits, or where the configuration fills the chip as many
/// as the launch has CTAs for.
template <class C>
__device__ __forceinline__ int most_splits() {
  if constexpr (C::fill != 0) return static_cast<int>(gridDim.x);
  return C::splits;
}

/// At most `capacity` splits of equal size in whole units, `least` of them in each: short requests
/// get fewer.
__device__ __forceinline__ Splits splits_of(KeyRange keys, int capacity, int unit, int least = 1) {
  const int total = larger(keys.end - keys.begin, 1);
  const int size = larger(ceil_div(ceil_div(total, capacity), unit), least) * unit;
  return {ceil_div(total, size), size};
}
/// The same by the configuration's splits, in tiles of keys; where it fills the chip it says how
/// many a split has at least.
template <class C>
__device__ __forceinline__ Splits tile_splits(KeyRange keys) {
  return splits_of(keys, most_splits<C>(), C::tile_kv, C::fill > 1 ? C::fill : 1);
}

__device__ __forceinline__ KeyRange split_keys(KeyRange keys, Splits splits, int split) {
  const int begin = keys.begin + split * splits.size;
  return {begin, smaller(begin + splits.size, keys.end)};
}

__device__ __forceinline__ const int32_t* pages_of(const AttentionArgs& args, int request) {
  return args.page_table + static_cast<int64_t>(request) * args.max_pages;
}

/// The page of an attended key. The entry of any other may be anything: it is not to be followed.
__device__ __forceinline__ int page_of(const AttentionArgs& args, const int32_t* pages, int key) {
  return __ldg(pages + (key >> args.page_shift));
}

/// Byte offset in either cache of the key's row, kv head 0. 64 bits: pools pass 2^31 bytes.
__device__ __forceinline__ int64_t row_offset(const AttentionArgs& args, int page, int key) {
  const int in_page = key & ((1 << args.page_shift) - 1);
  const int64_t row = (static_cast<int64_t>(page) << args.page_shift) + in_page;
  return row * (args.num_kv_heads * kHeadDim);
}

/// A query row of a kv head: rows are packed as i*G + h, query i and head h of the group.
struct QueryRow {
  int query;     // 0..L-1
  int64_t head;  // index of the (token, query head) in [T, Hq]
};

__device__ __forceinline__ QueryRow query_row(const AttentionArgs& args, int request, int kv_head,
                                              int row) {
  const int query = row / args.group;
  const int64_t token = static_cast<int64_t>(request) * args.q_len + query;
  return {query, token * args.num_q_heads + kv_head * args.group + (row - query * args.group)};
}

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
