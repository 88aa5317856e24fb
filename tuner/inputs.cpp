// SPDX-License-Identifier: Apache-2.0
// One shape's input data on the host. Every number is a function of (seed, stream, index), so
// threads can share the work in any way.
#include "tuner/inputs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <thread>

#include "variants/numerics.h"

namespace muse::tuner {
namespace {

constexpr float kFlatKeys = 0.2F;

/// splitmix64's finaliser: uniform 64 bits for each (stream, index).
uint64_t random_bits(uint64_t stream, uint64_t index) {
  uint64_t x = stream + index * 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

enum class Stream : uint64_t { kQkv = 1, kKeys = 2, kValues = 3 };

uint64_t stream(uint64_t seed, Stream which) {
  return random_bits(random_bits(0, seed), static_cast<uint64_t>(which));
}

/// Inverse of the standard normal's distribution function by Newton steps on erfc; 0 < p < 1.
double normal_quantile(double p) {
  const double tail = std::min(p, 1 - p);
  const double t = std::sqrt(-2 * std::log(tail));
  double x = t - (2.30753 + 0.27061 * t) / (1 + t * (0.99229 + t * 0.04481));  // Hastings
  for (int step = 0; step < 2; ++step) {
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    x += (0.5 * std::erfc(x / std::sqrt(2)) - tail) / density;
  }
  return p < 0.5 ? -x : x;
}

/// The normal distribution as equally likely values, a power of two of them, so that random bits
/// pick one; 2^12 reach to 3.7 standard deviations and stay in the first-level cache.
constexpr int kQuantileBits = 12;
using Quantiles = std::array<float, size_t{1} << kQuantileBits>;
const Quantiles& normal_quantiles() {
  static const Quantiles table = [] {
    Quantiles values;
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(
          normal_quantile((static_cast<double>(i) + 0.5) / static_cast<double>(values.size())));
    }
    return values;
  }();
  return table;
}

/// Calls part(begin, end) for pieces of 0..count, each piece starting at a multiple of `grain`.
void in_parallel(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& part) {
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t cores = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 16);
  const int64_t workers = std::min(cores, grains);
  std::vector<std::jthread> threads;
  for (int64_t w = 1; w < workers; ++w) {
    threads.emplace_back([&, w] {
      part(grains * w / workers * grain, std::min(count, grains * (w + 1) / workers * grain));
    });
  }
  if (workers > 0) part(0, std::min(count, grains / workers * grain));
}

constexpr int64_t kGrain = int64_t{1} << 16;

/// What the random bits of one cache pick from.
using Codes = std::array<uint8_t, std::tuple_size_v<Quantiles>>;

/// E4((normal * factor + mean) / scale).
Codes cache_codes(float factor, float mean, float scale) {
  Codes codes;
  std::transform(normal_quantiles().begin(), normal_quantiles().end(), codes.begin(),
                 [=](float z) { return f32_to_e4m3((z * factor + mean) / scale); });
  return codes;
}

/// One row of `width` codes, a multiple of 8.
void fill_row(uint8_t* bytes, int64_t row, int64_t width, uint64_t stream, const Codes& codes) {
  for (int64_t i = 0; i < width; i += 4) {
    uint64_t bits = random_bits(stream, static_cast<uint64_t>(row * width + i));
    for (int64_t j = i; j < i + 4; ++j, bits >>= 16) bytes[j] = codes[bits & (codes.size() - 1)];
  }
}

std::vector<uint16_t> make_qkv(const Problem& p, uint64_t stream, float value_mean) {
  std::vector<uint16_t> qkv(static_cast<size_t>(p.tokens() * p.qkv_width()));
  const int64_t values_begin = (p.num_q_heads + p.num_kv_heads) * p.head_dim;
  const int64_t values_end = values_begin + p.num_kv_heads * p.head_dim;
  in_parallel(static_cast<int64_t>(qkv.size()), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i % p.qkv_width();
      const float mean = column >= values_begin && column < values_end ? value_mean : 0;
      const uint64_t bits = random_bits(stream, static_cast<uint64_t>(i));
      // A small uniform jitter fills the gaps of the table on the grid of bf16.
      const float jitter = (static_cast<float>((bits >> 40) & 0xFFF) - 2047.5F) * 0x1p-18F;
      qkv[static_cast<size_t>(i)] = f32_to_bf16(
          normal_quantiles()[bits & (std::tuple_size_v<Quantiles> - 1)] + jitter + mean);
    }
  });
  return qkv;
}

/// SPEC of the table: inv_freq_j = RN(1 / RN(theta^(2j/D))), angle = RN(pos * inv_freq_j), all f32.
std::vector<float> make_cos_sin(double theta, int64_t head_dim, int64_t positions) {
  const int64_t half = head_dim / 2;
  std::vector<float> inv_freq(static_cast<size_t>(half));
  for (int64_t j = 0; j < half; ++j) {
    const double exponent = 2.0 * static_cast<double>(j) / static_cast<double>(head_dim);
    inv_freq[static_cast<size_t>(j)] = 1.0F / static_cast<float>(std::pow(theta, exponent));
  }
  std::vector<float> table(static_cast<size_t>(positions * head_dim));
  in_parallel(positions, 256, [&](int64_t begin, int64_t end) {
    for (int64_t pos = begin; pos < end; ++pos) {
      float* row = table.data() + pos * head_dim;
      for (int64_t j = 0; j < half; ++j) {
        const float angle = static_cast<float>(pos) * inv_freq[static_cast<size_t>(j)];
        row[j] = static_cast<float>(std::cos(static_cast<double>(angle)));
        row[half + j] = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
    }
  });
  return table;
}

/// Lifts the values of each query's first attended row to about 2 * sqrt(attended keys): with flat
/// weights that is the size of the whole output. Signs and mantissas stay random, so that roundings
/// of the output do not all go one way.
void mark_first_rows(const Inputs& in, uint8_t* v_cache) {
  const Problem& p = in.shape.problem;
  const int64_t width = p.num_kv_heads * p.head_dim;
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t cached = in.seq_lens[static_cast<size_t>(b)];
    for (int64_t i = 0; i < p.q_len; ++i) {
      const int64_t first = first_attended(in, b, i);
      if (first >= cached) continue;  // the step writes that row itself
      const auto attended = static_cast<float>(cached + i - first + 1);
      const int code = f32_to_e4m3(2 * std::sqrt(attended) / static_cast<float>(p.kv_scale));
      const int exponent = std::min(code & 0x78, 0x70);  // the topmost holds NaN
      uint8_t* row = v_cache + in.row(b, first) * width;
      for (int64_t d = 0; d < width; ++d) {
        row[d] = static_cast<uint8_t>((row[d] & 0x87) | exponent);
      }
    }
  }
}

template <class T>
std::span<const uint8_t> bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

float value_mean(Fill fill) { return fill == Fill::kMeanOne ? 1 : 0; }

void fill_lengths(Inputs& in, int64_t position_shift) {
  const Problem& p = in.shape.problem;
  in.page_table = page_table(in.shape);
  int64_t batch = 0;
  for (const int64_t context : contexts(in.shape.lengths, p.batch, p.q_len)) {
    in.cache_seqlens.push_back(static_cast<int32_t>(context));
    in.seq_lens.push_back(static_cast<int32_t>(context - p.q_len));
    in.cu_seqlens_q.push_back(static_cast<int32_t>(batch * p.q_len));
    for (int64_t i = 0; i < p.q_len; ++i) {
      in.positions.push_back(in.seq_lens.back() + i + position_shift);
      in.cache_loc.push_back(in.row(batch, in.seq_lens.back() + i));
    }
    ++batch;
  }
  in.cu_seqlens_q.push_back(static_cast<int32_t>(p.tokens()));
}

}  // namespace

std::string_view name(Fill fill) {
  switch (fill) {
    case Fill::kNormal:
      return "normal";
    case Fill::kFlat:
      return "flat";
    case Fill::kMeanOne:
      return "mean_one";
  }
  return "";
}

std::span<const uint8_t> input_bytes(const Inputs& inputs, std::string_view name) {
  if (name == "qkv") return bytes_of(inputs.qkv);
  if (name == "positions") return bytes_of(inputs.positions);
  if (name == "cache_loc") return bytes_of(inputs.cache_loc);
  if (name == "seq_lens") return bytes_of(inputs.seq_lens);
  if (name == "cache_seqlens") return bytes_of(inputs.cache_seqlens);
  if (name == "cu_seqlens_q") return bytes_of(inputs.cu_seqlens_q);
  if (name == "page_table") return bytes_of(inputs.page_table);
  if (name == "k_scale") return bytes_of(inputs.k_scale);
  if (name == "v_scale") return bytes_of(inputs.v_scale);
  if (name == "cos_sin") return bytes_of(inputs.cos_sin);
  if (name == "k_cache") return bytes_of(inputs.k_cache);
  if (name == "v_cache") return bytes_of(inputs.v_cache);
  return {};
}

int64_t Inputs::row(int64_t b, int64_t j) const {
  const Problem& p = shape.problem;
  return page_table[static_cast<size_t>(b * p.max_pages() + j / p.page_size)] * p.page_size +
         j % p.page_size;
}

int64_t first_attended(const Inputs& in, int64_t b, int64_t i) {
  const int64_t own = in.seq_lens[static_cast<size_t>(b)] + i;
  const int64_t window = in.shape.problem.window;
  return window > 0 ? std::max<int64_t>(0, own - (window - 1)) : 0;
}

Buffers Inputs::view() const {
  Buffers b;
  b.qkv = qkv.data();
  b.positions = positions.data();
  b.cache_loc = cache_loc.data();
  b.seq_lens = seq_lens.data();
  b.cache_seqlens = cache_seqlens.data();
  b.cu_seqlens_q = cu_seqlens_q.data();
  b.page_table = page_table.data();
  b.k_scale = k_scale.data();
  b.v_scale = v_scale.data();
  b.cos_sin = cos_sin.empty() ? nullptr : cos_sin.data();
  b.k_cache = const_cast<uint8_t*>(k_cache.data());
  b.v_cache = const_cast<uint8_t*>(v_cache.data());
  return b;
}

Inputs make_inputs_without_caches(const Shape& shape, uint64_t seed, Fill fill,
                                  int64_t position_shift, int64_t spare_positions) {
  const Problem& p = shape.problem;
  Inputs in;
  in.shape = shape;
  in.seed = seed;
  in.fill = fill;
  fill_lengths(in, position_shift);
  const auto scale = static_cast<float>(p.kv_scale);
  in.k_scale = {scale};
  in.v_scale = {scale};
  in.qkv = make_qkv(p, stream(seed, Stream::kQkv), value_mean(fill));
  in.cache_pages = pool_pages(shape);
  if (p.rope()) {
    in.rope_positions =
        *std::max_element(in.positions.begin(), in.positions.end()) + 1 + spare_positions;
    in.cos_sin = make_cos_sin(p.rope_theta, p.head_dim, in.rope_positions);
  }
  return in;
}

void fill_caches(const Inputs& in, const std::vector<uint8_t>& wanted, uint8_t other, uint8_t* k,
                 uint8_t* v) {
  const Problem& p = in.shape.problem;
  const int64_t width = p.num_kv_heads * p.head_dim;
  const auto scale = static_cast<float>(p.kv_scale);
  const Codes keys = cache_codes(in.fill == Fill::kNormal ? 1 : kFlatKeys, 0, scale);
  const Codes values = cache_codes(1, value_mean(in.fill), scale);
  const uint64_t key_stream = stream(in.seed, Stream::kKeys);
  const uint64_t value_stream = stream(in.seed, Stream::kValues);
  const int64_t rows = in.cache_pages * p.page_size;
  in_parallel(rows, kGrain / width + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      uint8_t *key = k + row * width, *value = v + row * width;
      if (wanted.empty() || wanted[static_cast<size_t>(row)] != 0) {
        fill_row(key, row, width, key_stream, keys);
        fill_row(value, row, width, value_stream, values);
      } else {
        std::fill_n(key, width, other);
        std::fill_n(value, width, other);
      }
    }
  });
  if (in.fill == Fill::kFlat) mark_first_rows(in, v);
}

Inputs make_inputs(const Shape& shape, uint64_t seed, Fill fill, int64_t position_shift) {
  const Problem& p = shape.problem;
  Inputs in = make_inputs_without_caches(shape, seed, fill, position_shift);
  const int64_t codes = in.cache_pages * p.page_size * p.num_kv_heads * p.head_dim;
  in.k_cache.resize(static_cast<size_t>(codes));
  in.v_cache.resize(static_cast<size_t>(codes));
  fill_caches(in, {}, 0, in.k_cache.data(), in.v_cache.data());
  return in;
}

}  // namespace muse::tuner
