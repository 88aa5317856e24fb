// SPDX-License-Identifier: Apache-2.0
// Which keys a query attends, where their rows lie, and how a request is cut into splits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "variants/buffers.h"

namespace muse::host {

/// What attention reads, and the sizes it needs.
struct AttentionInputs {
  int64_t batch, q_len, num_q_heads, num_kv_heads, head_dim, page_size, window, max_pages;
  float softmax_scale;           // c without k_scale
  const int32_t* cache_seqlens;  // [B]
  const int32_t* cu_seqlens_q;   // [B+1]
  const int32_t* page_table;     // [B, max_pages]
  const float* k_scale;          // [1]
  const float* v_scale;          // [1]
  const uint8_t* k_cache;        // e4m3 [pages, ps, Hkv, D]
  const uint8_t* v_cache;        // e4m3 [pages, ps, Hkv, D]
  const uint8_t* q8;             // e4m3 [T, Hq, D]

  int64_t group() const { return num_q_heads / num_kv_heads; }
  int64_t tokens() const { return batch * q_len; }
};

inline AttentionInputs attention_inputs(const Problem& problem, const Buffers& buffers,
                                        const uint8_t* q8) {
  return {.batch = problem.batch,
          .q_len = problem.q_len,
          .num_q_heads = problem.num_q_heads,
          .num_kv_heads = problem.num_kv_heads,
          .head_dim = problem.head_dim,
          .page_size = problem.page_size,
          .window = problem.window,
          .max_pages = problem.max_pages(),
          .softmax_scale = problem.softmax_scale(),
          .cache_seqlens = buffers.cache_seqlens,
          .cu_seqlens_q = buffers.cu_seqlens_q,
          .page_table = buffers.page_table,
          .k_scale = buffers.k_scale,
          .v_scale = buffers.v_scale,
          .k_cache = buffers.k_cache,
          .v_cache = buffers.v_cache,
          .q8 = q8};
}

/// Keys [begin, end) of a request; empty where end <= begin.
struct KeyRange {
  int64_t begin, end;
  int64_t size() const { return std::max<int64_t>(end - begin, 0); }
};

inline KeyRange intersect(KeyRange a, KeyRange b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

/// What query i of request b attends: its own key and all before it, at most `window` of them. Each
/// query of a verify block has its own left edge.
inline KeyRange attended(const AttentionInputs& in, int64_t b, int64_t i) {
  const int64_t own = in.cache_seqlens[b] - in.q_len + i;
  return {in.window > 0 ? std::max<int64_t>(0, own - (in.window - 1)) : 0, own + 1};
}

/// What any query of request b attends.
inline KeyRange attended(const AttentionInputs& in, int64_t b) {
  return {attended(in, b, 0).begin, attended(in, b, in.q_len - 1).end};
}

/// Byte offset of key j's row in either cache, 64 bits wide. Only for attended keys: the page of
/// any other may be -1.
inline int64_t row_offset(const AttentionInputs& in, int64_t b, int64_t kv_head, int64_t j) {
  const int64_t page = in.page_table[b * in.max_pages + j / in.page_size];
  const int64_t row = page * in.page_size + j % in.page_size;
  return (row * in.num_kv_heads + kv_head) * in.head_dim;
}

/// How a request's keys are cut: `count` pieces of `size` keys, the last one shorter, none empty.
/// It depends on the request's own keys alone, so that a batch changes no bit.
struct Splits {
  int64_t count, size;
};

/// At most `capacity` splits, none of fewer than 32 keys but the last.
inline Splits splits_of(KeyRange keys, int64_t capacity) {
  constexpr int64_t kLeast = 32;
  const int64_t even = (keys.size() + capacity - 1) / capacity;
  const int64_t size = (std::max<int64_t>(even, 1) + kLeast - 1) / kLeast * kLeast;
  return {.count = std::max<int64_t>((keys.size() + size - 1) / size, 1), .size = size};
}

inline KeyRange split_range(KeyRange keys, Splits splits, int64_t split) {
  const int64_t begin = keys.begin + split * splits.size;
  return {begin, std::min(begin + splits.size, keys.end)};
}

}  // namespace muse::host
