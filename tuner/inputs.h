// SPDX-License-Identifier: Apache-2.0
// One shape's input data on the host, made from seeds alone.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "variants/buffers.h"
#include "variants/lengths.h"

namespace muse::tuner {

/// What the numbers look like. Normal data makes a peaky softmax; flat and offset test P*V.
enum class Fill : uint8_t {
  kNormal,   ///< all standard normal (cache: E4M3 of it divided by kv_scale)
  kFlat,     ///< cached keys times 0.2; the values of each query's first attended row stand out by
             ///< about half the output's size, so that a window that is off by one shows
  kMeanOne,  ///< cached keys times 0.2, and values with mean 1
};
std::string_view name(Fill fill);  ///< normal, flat, mean_one

struct Inputs {
  Shape shape;
  uint64_t seed = 1;
  Fill fill = Fill::kNormal;
  std::vector<uint16_t> qkv;
  std::vector<int64_t> positions, cache_loc;
  std::vector<int32_t> seq_lens, cache_seqlens, cu_seqlens_q, page_table;
  std::vector<float> k_scale, v_scale, cos_sin;
  std::vector<uint8_t> k_cache, v_cache;
  int64_t cache_pages = 0;
  int64_t rope_positions = 0;

  /// Pointers to the inputs; everything else null. Const is cast away: do not write through it.
  Buffers view() const;
  /// Flat cache row of logical token `j` of request `b`.
  int64_t row(int64_t b, int64_t j) const;
};

/// The bytes of the input of that BufferSpec name; empty where it is none, or left empty.
std::span<const uint8_t> input_bytes(const Inputs& inputs, std::string_view name);

/// First key that query `i` of request `b` attends to.
int64_t first_attended(const Inputs& inputs, int64_t b, int64_t i);

/// Deterministic in (shape, seed, fill), whatever the number of threads; positions are seq_lens + i
/// + position_shift.
Inputs make_inputs(const Shape& shape, uint64_t seed, Fill fill, int64_t position_shift = 0);

/// The same with both caches left empty. cos_sin has `spare_positions` more rows than are read.
Inputs make_inputs_without_caches(const Shape& shape, uint64_t seed, Fill fill,
                                  int64_t position_shift = 0, int64_t spare_positions = 0);

/// Fills k and v, each [cache_pages * ps, Hkv * D]: make_inputs' codes in the rows that `wanted`
/// marks (empty: all), `other` in the rest. Of `in` the caches are not read.
void fill_caches(const Inputs& in, const std::vector<uint8_t>& wanted, uint8_t other, uint8_t* k,
                 uint8_t* v);

}  // namespace muse::tuner
