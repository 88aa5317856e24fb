// SPDX-License-Identifier: Apache-2.0
// Shapes: keys both ways, validity, contexts and page tables; the list of buffers.
#include <gtest/gtest.h>

#include <algorithm>
#include <clocale>
#include <cmath>
#include <locale>
#include <set>

#include "variants/buffers.h"
#include "variants/lengths.h"
#include "variants/random.h"

namespace muse {
namespace {

Shape example() {
  Shape shape;
  shape.problem = {.batch = 8, .window = 2048, .rope_theta = 500000, .max_context = 4096};
  shape.lengths.context = 4096;
  return shape;
}

constexpr const char* kExample = "b8_l1_h16x2_d64_ps1_w2048_rope500000_kv1_t4096_uniform_random_s1";

template <class Value>
Value pick(SplitMix64& random, std::initializer_list<Value> values) {
  return *(values.begin() + random.below(static_cast<int64_t>(values.size())));
}

// Any valid shape.
Shape random_shape(SplitMix64& random) {
  Shape shape;
  Problem& p = shape.problem;
  Lengths& l = shape.lengths;
  p.batch = 1 + random.below(9);
  p.q_len = 1 + random.below(8);
  p.num_kv_heads = pick<int64_t>(random, {1, 2, 4});
  p.num_q_heads = p.num_kv_heads * pick<int64_t>(random, {1, 4, 8});
  p.head_dim = pick<int64_t>(random, {8, 64, 128});
  p.page_size = pick<int64_t>(random, {1, 16, 64});
  p.window = pick<int64_t>(random, {0, 1, 2, 128, 2048});
  p.rope_theta = pick(random, {0.0, 500000.0, 1e12, 10000.5});
  p.qk_scale_factor = pick(random, {5.473, 1.0, random.unit() + 1e-3});
  p.sm_scale = pick(random, {0.125, 1 / 3.0});
  p.kv_scale = pick(random, {1.0, 1.3, 0.7, 0.523809493});
  l.context = p.q_len + random.below(5000);
  l.profile =
      pick(random, {Profile::kUniform, Profile::kLognormal, Profile::kOutlier, Profile::kList});
  if (l.profile == Profile::kLognormal) l.sigma = pick(random, {1.2, 0.25, random.unit()});
  if (l.profile == Profile::kOutlier) l.rest = p.q_len + random.below(100);
  if (l.profile == Profile::kList) {
    for (int64_t b = 0; b < p.batch; ++b) l.list.push_back(p.q_len + random.below(200));
    l.context = *std::max_element(l.list.begin(), l.list.end());
  }
  l.page_order = pick(random, {PageOrder::kContiguous, PageOrder::kReversed, PageOrder::kRandom,
                               PageOrder::kStrideB});
  l.seed = pick<uint64_t>(random, {1, 7, random.next()});
  l.pool_bytes = pick<int64_t>(random, {kDefaultPoolBytes, 0, 1 << 20});
  p.max_context = default_max_context(shape) + p.page_size * pick<int64_t>(random, {0, 0, 3});
  return shape;
}

TEST(ShapeKey, IsTheDocumentedText) {
  Shape shape = example();
  EXPECT_EQ(key(shape), kExample);
  shape.problem.qk_scale_factor = 1;
  shape.problem.sm_scale = 0.1;
  shape.lengths.pool_bytes = 16 << 20;
  shape.problem.max_context = 8192;
  EXPECT_EQ(key(shape), std::string(kExample) + "_qk1_sm0.1_pool16777216_cap8192");
}

TEST(ShapeKey, WritesEveryProfile) {
  Shape shape = example();
  const auto tail = [&](Lengths lengths) {
    shape.lengths = std::move(lengths);
    shape.problem.batch = 3;
    shape.problem.max_context = default_max_context(shape);
    const std::string text = key(shape);
    return text.substr(text.find("_t") + 1);
  };
  EXPECT_EQ(tail({.profile = Profile::kLognormal, .context = 8000, .sigma = 1.2, .seed = 7}),
            "t8000_lognormal1.2_random_s7");
  EXPECT_EQ(tail({.profile = Profile::kOutlier, .context = 131072, .rest = 512}),
            "t131072_outlier512_random_s1");
  EXPECT_EQ(tail({.profile = Profile::kList,
                  .context = 65,
                  .list = {63, 64, 65},
                  .page_order = PageOrder::kStrideB}),
            "t65_list63.64.65_stride_b_s1");
}

TEST(ShapeKey, RoundTripsRandomShapes) {
  SplitMix64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const Shape shape = random_shape(random);
    ASSERT_EQ(check(shape), "") << key(shape);
    const auto back = parse_shape(key(shape));
    ASSERT_TRUE(back) << back.error();
    EXPECT_EQ(*back, shape) << key(shape);
    EXPECT_EQ(key(*back), key(shape));
  }
}

struct CommaNumbers : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(ShapeKey, KnowsNoLocale) {
  Shape shape = example();
  shape.problem.kv_scale = 1.3;
  const std::string expected = key(shape);
  const std::locale before = std::locale::global(std::locale(std::locale(), new CommaNumbers));
  std::setlocale(LC_ALL, "de_DE.UTF-8");  // where there is one, for C's functions
  const std::string text = key(shape);
  const auto back = parse_shape(text);
  std::setlocale(LC_ALL, "C");
  std::locale::global(before);
  EXPECT_EQ(text, expected);
  EXPECT_NE(text.find("_rope500000_kv1.3_"), std::string::npos);
  EXPECT_TRUE(back);
}

TEST(ShapeKey, NamesTheWrongPart) {
  struct Case {
    const char *from, *to, *expected;
  };
  const Case cases[] = {
      {"b8", "b", "part 'b' does not fit; expected b<batch>"},
      {"b8", "b08", "part 'b08' is written 'b8'"},
      {"b8", "b-8", "part 'b-8' does not fit"},
      {"b8", "b99999999999999999999", "does not fit; expected b<batch>"},
      {"b8", "b70000", "batch is 70000; allowed: 1 to 65536"},
      {"h16x2", "h16y2", "part 'h16y2' does not fit; expected h<query heads>x<kv heads>"},
      {"h16x2", "h16x3", "num_kv_heads is 3; allowed: a divisor of num_q_heads, 16"},
      {"rope500000", "rope5e5", "part 'rope5e5' does not fit"},
      {"rope500000", "ropenan", "part 'ropenan' does not fit"},
      {"kv1", "kv1.0", "part 'kv1.0' is written 'kv1'"},
      {"uniform", "uniform7", "part 'uniform7' does not fit"},
      {"uniform", "list", "part 'list' does not fit"},
      {"uniform", "list4096.", "part 'list4096.' does not fit"},
      {"uniform", "list4096.1", "list has 2 contexts; allowed: one per request, 8"},
      {"random", "stride", "part 'stride' does not fit"},
      {"s1", "s1_qk5.473", "part 'qk5.473' repeats a default"},
      {"s1", "s1_cap4096", "part 'cap4096' repeats a default"},
      {"s1", "s1_cap4095", "max_context is 4095; allowed: 4096 to"},
      {"s1", "s1_pool1_qk1", "part 'qk1' does not fit; expected nothing more"},
      {"s1", "s1_", "part '' does not fit; expected nothing more"},
      {"s1", "", "part '' does not fit; expected s<seed>"},
  };
  for (const Case& each : cases) {
    std::string text = kExample;
    text.replace(text.rfind(each.from), std::string(each.from).size(), each.to);
    const auto shape = parse_shape(text);
    ASSERT_FALSE(shape) << text;
    EXPECT_NE(shape.error().find(each.expected), std::string::npos) << shape.error();
  }
}

TEST(ShapeKey, RefusesEveryTruncation) {
  const std::string text = kExample;
  for (size_t size = 0; size < text.size(); ++size) EXPECT_FALSE(parse_shape(text.substr(0, size)));
}

TEST(ShapeCheck, NamesFieldValueAndRange) {
  const auto error = [](auto change) {
    Shape shape = example();
    change(shape.problem, shape.lengths);
    return check(shape);
  };
  using P = Problem;
  using L = Lengths;
  EXPECT_EQ(error([](P&, L&) {}), "");
  EXPECT_EQ(error([](P& p, L&) { p.batch = 0; }), "batch is 0; allowed: 1 to 65536");
  EXPECT_EQ(error([](P& p, L&) { p.q_len = 65; }), "q_len is 65; allowed: 1 to 64");
  EXPECT_EQ(error([](P& p, L&) { p.head_dim = 12; }), "head_dim is 12; allowed: a multiple of 8");
  EXPECT_EQ(error([](P& p, L&) { p.page_size = 3; }),
            "page_size is 3; allowed: a power of two up to 1024");
  EXPECT_EQ(error([](P& p, L&) { p.window = -1; }), "window is -1; allowed: 0 to 134217728");
  EXPECT_EQ(error([](P& p, L&) { p.rope_theta = 1; }),
            "rope_theta is 1; allowed: 0 (no RoPE) or above 1 up to 1000000000000");
  EXPECT_EQ(error([](P& p, L&) { p.kv_scale = std::nan(""); }),
            "kv_scale is nan; allowed: 1e-09 to 1000000000");
  EXPECT_EQ(error([](P& p, L&) { p.max_context = 4095; }),
            "max_context is 4095; allowed: 4096 to 134217728");
  EXPECT_EQ(error([](P& p, L&) { p = {.page_size = 16, .max_context = 4100}; }),
            "max_context is 4100; allowed: a multiple of page_size, 16");
  EXPECT_EQ(error([](P&, L& l) { l.context = 0; }), "context is 0; allowed: 1 to 134217728");
  EXPECT_EQ(error([](P&, L& l) { l.sigma = 1; }), "sigma is 1; allowed with profile uniform: 0");
  EXPECT_EQ(error([](P&, L& l) { l.profile = Profile::kOutlier; }),
            "rest is 0; allowed: 1 to 134217728");
  EXPECT_EQ(error([](P& p, L& l) { p.batch = 65536, p.max_context = l.context = 1 << 27; }),
            "pool_bytes and context give 8796093022208 pages; allowed: up to 2147483647");
  EXPECT_EQ(error([](P& p, L&) { p.batch = 65536, p.max_context = 1 << 27; }),
            "the buffers take 35253932261388 bytes; allowed: up to 1099511627776");
}

TEST(Contexts, FollowTheProfile) {
  EXPECT_EQ(contexts({.context = 9}, 3, 1), (std::vector<int64_t>{9, 9, 9}));
  EXPECT_EQ(contexts({.profile = Profile::kOutlier, .context = 9, .rest = 2}, 3, 1),
            (std::vector<int64_t>{9, 2, 2}));
}

TEST(Contexts, LognormalHasItsMeanAndIsSeeded) {
  const Lengths lengths{.profile = Profile::kLognormal, .context = 8000, .sigma = 1.2, .seed = 7};
  const std::vector<int64_t> all = contexts(lengths, 60000, 8);
  double sum = 0;
  for (int64_t tokens : all) sum += static_cast<double>(tokens);
  EXPECT_NEAR(sum / 60000, 8000, 400);
  EXPECT_GE(*std::min_element(all.begin(), all.end()), 8);
  const std::vector<int64_t> few = contexts(lengths, 5, 8);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin()));
  Lengths other = lengths;
  other.seed = 8;
  EXPECT_NE(contexts(other, 5, 8), few);
}

TEST(PageTable, HoldsNoPageTwiceAndNoneOutsideThePool) {
  SplitMix64 random(3);
  for (int i = 0; i < 300; ++i) {
    Shape shape = random_shape(random);
    shape.lengths.pool_bytes = pick<int64_t>(random, {0, 1 << 20});
    const std::vector<int32_t> table = page_table(shape);
    const std::vector<int64_t> tokens =
        contexts(shape.lengths, shape.problem.batch, shape.problem.q_len);
    const int64_t width = shape.problem.max_pages();
    std::set<int32_t> seen;
    for (int64_t b = 0; b < shape.problem.batch; ++b) {
      for (int64_t page = 0; page < width; ++page) {
        const int32_t physical = table[static_cast<size_t>(b * width + page)];
        if (page * shape.problem.page_size >= tokens[static_cast<size_t>(b)]) {
          ASSERT_EQ(physical, -1);
          continue;
        }
        ASSERT_GE(physical, 0);
        ASSERT_LT(physical, pool_pages(shape));
        ASSERT_TRUE(seen.insert(physical).second) << key(shape);
      }
    }
  }
}

TEST(PageTable, FollowsTheOrder) {
  Shape shape;
  shape.problem = {.batch = 2, .page_size = 16, .max_context = 48};
  shape.lengths = {.context = 48, .page_order = PageOrder::kContiguous, .pool_bytes = 0};
  EXPECT_EQ(page_table(shape), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  shape.lengths.page_order = PageOrder::kReversed;
  EXPECT_EQ(page_table(shape), (std::vector<int32_t>{5, 4, 3, 2, 1, 0}));
  shape.lengths.page_order = PageOrder::kStrideB;
  EXPECT_EQ(page_table(shape), (std::vector<int32_t>{0, 2, 4, 1, 3, 5}));
  shape.lengths.profile = Profile::kOutlier;
  shape.lengths.rest = 17;
  EXPECT_EQ(page_table(shape), (std::vector<int32_t>{0, 2, 4, 1, 3, -1}));
}

TEST(PageTable, RandomSpreadsOverALargePoolAndFollowsTheSeed) {
  Shape shape = example();
  EXPECT_EQ(pool_pages(shape), int64_t{1} << 22);
  const std::vector<int32_t> table = page_table(shape);
  EXPECT_EQ(table, page_table(shape));
  EXPECT_GT(*std::max_element(table.begin(), table.end()), 4'000'000);
  EXPECT_LT(*std::min_element(table.begin(), table.end()), 200'000);
  shape.lengths.seed = 2;
  EXPECT_NE(table, page_table(shape));
}

TEST(Buffers, SpecsCarryEveryMemberThatASetterKnows) {
  Problem problem{.batch = 2, .q_len = 3, .rope_theta = 10000, .max_context = 64};
  const Handoff partials{HandoffKind::kPartials, PartialType::kBf16, 4};
  const std::vector<BufferSpec> specs = buffer_specs(problem, 10, 100, partials);
  EXPECT_EQ(specs.size(), 20U);
  char memory[32];
  Buffers buffers;
  std::set<std::string_view> names;
  for (size_t i = 0; i < specs.size(); ++i) {
    set_buffer(buffers, specs[i].name, memory + i);
    EXPECT_GT(specs[i].bytes(), 0) << specs[i].name;
    names.insert(specs[i].name);
  }
  EXPECT_EQ(names.size(), specs.size());
  EXPECT_EQ(static_cast<const void*>(buffers.qkv), memory);
  EXPECT_EQ(static_cast<const void*>(buffers.o_tap), memory + 19);
  EXPECT_THROW(set_buffer(buffers, "nothing", memory), std::logic_error);
}

TEST(Buffers, SizesFollowTheProblem) {
  Problem problem{.batch = 2, .q_len = 3, .max_context = 64};
  const auto bytes = [&](std::string_view name, const Handoff& partials) -> int64_t {
    for (const BufferSpec& spec : buffer_specs(problem, 10, 100, partials)) {
      if (spec.name == name) return spec.bytes();
    }
    return -1;
  };
  EXPECT_EQ(bytes("qkv", {}), 6 * 2304 * 2);
  EXPECT_EQ(bytes("k_cache", {}), 10 * 2 * 64);
  EXPECT_EQ(bytes("page_table", {}), 2 * 64 * 4);
  EXPECT_EQ(bytes("cos_sin", {}), -1);
  EXPECT_EQ(bytes("partial_o", {}), -1);
  EXPECT_EQ(bytes("partial_o", {HandoffKind::kPartials, PartialType::kBf16, 4}),
            4 * 6 * 16 * 64 * 2);
  EXPECT_EQ(bytes("partial_lse", {HandoffKind::kPartials, PartialType::kF32, 4}), 4 * 6 * 16 * 4);
}

TEST(Spans, AreNamedByTheirEnds) {
  EXPECT_EQ(name(Span{Stage::kAttention, Stage::kAttention}), "attention");
  EXPECT_EQ(name(Span{Stage::kAttention, Stage::kCombine}), "attention..combine");
  EXPECT_EQ(name(kWholeStep), "prepare..gate");
}

}  // namespace
}  // namespace muse
