// SPDX-License-Identifier: Apache-2.0
// The reference against cases with exact answers and against slow models of its own formulas.
#include "variants/reference/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "variants/numerics.h"
#include "variants/random.h"

namespace muse::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Shape shape_of(const Problem& problem, int64_t context) {
  Shape shape{problem, {}};
  shape.lengths.context = context;
  shape.lengths.pool_bytes = 1 << 20;
  shape.problem.max_context = default_max_context(shape);
  return shape;
}

double normal(SplitMix64& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.unit();
  return sum;
}

// All inputs of a step in host memory. Caches hold NaN wherever no key of a request lies; what a
// key holds depends on (request, key, head, d) alone, not on where its page is.
struct Step {
  Problem problem;
  std::vector<int64_t> tokens;  // cache_seqlens
  std::vector<uint16_t> qkv;
  std::vector<int64_t> positions, cache_loc;
  std::vector<int32_t> seq_lens, cache_seqlens, pages;
  std::vector<float> cos_sin;
  std::vector<uint8_t> k, v, q8;
  float k_scale, v_scale;

  explicit Step(const Shape& shape, double q_size = 1)
      : problem(shape.problem), pages(page_table(shape)) {
    const Problem& p = problem;
    tokens = contexts(shape.lengths, p.batch, p.q_len);
    SplitMix64 random(11);
    for (int64_t i = 0; i < p.tokens() * p.qkv_width(); ++i) {
      qkv.push_back(f32_to_bf16(static_cast<float>(normal(random))));
    }
    for (int64_t i = 0; i < p.tokens() * p.num_q_heads * p.head_dim; ++i) {
      q8.push_back(f32_to_e4m3(static_cast<float>(q_size * normal(random))));
    }
    k.assign(static_cast<size_t>(pool_pages(shape) * p.page_size * row()), kE4m3Nan);
    v = k;
    for (int64_t b = 0; b < p.batch; ++b) {
      cache_seqlens.push_back(static_cast<int32_t>(tokens[b]));
      seq_lens.push_back(static_cast<int32_t>(tokens[b] - p.q_len));
      for (int64_t i = 0; i < p.q_len; ++i) {
        positions.push_back(seq_lens.back() + i);
        cache_loc.push_back(row_of(b, positions.back()));
      }
      for (int64_t key = 0; key < tokens[b]; ++key) {
        SplitMix64 own(static_cast<uint64_t>(b * 1000003 + key));
        fill(k, b, key, [&](int64_t, int64_t) { return normal(own); });
        fill(v, b, key, [&](int64_t, int64_t) { return 1 + normal(own); });
      }
    }
    for (int64_t position = 0; position < 2 * p.max_context; ++position) {
      for (int64_t j = 0; j < p.head_dim; ++j) {
        const double angle = static_cast<double>(position) / (1.0 + (j % (p.head_dim / 2)));
        cos_sin.push_back(
            static_cast<float>(j < p.head_dim / 2 ? std::cos(angle) : std::sin(angle)));
      }
    }
    k_scale = v_scale = static_cast<float>(p.kv_scale);
  }

  int64_t row() const { return problem.num_kv_heads * problem.head_dim; }
  int64_t row_of(int64_t b, int64_t key) const {
    const int64_t page = pages[b * problem.max_pages() + key / problem.page_size];
    return page * problem.page_size + key % problem.page_size;
  }
  void fill(std::vector<uint8_t>& cache, int64_t b, int64_t key,
            const std::function<double(int64_t head, int64_t d)>& value) {
    for (int64_t x = 0; x < row(); ++x) {
      cache[row_of(b, key) * row() + x] =
          f32_to_e4m3(static_cast<float>(value(x / problem.head_dim, x % problem.head_dim)));
    }
  }
  Buffers buffers() {
    Buffers in;
    in.qkv = qkv.data();
    in.positions = positions.data();
    in.cache_loc = cache_loc.data();
    in.seq_lens = seq_lens.data();
    in.cache_seqlens = cache_seqlens.data();
    in.page_table = pages.data();
    in.k_scale = &k_scale;
    in.v_scale = &v_scale;
    in.cos_sin = cos_sin.data();
    in.k_cache = k.data();
    in.v_cache = v.data();
    return in;
  }
  std::vector<Pair> pairs() { return sample_pairs(problem, buffers(), int64_t{1} << 40, 1); }
  Attention attend() { return attention(problem, buffers(), q8.data(), pairs()); }
};

double rms_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double error = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    size += a[i] * a[i];
  }
  return std::sqrt(error / size);
}

// Section 2 in double, rounded to bf16 where the function is.
uint8_t slow_q_or_k(const Step& step, int64_t token, int64_t head, int64_t d, double scale) {
  const Problem& p = step.problem;
  const uint16_t* x = step.qkv.data() + token * p.qkv_width() + head * p.head_dim;
  double sum = 0;
  for (int64_t j = 0; j < p.head_dim; ++j) sum += std::pow(bf16_to_f32(x[j]), 2);
  const double r = 1 / std::sqrt(sum / static_cast<double>(p.head_dim) + 1e-5);
  const auto y = [&](int64_t j) {
    return double{round_to_bf16(static_cast<float>(bf16_to_f32(x[j]) * r))};
  };
  double z = y(d);
  if (p.rope()) {
    const float* table = step.cos_sin.data() + step.positions[token] * p.head_dim;
    const double c = table[d / 2];
    const double s = table[p.head_dim / 2 + d / 2];
    z = d % 2 == 0 ? y(d) * c - y(d + 1) * s : y(d) * c + y(d - 1) * s;
    z = round_to_bf16(static_cast<float>(z));
  }
  if (scale != 1) z = round_to_bf16(static_cast<float>(z / scale));
  return f32_to_e4m3(static_cast<float>(z));
}

TEST(Prepare, MatchesTheFormulasInDoubleButForRareRoundings) {
  for (double scale : {1.0, 1.3}) {
    for (double theta : {0.0, 500000.0}) {
      const Problem problem{.batch = 5, .q_len = 3, .rope_theta = theta, .kv_scale = scale};
      Step step(shape_of(problem, 40));
      for (int64_t& position : step.positions) position += 7;  // not seq_lens + i
      const Prepared got = prepare(step.problem, step.buffers());
      int64_t wrong = 0;
      for (int64_t token = 0; token < 15; ++token) {
        for (int64_t x = 0; x < 18 * 64; ++x) {
          const bool is_q = x < 16 * 64;
          const uint8_t expected =
              slow_q_or_k(step, token, x / 64, x % 64, is_q ? 1.0 : step.k_scale);
          wrong += expected != (is_q ? got.q8[token * 1024 + x] : got.k8[token * 128 + x - 1024]);
        }
        for (int64_t x = 0; x < 128; ++x) {
          const float value = bf16_to_f32(step.qkv[token * 2304 + 18 * 64 + x]);
          wrong += got.v8[token * 128 + x] !=
                   f32_to_e4m3(scale == 1 ? value : round_to_bf16(value / step.v_scale));
        }
      }
      EXPECT_LE(wrong, 2);
    }
  }
}

TEST(Prepare, RotatesInterleavedPairs) {
  Step step(shape_of({.rope_theta = 500000}, 1));
  for (int64_t j = 0; j < 64; ++j) {
    step.qkv[j] = f32_to_bf16(j % 2 == 0 ? 1.0F : 0.0F);
    step.cos_sin[j] = j < 32 ? 0.0F : 1.0F;  // a quarter turn
  }
  const Prepared got = prepare(step.problem, step.buffers());
  const uint8_t root2 = f32_to_e4m3(1.4140625F);
  for (int64_t j = 0; j < 64; ++j) EXPECT_EQ(got.q8[j] & 0x7F, j % 2 == 0 ? 0 : root2) << j;
}

TEST(Prepare, DividesByTheScale) {
  // At this scale, and few others, multiplying by the reciprocal is another function.
  const float scale = f32_from_bits(0x3F061861U);
  Step step(shape_of({.batch = 512, .kv_scale = scale}, 1));
  for (size_t i = 0; i < step.qkv.size(); ++i) step.qkv[i] = static_cast<uint16_t>(i);
  const Prepared got = prepare(step.problem, step.buffers());
  int64_t differ = 0;
  for (int64_t x = 0; x < 512 * 128; ++x) {
    const float value = bf16_to_f32(step.qkv[x / 128 * 2304 + 18 * 64 + x % 128]);
    ASSERT_EQ(got.v8[x], f32_to_e4m3(round_to_bf16(value / scale)));
    differ += got.v8[x] != f32_to_e4m3(round_to_bf16(value * (1 / scale)));
  }
  EXPECT_GT(differ, 0);
}

TEST(Prepare, StoresAtCacheLocAndNowhereElse) {
  Step step(shape_of({.batch = 3, .q_len = 2, .page_size = 16}, 20));
  std::swap(step.cache_loc[0], step.cache_loc[5]);  // not where the page table says
  const Prepared prepared = prepare(step.problem, step.buffers());
  std::vector<uint8_t> k = step.k, v = step.v;
  for (int64_t token = 0; token < 6; ++token) {
    for (int64_t x = 0; x < 128; ++x) {
      k[step.cache_loc[token] * 128 + x] = prepared.k8[token * 128 + x];
      v[step.cache_loc[token] * 128 + x] = prepared.v8[token * 128 + x];
    }
  }
  store(step.problem, prepared, step.buffers());
  EXPECT_EQ(step.k, k);
  EXPECT_EQ(step.v, v);
}

TEST(Attention, OfOneKeyIsTheScaledValue) {
  Step step(shape_of({.batch = 2, .kv_scale = 1.3}, 1));
  const Attention got = step.attend();
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t x = 0; x < 16 * 64; ++x) {
      const int64_t from = step.row_of(b, 0) * 128 + x / 64 / 8 * 64 + x % 64;
      EXPECT_EQ(got.o[b * 1024 + x], double{step.v_scale} * e4m3_to_f32(step.v[from]));
    }
  }
}

TEST(Attention, OfEqualKeysIsTheMean) {
  Step step(shape_of({.page_size = 16}, 100));
  for (int64_t key = 0; key < 100; ++key) {
    step.fill(step.k, 0, key, [](int64_t, int64_t d) { return d % 5; });
    step.fill(step.v, 0, key, [&](int64_t head, int64_t d) { return (key + d + head) % 10; });
  }
  for (double o : step.attend().o) EXPECT_EQ(o, 4.5);
}

TEST(Attention, OfOneHotScoresIsThatValueAndItsScore) {
  Step step(shape_of({.q_len = 1}, 300));
  std::fill(step.q8.begin(), step.q8.end(), f32_to_e4m3(4));
  for (int64_t key = 0; key < 300; ++key) {
    step.fill(step.k, 0, key, [&](int64_t, int64_t) { return key == 123 ? 16 : 0; });
    step.fill(step.v, 0, key, [&](int64_t, int64_t d) { return key == 123 ? d % 8 : 7; });
  }
  const Attention got = step.attend();
  for (size_t x = 0; x < got.o.size(); ++x) EXPECT_EQ(got.o[x], x % 8);
  const double score = double{step.problem.softmax_scale()} * 64 * 4 * 16;
  for (double lse : got.lse) EXPECT_NEAR(lse, score / std::log(2.0), 1e-9);
}

// V marks both edges of what a query sees, and is huge on the other side of them.
TEST(Attention, SeesTheWindowAndNothingBeyond) {
  for (int64_t window : {0, 1, 2, 128, 2048}) {
    for (int64_t q_len : {1, 3}) {
      for (int64_t page_size : {1, 16}) {
        const Problem problem{.q_len = q_len, .page_size = page_size, .window = window};
        Step step(shape_of(problem, 2200));
        std::fill(step.q8.begin(), step.q8.end(), uint8_t{0});  // all attended keys weigh the same
        for (int64_t i = 0; i < q_len; ++i) {
          const int64_t own = 2200 - q_len + i;
          const int64_t low = window == 0 ? 0 : own - (window - 1);
          for (int64_t key = 0; key < 2200; ++key) {
            const bool seen = low <= key && key <= own;
            const double mark = key == low || key == own ? 1 : 0;
            step.fill(step.v, 0, key, [&](int64_t, int64_t) { return seen ? mark : 448; });
          }
          const Attention got = step.attend();
          const double marks = low == own ? 1 : 2;
          const double expected = marks / static_cast<double>(own - low + 1);
          for (int64_t h = 0; h < 16; ++h) EXPECT_EQ(got.o[(h * q_len + i) * 64], expected);
          EXPECT_NEAR(got.lse[i], std::log2(own - low + 1), 1e-12);
        }
      }
    }
  }
}

TEST(Attention, IgnoresWhatLiesOutsideTheWindow) {
  const Shape shape = shape_of({.batch = 3, .q_len = 2, .page_size = 16, .window = 50}, 333);
  Step clean(shape), poisoned(shape);
  for (int64_t b = 0; b < 3; ++b) {
    for (int64_t key = 0; key < 331 - 49; ++key) {
      poisoned.fill(poisoned.k, b, key, [](int64_t, int64_t) { return kNan; });
      poisoned.fill(poisoned.v, b, key, [](int64_t, int64_t) { return kNan; });
    }
    for (int64_t page = 0; page < (331 - 49) / 16; ++page) poisoned.pages[b * 21 + page] = -1;
  }
  EXPECT_EQ(clean.attend().o, poisoned.attend().o);
  const auto fa3 = [](Step& step) {
    return attention_fa3(step.problem, step.buffers(), step.q8.data(), step.pairs()).o;
  };
  EXPECT_EQ(fa3(clean), fa3(poisoned));
}

TEST(Attention, DependsNeitherOnPageOrderNorOnPageSizeNorOnThePairsBesides) {
  Shape shape = shape_of({.batch = 3, .q_len = 2}, 200);
  Step first(shape);
  const Attention expected = first.attend();
  for (PageOrder order : {PageOrder::kContiguous, PageOrder::kReversed, PageOrder::kStrideB}) {
    for (int64_t page_size : {1, 16, 64}) {
      shape.problem.page_size = page_size;
      shape.problem.max_context = default_max_context(shape);
      shape.lengths.page_order = order;
      Step step(shape);
      const Attention got = step.attend();
      EXPECT_EQ(got.o, expected.o);
      EXPECT_EQ(got.lse, expected.lse);
    }
  }
  const Attention one = attention(first.problem, first.buffers(), first.q8.data(), {{1, 9}});
  EXPECT_TRUE(std::equal(one.o.begin(), one.o.end(), expected.o.begin() + (16 + 9) * 128));
}

TEST(Attention, OfAFullyMaskedQueryIsZeroWithLseMinusInfinity) {
  Step step(shape_of({.q_len = 2}, 2));
  step.cache_seqlens[0] = 1;  // the first query's own key would be -1
  for (const auto attend : {attention, attention_fa3}) {
    const Attention got = attend(step.problem, step.buffers(), step.q8.data(), {{0, 3}});
    EXPECT_EQ(got.lse[0], -kInfinity);
    EXPECT_TRUE(std::isfinite(got.lse[1]));
    EXPECT_TRUE(std::all_of(got.o.begin(), got.o.begin() + 64, [](double o) { return o == 0; }));
    EXPECT_NE(got.o[64], 0);
  }
}

TEST(AttentionFa3, ErrsAsItsPrecisionSays) {
  struct Case {
    double q_size, least, most;
  };
  for (const Case& each : {Case{1, 1e-3, 3e-2}, Case{0.01, 1e-3, 3e-2}}) {  // peaky and flat
    Step step(shape_of({.batch = 2, .q_len = 2, .kv_scale = 0.7}, 3000), each.q_size);
    const Attention exact = step.attend();
    const Attention got = attention_fa3(step.problem, step.buffers(), step.q8.data(), step.pairs());
    const double error = rms_difference(exact.o, got.o);
    EXPECT_GT(error, each.least);
    EXPECT_LT(error, each.most);
    for (size_t i = 0; i < exact.lse.size(); ++i) EXPECT_NEAR(exact.lse[i], got.lse[i], 1e-3);
    for (double o : got.o) ASSERT_EQ(o, round_to_bf16(static_cast<float>(o)));
  }
}

TEST(AttentionFa3, RoundsPButNotItsSum) {
  // Two keys whose P differ: 2^8 * (1, e^-s); only the numerator is rounded to E4M3.
  Step step(shape_of({.qk_scale_factor = 1, .sm_scale = 1.0 / 64}, 2));
  std::fill(step.q8.begin(), step.q8.end(), f32_to_e4m3(1));
  step.fill(step.k, 0, 0, [](int64_t, int64_t) { return 0.875; });
  step.fill(step.k, 0, 1, [](int64_t, int64_t) { return 0.5; });
  step.fill(step.v, 0, 0, [](int64_t, int64_t) { return 0; });
  step.fill(step.v, 0, 1, [](int64_t, int64_t) { return 1; });
  const Attention got = attention_fa3(step.problem, step.buffers(), step.q8.data(), {{0, 0}});
  const double weight = 256 * std::exp(-0.375);  // 175.9; its E4M3 neighbour is 176
  const double expected = 176 / (256 + weight);
  EXPECT_NEAR(got.o[0], expected, expected / 512);
  EXPECT_EQ(got.o[0], round_to_bf16(static_cast<float>(expected)));
}

// Partials of each split of the keys, by the formula.
struct Partials {
  std::vector<float> o, lse;
  std::vector<int32_t> n_splits;
};

Partials split(Step& step, int64_t splits, int64_t capacity) {
  const Problem& p = step.problem;
  const int64_t rows = p.tokens() * p.num_q_heads;
  Partials result{std::vector<float>(static_cast<size_t>(capacity * rows * p.head_dim), kNan),
                  std::vector<float>(static_cast<size_t>(capacity * rows), kNan),
                  std::vector<int32_t>(static_cast<size_t>(p.batch), int32_t(splits))};
  const double c = double{p.softmax_scale()} * step.k_scale;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t token = row / p.num_q_heads, b = token / p.q_len;
    const int64_t kv = row % p.num_q_heads / p.group() * p.head_dim;
    const int64_t keys = step.cache_seqlens[b] - p.q_len + token % p.q_len + 1;
    for (int64_t s = 0; s < splits; ++s) {
      const int64_t chunk = 64;  // the last splits of short requests stay empty
      const int64_t high = s + 1 == splits ? keys : std::min(keys, (s + 1) * chunk);
      double sum = 0;
      std::vector<double> o(static_cast<size_t>(p.head_dim));
      for (int64_t key = s * chunk; key < high; ++key) {
        const int64_t at = step.row_of(b, key) * step.row() + kv;
        double score = 0;
        for (int64_t d = 0; d < p.head_dim; ++d) {
          score += double{e4m3_to_f32(step.q8[row * p.head_dim + d])} * e4m3_to_f32(step.k[at + d]);
        }
        const double weight = std::exp(c * score);
        sum += weight;
        for (int64_t d = 0; d < p.head_dim; ++d) {
          o[d] += weight * step.v_scale * e4m3_to_f32(step.v[at + d]);
        }
      }
      result.lse[s * rows + row] = static_cast<float>(std::log2(sum));  // log2(0) is -infinity
      for (int64_t d = 0; sum > 0 && d < p.head_dim; ++d) {
        result.o[(s * rows + row) * p.head_dim + d] = static_cast<float>(o[d] / sum);
      }
    }
  }
  return result;
}

TEST(Combine, OfSplitsIsTheUnsplitAttention) {
  Shape shape = shape_of({.batch = 3, .q_len = 2}, 200);
  shape.lengths = {.profile = Profile::kList, .context = 200, .list = {200, 2, 64}};
  Step step(shape, 0.3);
  Partials partials = split(step, 3, 5);  // splits 3 and 4 hold NaN
  Buffers in = step.buffers();
  in.partial_o = partials.o.data();
  in.partial_lse = partials.lse.data();
  in.n_splits = partials.n_splits.data();
  in.split_capacity = 5;
  const std::vector<double> got = combine(step.problem, in);
  const Attention expected = step.attend();
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t d = i % 64, head = i / 64 % 16, token = i / 64 / 16;
    const size_t at = ((token / 2 * 16 + head) * 2 + token % 2) * 64 + d;
    ASSERT_NEAR(got[i], expected.o[at], 1e-5) << i;
  }
}

TEST(Combine, DefinesEmptyRowsAndRefusesImpossibleSplitCounts) {
  const Problem problem{.batch = 4, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 8};
  const float empty = -std::numeric_limits<float>::infinity();
  std::vector<uint16_t> o(2 * 4 * 8, f32_to_bf16(kNan));
  std::fill(o.begin() + (4 + 1) * 8, o.begin() + (4 + 2) * 8, f32_to_bf16(3));
  std::vector<float> lse = {empty, empty, 0, 0, empty, 7, 0, 0};
  std::vector<int32_t> n_splits = {2, 2, 3, 0};
  Buffers in;
  in.partial_o = o.data();
  in.partial_type = PartialType::kBf16;
  in.partial_lse = lse.data();
  in.n_splits = n_splits.data();
  in.split_capacity = 2;
  const std::vector<double> got = combine(problem, in);
  EXPECT_EQ(got[0], 0);              // all splits empty
  EXPECT_EQ(got[8], 3);              // one split empty, its NaN unread
  EXPECT_TRUE(std::isnan(got[16]));  // more splits than there are
  EXPECT_TRUE(std::isnan(got[24]));  // none
}

TEST(Combine, LetsANanLogSumExpThrough) {
  const Problem problem{.num_q_heads = 1, .num_kv_heads = 1, .head_dim = 8};
  std::vector<float> o(2 * 8, 1.0F), lse = {kNan, -std::numeric_limits<float>::infinity()};
  int32_t n_splits = 2;
  Buffers in;
  in.partial_o = o.data();
  in.partial_lse = lse.data();
  in.n_splits = &n_splits;
  in.split_capacity = 2;
  EXPECT_TRUE(std::isnan(combine(problem, in)[0]));
}

TEST(Gate, FollowsItsFormula) {
  Step step(shape_of({.batch = 2, .q_len = 2}, 5));
  std::vector<uint16_t> o(4 * 1024);
  SplitMix64 random(5);
  for (uint16_t& x : o) x = f32_to_bf16(static_cast<float>(normal(random)));
  std::fill(o.begin(), o.begin() + 64, uint16_t{0});
  // Gates of the token's second head: everything a bf16 can hold at its ends.
  const size_t gates = (16 + 4) * 64;
  step.qkv[gates + 64] = 0xFF80;
  step.qkv[gates + 65] = 0x7F80;
  step.qkv[gates + 66] = 0xFF7F;
  const std::vector<double> got = gate(step.problem, step.buffers(), o.data());
  for (int64_t x = 0; x < 64; ++x) EXPECT_EQ(got[x], 0);
  for (double value : got) ASSERT_TRUE(std::isfinite(value));
  EXPECT_EQ(got[64], 0);
  EXPECT_EQ(got[66], 0);
  for (int64_t row = 1; row < 64; ++row) {
    double sum = 0;
    for (int64_t d = 0; d < 64; ++d) sum += std::pow(bf16_to_f32(o[row * 64 + d]), 2);
    const double r = 1 / std::sqrt(sum / 64 + 1e-5);
    for (int64_t d = 0; d < 64; ++d) {
      const size_t at = row / 16 * 2304 + gates + row % 16 * 64 + d;
      const double g = bf16_to_f32(step.qkv[at]);
      const double expected = bf16_to_f32(o[row * 64 + d]) * r / (1 + std::exp(-g));
      ASSERT_NEAR(got[row * 64 + d], expected, 1e-9);
    }
  }
}

struct SampleRig {
  Problem problem{.batch = 6};
  std::vector<int32_t> tokens = {64, 9000, 65, 30000, 20000, 1};
  std::vector<Pair> sample(int64_t budget, uint64_t seed) const {
    Buffers in;
    in.cache_seqlens = tokens.data();
    return sample_pairs(problem, in, budget, seed);
  }
};

TEST(SamplePairs, TakesAllWithinTheBudget) {
  const SampleRig rig;
  const int64_t total = 16 * std::accumulate(rig.tokens.begin(), rig.tokens.end(), int64_t{0});
  const std::vector<Pair> all = rig.sample(total, 1);
  EXPECT_EQ(all.size(), 96U);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  EXPECT_LT(rig.sample(total / 2, 1).size(), 96U);
}

TEST(SamplePairs, KeepsTheBudgetTheShortRequestsAndTheLongest) {
  const SampleRig rig;
  for (int64_t budget : {0, 1, 30000, 70000, 300000}) {
    for (uint64_t seed = 1; seed < 20; ++seed) {
      const std::vector<Pair> pairs = rig.sample(budget, seed);
      EXPECT_TRUE(std::is_sorted(pairs.begin(), pairs.end()));
      EXPECT_EQ(std::adjacent_find(pairs.begin(), pairs.end()), pairs.end());
      std::vector<int64_t> count(6);
      int64_t work = 0;
      for (const Pair& pair : pairs) {
        ++count[pair.request];
        if (rig.tokens[pair.request] > 64) work += rig.tokens[pair.request];
      }
      EXPECT_EQ(count[0], 16);
      EXPECT_EQ(count[5], 16);
      EXPECT_GE(count[3], 1);
      EXPECT_LE(work, std::max<int64_t>(budget, 30000));
      EXPECT_GE(work, std::min<int64_t>(budget, 30000));
    }
  }
}

TEST(SamplePairs, FollowsTheSeed) {
  const SampleRig rig;
  EXPECT_EQ(rig.sample(300000, 1), rig.sample(300000, 1));
  EXPECT_NE(rig.sample(300000, 1), rig.sample(300000, 2));
}

}  // namespace
}  // namespace muse::reference
