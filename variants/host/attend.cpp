// SPDX-License-Identifier: Apache-2.0
// The tile loop. Rows of the next tile are fetched while this one is computed: pages in random
// order defeat the hardware's prefetcher.
#include "variants/host/attend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "variants/host/contract.h"

namespace muse::host {
namespace {

template <class T>
T* carve(std::byte*& memory, int64_t count) {
  T* area = reinterpret_cast<T*>(memory);
  memory += whole_lines(count * static_cast<int64_t>(sizeof(T)));
  return area;
}

/// Byte offsets of the keys' rows, without a division for each key.
void fill_offsets(const AttentionInputs& in, int64_t b, int64_t kv_head, KeyRange keys,
                  int64_t* offsets) {
  const int32_t* page = in.page_table + b * in.max_pages + keys.begin / in.page_size;
  int64_t slot = keys.begin % in.page_size;
  for (int64_t key = 0; key < keys.size(); ++key) {
    const int64_t row = *page * in.page_size + slot;
    offsets[key] = (row * in.num_kv_heads + kv_head) * in.head_dim;
    if (++slot == in.page_size) {
      slot = 0;
      ++page;
    }
  }
}

void load_query(const RowKernels& kernels, const AttentionInputs& in, int64_t b, int64_t kv_head,
                float* query) {
  constexpr int64_t kNoOffset = 0;
  const int64_t group_dim = in.group() * in.head_dim;  // the heads of a group lie side by side
  for (int64_t i = 0; i < in.q_len; ++i) {
    const int64_t token = in.cu_seqlens_q[b] + i;
    const uint8_t* heads = in.q8 + (token * in.num_q_heads + kv_head * in.group()) * in.head_dim;
    kernels.decode_rows(heads, &kNoOffset, &kNoOffset, 1, group_dim, query + i * group_dim);
  }
}

}  // namespace

int64_t AttendScratch::bytes(int64_t rows, int64_t dim, int64_t tile_kv) {
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  return whole_lines(rows * static_cast<int64_t>(sizeof(SoftmaxState))) +
         2 * whole_lines(rows * dim * kFloat) + whole_lines(rows * kFloat) +
         2 * whole_lines(tile_kv * dim * kFloat) + whole_lines(rows * tile_kv * kFloat) +
         2 * whole_lines(tile_kv * static_cast<int64_t>(sizeof(int64_t)));
}

AttendScratch::AttendScratch(std::byte* memory, int64_t rows, int64_t dim, int64_t tile_kv)
    : states(carve<SoftmaxState>(memory, rows)),
      acc(carve<float>(memory, rows * dim)),
      query(carve<float>(memory, rows * dim)),
      factors(carve<float>(memory, rows)),
      keys(carve<float>(memory, dim * tile_kv)),
      values(carve<float>(memory, tile_kv * dim)),
      scores(carve<float>(memory, rows * tile_kv)),
      offsets(carve<int64_t>(memory, tile_kv)),
      ahead(carve<int64_t>(memory, tile_kv)) {}

void attend(const RowKernels& kernels, const AttentionInputs& in, int64_t b, int64_t kv_head,
            KeyRange range, int64_t tile_kv, AttendScratch& scratch) {
  const int64_t dim = in.head_dim;
  const int64_t group = in.group();
  const int64_t rows = in.q_len * group;
  // exp(s) = 2^(s * log2(e)); the product with the scores is the only rounding that this adds.
  const float scale = in.softmax_scale * *in.k_scale * 1.44269504F;
  const auto tile_at = [&](int64_t begin) {
    return KeyRange{begin, std::min(begin + tile_kv, range.end)};
  };

  std::fill_n(scratch.states, rows, SoftmaxState{-std::numeric_limits<float>::infinity(), 0});
  std::fill_n(scratch.acc, rows * dim, 0.0F);
  load_query(kernels, in, b, kv_head, scratch.query);
  fill_offsets(in, b, kv_head, tile_at(range.begin), scratch.ahead);

  for (KeyRange tile = tile_at(range.begin); tile.size() > 0; tile = tile_at(tile.end)) {
    std::swap(scratch.offsets, scratch.ahead);
    const KeyRange next = tile_at(tile.end);
    fill_offsets(in, b, kv_head, next, scratch.ahead);
    std::fill(scratch.ahead + next.size(), scratch.ahead + tile_kv, 0);

    // Lanes beyond the tile repeat its first row; their scores are never used.
    const int64_t padded = (tile.size() + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
    std::fill(scratch.offsets + tile.size(), scratch.offsets + padded, scratch.offsets[0]);
    kernels.decode_keys(in.k_cache, scratch.offsets, scratch.ahead, padded, dim, scratch.keys);
    kernels.decode_rows(in.v_cache, scratch.offsets, scratch.ahead, tile.size(), dim,
                        scratch.values);
    kernels.scores(scratch.query, rows, scratch.keys, padded, dim, scratch.scores);

    for (int64_t i = 0; i < in.q_len; ++i) {
      const KeyRange seen = intersect(attended(in, b, i), tile);
      if (seen.size() == 0) continue;
      const int64_t begin = seen.begin - tile.begin;
      const int64_t end = seen.end - tile.begin;
      for (int64_t row = i * group; row < (i + 1) * group; ++row) {
        scratch.factors[row] = kernels.softmax(scratch.scores + row * padded, begin, end, padded,
                                               scale, &scratch.states[row]);
      }
      kernels.accumulate(scratch.scores + i * group * padded, padded, scratch.factors + i * group,
                         group, scratch.values, begin, end, dim, scratch.acc + i * group * dim);
    }
  }
}

float log_sum_exp2(const SoftmaxState& state) {
  return state.sum == 0 ? -std::numeric_limits<float>::infinity()
                        : state.max + std::log2(state.sum);
}

}  // namespace muse::host
