// SPDX-License-Identifier: Apache-2.0
// Reference of prepare (to the byte), combine and gate (float64). Compiled without contraction of
// multiplies and adds: a fused one would round prepare's f32 arithmetic elsewhere.
#include "variants/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "variants/numerics.h"
#include "variants/reference/parallel.h"

namespace muse::reference {
namespace {

constexpr float kEpsilon = 1e-5F;

// y = RN_bf16(x * rsqrt(mean(x^2) + epsilon)).
void normalise(const uint16_t* x, int64_t dim, float* y) {
  float sum = 0;
  for (int64_t j = 0; j < dim; ++j) {
    const float value = bf16_to_f32(x[j]);
    sum += value * value;
  }
  const float r = 1.0F / std::sqrt(sum / static_cast<float>(dim) + kEpsilon);
  for (int64_t j = 0; j < dim; ++j) y[j] = round_to_bf16(bf16_to_f32(x[j]) * r);
}

// Interleaved pairs (2j, 2j+1); cos in the first half of the row, sin in the second.
void rotate(const float* cos_sin, int64_t dim, float* y) {
  for (int64_t j = 0; j < dim / 2; ++j) {
    const float c = cos_sin[j];
    const float s = cos_sin[dim / 2 + j];
    const float even = y[2 * j];
    const float odd = y[2 * j + 1];
    y[2 * j] = round_to_bf16(even * c - odd * s);
    y[2 * j + 1] = round_to_bf16(odd * c + even * s);
  }
}

// scale: null where the values are stored as they are.
void quantise(const float* values, int64_t dim, const float* scale, uint8_t* codes) {
  for (int64_t j = 0; j < dim; ++j) {
    codes[j] = f32_to_e4m3(scale == nullptr ? values[j] : round_to_bf16(values[j] / *scale));
  }
}

void prepare_token(const Problem& p, const Buffers& in, int64_t token, Prepared& result) {
  const int64_t dim = p.head_dim;
  const uint16_t* row = in.qkv + token * p.qkv_width();
  const float* cos_sin = p.rope() ? in.cos_sin + in.positions[token] * dim : nullptr;
  std::vector<float> values(static_cast<size_t>(dim));
  for (int64_t head = 0; head < p.num_q_heads + p.num_kv_heads; ++head) {
    normalise(row + head * dim, dim, values.data());
    if (p.rope()) rotate(cos_sin, dim, values.data());
    const int64_t kv_head = head - p.num_q_heads;
    if (kv_head < 0) {
      uint8_t* q8 = result.q8.data() + (token * p.num_q_heads + head) * dim;
      quantise(values.data(), dim, nullptr, q8);
    } else {
      uint8_t* k8 = result.k8.data() + (token * p.num_kv_heads + kv_head) * dim;
      quantise(values.data(), dim, p.scaled() ? in.k_scale : nullptr, k8);
    }
  }
  const uint16_t* v = row + (p.num_q_heads + p.num_kv_heads) * dim;
  for (int64_t head = 0; head < p.num_kv_heads; ++head) {
    for (int64_t j = 0; j < dim; ++j) values[j] = bf16_to_f32(v[head * dim + j]);
    uint8_t* v8 = result.v8.data() + (token * p.num_kv_heads + head) * dim;
    quantise(values.data(), dim, p.scaled() ? in.v_scale : nullptr, v8);
  }
}

double partial_value(const Buffers& in, int64_t index) {
  switch (in.partial_type) {
    case PartialType::kF32:
      return static_cast<const float*>(in.partial_o)[index];
    case PartialType::kBf16:
      return bf16_to_f32(static_cast<const uint16_t*>(in.partial_o)[index]);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

// One (token, head) row; `row` counts them, `stride` is their number: the distance between splits.
void combine_row(const Buffers& in, int64_t dim, int64_t row, int64_t stride, int64_t splits,
                 double* o) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  std::fill(o, o + dim, 0.0);
  double largest = kEmpty;
  for (int64_t s = 0; s < splits; ++s) {
    largest = std::max(largest, static_cast<double>(in.partial_lse[s * stride + row]));
  }
  double weights = 0;
  for (int64_t s = 0; s < splits; ++s) {
    const float lse = in.partial_lse[s * stride + row];
    if (lse == kEmpty) continue;  // weight 0, and its partial may hold anything
    const double weight = std::exp2(lse - largest);
    weights += weight;
    for (int64_t d = 0; d < dim; ++d) {
      o[d] += weight * partial_value(in, (s * stride + row) * dim + d);
    }
  }
  if (weights == 0) return;  // every split is empty
  for (int64_t d = 0; d < dim; ++d) o[d] /= weights;
}

}  // namespace

Prepared prepare(const Problem& problem, const Buffers& in) {
  const auto values = [&](int64_t heads) {
    return std::vector<uint8_t>(static_cast<size_t>(problem.tokens() * heads * problem.head_dim));
  };
  Prepared result{values(problem.num_q_heads), values(problem.num_kv_heads),
                  values(problem.num_kv_heads)};
  parallel_for(problem.tokens(), [&](int64_t token) { prepare_token(problem, in, token, result); });
  return result;
}

void store(const Problem& problem, const Prepared& prepared, const Buffers& in) {
  const int64_t row = problem.num_kv_heads * problem.head_dim;
  for (int64_t token = 0; token < problem.tokens(); ++token) {
    const int64_t to = in.cache_loc[token] * row;
    std::memcpy(in.k_cache + to, prepared.k8.data() + token * row, static_cast<size_t>(row));
    std::memcpy(in.v_cache + to, prepared.v8.data() + token * row, static_cast<size_t>(row));
  }
}

std::vector<double> combine(const Problem& problem, const Buffers& in) {
  const int64_t dim = problem.head_dim;
  const int64_t rows = problem.tokens() * problem.num_q_heads;
  std::vector<double> o(static_cast<size_t>(rows * dim));
  parallel_for(rows, [&](int64_t row) {
    const int64_t request = row / problem.num_q_heads / problem.q_len;
    const int64_t splits = in.n_splits[request];
    double* to = o.data() + row * dim;
    if (splits < 1 || splits > in.split_capacity) {
      std::fill(to, to + dim, std::numeric_limits<double>::quiet_NaN());
    } else {
      combine_row(in, dim, row, rows, splits, to);
    }
  });
  return o;
}

std::vector<double> gate(const Problem& problem, const Buffers& in, const uint16_t* o) {
  const int64_t dim = problem.head_dim;
  const int64_t heads = problem.num_q_heads;
  const int64_t gate_offset = (heads + 2 * problem.num_kv_heads) * dim;
  std::vector<double> out(static_cast<size_t>(problem.tokens() * heads * dim));
  parallel_for(problem.tokens(), [&](int64_t token) {
    const uint16_t* gates = in.qkv + token * problem.qkv_width() + gate_offset;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t row = (token * heads + head) * dim;
      double sum = 0;
      for (int64_t d = 0; d < dim; ++d) {
        const double x = bf16_to_f32(o[row + d]);
        sum += x * x;
      }
      const double r = 1 / std::sqrt(sum / static_cast<double>(dim) + kEpsilon);
      for (int64_t d = 0; d < dim; ++d) {
        const double g = bf16_to_f32(gates[head * dim + d]);
        out[row + d] = bf16_to_f32(o[row + d]) * r / (1 + std::exp(-g));
      }
    }
  });
  return out;
}

}  // namespace muse::reference
