// SPDX-License-Identifier: Apache-2.0
// Data of a step from a seed, and the end-to-end comparison with the float64 reference.
#include "variants/reference/step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "variants/lengths.h"
#include "variants/numerics.h"
#include "variants/random.h"
#include "variants/reference/reference.h"

namespace muse::reference {
namespace {

constexpr uint8_t kPoison = 0xFF;                  // a NaN of e4m3
constexpr int64_t kPairBudget = int64_t{1} << 22;  // attended keys, about a second of one core
constexpr double kRelRmsLimit = 3e-2, kCosineLimit = 0.998, kShareOfCodes = 2e-5;
constexpr int64_t kCodesThatMayDiffer = 2;

/// 4096 numbers of the standard normal distribution, for random bits to pick from.
using Normals = std::array<float, 4096>;
Normals normals(SplitMix64& random) {
  Normals values;
  for (float& value : values) {  // Box and Muller
    value = static_cast<float>(std::sqrt(-2 * std::log(random.unit())) *
                               std::cos(2 * M_PI * random.unit()));
  }
  return values;
}

/// Fills with make(normal): five picks a draw.
template <class T, class Make>
void fill(std::vector<T>& data, SplitMix64& random, const Normals& values, const Make& make) {
  std::array<T, std::tuple_size_v<Normals>> made;
  std::transform(values.begin(), values.end(), made.begin(), make);
  uint64_t bits = 0;
  for (size_t i = 0; i < data.size(); ++i) {
    bits = i % 5 == 0 ? random.next() : bits >> 12;
    data[i] = made[bits & 4095];
  }
}

/// Cosines, then sines, of each position: angles as the model has them, in f32.
std::vector<float> angles(const Problem& p, int64_t positions) {
  const int64_t half = p.head_dim / 2;
  std::vector<float> table(static_cast<size_t>(positions * p.head_dim));
  for (int64_t j = 0; j < half; ++j) {
    const double exponent = 2.0 * static_cast<double>(j) / static_cast<double>(p.head_dim);
    const float frequency = 1.0F / static_cast<float>(std::pow(p.rope_theta, exponent));
    for (int64_t at = 0; at < positions; ++at) {
      const auto angle = static_cast<double>(static_cast<float>(at) * frequency);
      float* row = table.data() + at * p.head_dim;
      row[j] = static_cast<float>(std::cos(angle));
      row[half + j] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

int64_t cache_width(const Problem& p) { return p.num_kv_heads * p.head_dim; }

/// Tokens of every request, their places in the caches, and the positions.
void lay_out(const Shape& shape, Step& step) {
  const Problem& p = step.problem;
  const std::vector<int64_t> all = contexts(shape.lengths, p.batch, p.q_len);
  step.page_table = page_table(shape);
  step.cu_seqlens_q.push_back(0);
  int64_t sum = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t context = all[static_cast<size_t>(b)];
    sum += context;
    step.cache_seqlens.push_back(static_cast<int32_t>(context));
    step.seq_lens.push_back(static_cast<int32_t>(context - p.q_len));
    step.cu_seqlens_q.push_back(static_cast<int32_t>((b + 1) * p.q_len));
    for (int64_t at = context - p.q_len; at < context; ++at) {
      const int64_t page =
          step.page_table[static_cast<size_t>(b * p.max_pages() + at / p.page_size)];
      step.positions.push_back(at);
      step.cache_loc.push_back(page * p.page_size + at % p.page_size);
    }
  }
  step.mean_context = (sum + p.batch - 1) / p.batch;
}

/// What make_step() will take.
double bytes_of(const Shape& shape) {
  const Problem& p = shape.problem;
  const double caches = 2.0 * static_cast<double>(pool_pages(shape)) *
                        static_cast<double>(p.page_size * cache_width(p));
  return caches + 4.0 * static_cast<double>(p.batch) * static_cast<double>(p.max_pages()) +
         4.0 * static_cast<double>(p.tokens()) * static_cast<double>(p.qkv_width()) +
         (p.rope() ? 4.0 * static_cast<double>(p.max_context * p.head_dim) : 0);
}

/// Codes in order of their values, so that neighbours differ by one.
int step_of(uint8_t code) { return (code & 0x80) != 0 ? -(code & 0x7F) : code; }
bool is_nan(uint8_t code) { return (code & 0x7F) == 0x7F; }

/// Empty where the rows are the expected ones.
std::string judge_rows(const char* name, const std::vector<uint8_t>& expected, const uint8_t* got) {
  const auto count = static_cast<int64_t>(expected.size());
  int64_t differing = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t want = expected[static_cast<size_t>(i)];
    if (got[i] == want) continue;
    ++differing;
    if (is_nan(got[i]) != is_nan(want) || std::abs(step_of(got[i]) - step_of(want)) > 1) {
      return std::string(name) + ": element " + std::to_string(i) +
             " of the step's rows has code " + std::to_string(got[i]) + ", expected " +
             std::to_string(want);
    }
  }
  const auto limit = std::max(kCodesThatMayDiffer,
                              static_cast<int64_t>(kShareOfCodes * static_cast<double>(count)));
  if (differing <= limit) return "";
  return std::string(name) + ": " + std::to_string(differing) +
         " codes of the step's rows are one "
         "step off, allowed are " +
         std::to_string(limit);
}

}  // namespace

Buffers Step::buffers() {
  Buffers b;
  b.qkv = qkv.data();
  b.positions = positions.data();
  b.cache_loc = cache_loc.data();
  b.seq_lens = seq_lens.data();
  b.cache_seqlens = cache_seqlens.data();
  b.cu_seqlens_q = cu_seqlens_q.data();
  b.page_table = page_table.data();
  b.k_scale = b.v_scale = &kv_scale;
  b.cos_sin = cos_sin.empty() ? nullptr : cos_sin.data();
  b.k_cache = k_cache.data();
  b.v_cache = v_cache.data();
  return b;
}

std::optional<Step> make_step(std::string_view shape_key, int64_t max_bytes, uint64_t seed,
                              std::string& reason) {
  auto shape = parse_shape(shape_key);
  if (!shape) {
    reason = shape.error();
    return std::nullopt;
  }
  shape->lengths.pool_bytes = 1;  // as large as the tokens need
  const double bytes = bytes_of(*shape);
  if (bytes > static_cast<double>(max_bytes)) {
    reason = "takes " + std::to_string(static_cast<int64_t>(bytes / (1 << 20)) + 1) +
             " MiB, more than allowed";
    return std::nullopt;
  }
  Step step;
  const Problem& p = step.problem = shape->problem;
  lay_out(*shape, step);
  step.kv_scale = static_cast<float>(p.kv_scale);
  SplitMix64 random(seed);
  const Normals values = normals(random);
  step.qkv.resize(static_cast<size_t>(p.tokens() * p.qkv_width()));
  fill(step.qkv, random, values, f32_to_bf16);
  const auto cached = [&](float x) { return f32_to_e4m3(x / step.kv_scale); };
  const auto rows = static_cast<size_t>(pool_pages(*shape) * p.page_size);
  for (std::vector<uint8_t>* cache : {&step.k_cache, &step.v_cache}) {
    cache->resize(rows * static_cast<size_t>(cache_width(p)));
    fill(*cache, random, values, cached);
    for (const int64_t row : step.cache_loc) {
      std::fill_n(cache->begin() + row * cache_width(p), cache_width(p), kPoison);
    }
  }
  if (p.rope()) step.cos_sin = angles(p, p.max_context);
  return step;
}

ExpectedStep expected_step(Step& step) {
  const Problem& p = step.problem;
  const Buffers in = step.buffers();
  const Prepared prepared = prepare(p, in);
  store(p, prepared, in);
  const std::vector<Pair> pairs = sample_pairs(p, in, kPairBudget, 1);
  const Attention exact = attention(p, in, prepared.q8.data(), pairs);
  ExpectedStep expected;
  std::vector<uint16_t> o(static_cast<size_t>(p.tokens() * p.num_q_heads * p.head_dim));
  const double* from = exact.o.data();
  for (const Pair& pair : pairs) {
    for (int64_t i = 0; i < p.q_len; ++i, from += p.head_dim) {
      const int64_t at = ((pair.request * p.q_len + i) * p.num_q_heads + pair.head) * p.head_dim;
      expected.offsets.push_back(at);
      std::transform(from, from + p.head_dim, o.begin() + at,
                     [](double x) { return f32_to_bf16(static_cast<float>(x)); });
    }
  }
  const std::vector<double> out = gate(p, in, o.data());
  for (const int64_t at : expected.offsets) {
    expected.out.insert(expected.out.end(), out.begin() + at, out.begin() + at + p.head_dim);
  }
  expected.k_rows = prepared.k8;
  expected.v_rows = prepared.v8;
  return expected;
}

StepVerdict judge_step(const Step& step, const ExpectedStep& expected, const uint16_t* out,
                       const uint8_t* k_rows, const uint8_t* v_rows) {
  const Problem& p = step.problem;
  StepVerdict verdict;
  for (int64_t i = 0; i < p.tokens() * p.num_q_heads * p.head_dim; ++i) {
    if (std::isfinite(bf16_to_f32(out[i]))) continue;
    verdict.failure =
        "out: element " + std::to_string(i) + " is no finite number, or never written";
    return verdict;
  }
  double error = 0, want = 0, have = 0, both = 0;
  for (size_t row = 0; row < expected.offsets.size(); ++row) {
    for (int64_t d = 0; d < p.head_dim; ++d) {
      const double e = expected.out[row * static_cast<size_t>(p.head_dim) + static_cast<size_t>(d)];
      const double g = bf16_to_f32(out[expected.offsets[row] + d]);
      error += (g - e) * (g - e);
      want += e * e;
      have += g * g;
      both += e * g;
    }
  }
  verdict.rel_rms = std::sqrt(error / want);
  verdict.cosine = both / std::sqrt(want * have);
  if (!(verdict.rel_rms <= kRelRmsLimit)) {  // so that NaN fails
    verdict.failure = "out: relRMS " + std::to_string(verdict.rel_rms) + ", allowed is 0.03";
  } else if (!(verdict.cosine >= kCosineLimit)) {
    verdict.failure = "out: cosine " + std::to_string(verdict.cosine) + ", required is 0.998";
  } else {
    verdict.failure = judge_rows("k_cache", expected.k_rows, k_rows);
    if (verdict.failure.empty()) verdict.failure = judge_rows("v_cache", expected.v_rows, v_rows);
  }
  return verdict;
}

}  // namespace muse::reference
