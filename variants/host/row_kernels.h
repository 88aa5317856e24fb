// SPDX-License-Identifier: Apache-2.0
// The vectorised loops over rows and tiles that the simd and fused host variants are made of, one
// table for each instruction set, so that one binary runs on any machine.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace muse::host {

enum class Isa : uint8_t { kBaseline, kAvx2, kAvx512 };
std::string_view name(Isa isa);  ///< baseline, avx2, avx512

/// All that this CPU can run, narrowest first; kBaseline is always there.
std::vector<Isa> available_isas();

/// One running softmax (base 2) of a query row over the tiles of its keys.
struct SoftmaxState {
  float max;  ///< largest scaled score so far; -inf before the first
  float sum;  ///< of exp2(score - max)
};

/// dim: head_dim D, a multiple of 64. Rows may lie at any address. keys: tile of key rows;
/// keys_padded: keys rounded up to kKeyBlock.
struct RowKernels {
  /// Sections 1 to 5 of prepare for a q or k head: out[dim] = E4(RN_bf16(z / scale)) of x[dim],
  /// bf16; cos_sin[dim] is the position's row, null without RoPE. scale = 1 gives E4(z).
  void (*norm_rope_quantise)(const uint16_t* x, const float* cos_sin, float scale, int64_t dim,
                             uint8_t* out);
  /// The same for a v head: out[dim] = E4(RN_bf16(x / scale)).
  void (*quantise)(const uint16_t* x, float scale, int64_t dim, uint8_t* out);

  /// out f32 [rows, dim] from e4m3 rows at base + offsets[row]; fetches those at base + ahead[row]
  /// into the cache on the way, one for each row decoded: in a burst most fetches would be dropped.
  void (*decode_rows)(const uint8_t* base, const int64_t* offsets, const int64_t* ahead,
                      int64_t rows, int64_t dim, float* out);
  /// The same transposed: out f32 [dim, keys_padded] from keys_padded rows.
  void (*decode_keys)(const uint8_t* base, const int64_t* offsets, const int64_t* ahead,
                      int64_t keys_padded, int64_t dim, float* out);
  /// scores f32 [rows, keys_padded] = query [rows, dim] * keys [dim, keys_padded].
  void (*scores)(const float* query, int64_t rows, const float* keys, int64_t keys_padded,
                 int64_t dim, float* scores);
  /// Turns a row of scores into p = exp2(score * scale - max) for keys in [begin, end), 0 elsewhere
  /// up to keys_padded. Returns the factor by which what was summed before has to shrink.
  float (*softmax)(float* scores, int64_t begin, int64_t end, int64_t keys_padded, float scale,
                   SoftmaxState* state);
  /// acc [rows, dim] = acc * factors[row] + p [rows, stride] * values [end, dim] over keys in
  /// [begin, end). Rows of values outside are not touched.
  void (*accumulate)(const float* p, int64_t stride, const float* factors, int64_t rows,
                     const float* values, int64_t begin, int64_t end, int64_t dim, float* acc);

  /// out[dim] = x[dim] * factor, as f32 and rounded to bf16.
  void (*scale_to_f32)(const float* x, float factor, int64_t dim, float* out);
  void (*scale_to_bf16)(const float* x, float factor, int64_t dim, uint16_t* out);
  /// acc[dim] += x[dim] * weight.
  void (*add_f32)(const float* x, float weight, int64_t dim, float* acc);
  void (*add_bf16)(const uint16_t* x, float weight, int64_t dim, float* acc);

  /// The gate of one head: out[dim] from o[dim] and g[dim], all bf16.
  void (*gate)(const uint16_t* o, const uint16_t* g, int64_t dim, uint16_t* out);
};

/// What dim and tiles of keys are multiples of, for every instruction set.
inline constexpr int64_t kDimBlock = 64;
inline constexpr int64_t kKeyBlock = 32;

/// The table of an instruction set that this CPU can run.
const RowKernels& row_kernels(Isa isa);
/// The widest one.
const RowKernels& row_kernels();

}  // namespace muse::host
