// SPDX-License-Identifier: Apache-2.0
// Input data: the same from the same seed, consistent with itself, and distributed as promised.
#include "tuner/inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "variants/numerics.h"

namespace muse::tuner {
namespace {

Shape small_shape() {
  Shape shape;
  shape.problem = {.batch = 3, .q_len = 2, .page_size = 16, .window = 40, .rope_theta = 500000};
  shape.lengths.profile = Profile::kList;
  shape.lengths.list = {2, 50, 130};
  shape.lengths.context = 130;
  shape.lengths.pool_bytes = 1 << 20;
  shape.problem.max_context = 144;
  return shape;
}

struct Statistics {
  double mean = 0, deviation = 0;
};

Statistics statistics(int64_t count, const std::function<double(int64_t)>& value) {
  double sum = 0, sum2 = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += value(i);
    sum2 += value(i) * value(i);
  }
  const double mean = sum / static_cast<double>(count);
  return {mean, std::sqrt(sum2 / static_cast<double>(count) - mean * mean)};
}

Statistics of_codes(const std::vector<uint8_t>& codes, double scale) {
  return statistics(static_cast<int64_t>(codes.size()),
                    [&](int64_t i) { return e4m3_to_f32(codes[static_cast<size_t>(i)]) * scale; });
}

TEST(Inputs, AreTheSameForTheSameSeedAndOthersForAnother) {
  const Inputs a = make_inputs(small_shape(), 1, Fill::kNormal);
  const Inputs b = make_inputs(small_shape(), 1, Fill::kNormal);
  const Inputs c = make_inputs(small_shape(), 2, Fill::kNormal);
  EXPECT_EQ(a.qkv, b.qkv);
  EXPECT_EQ(a.k_cache, b.k_cache);
  EXPECT_EQ(a.v_cache, b.v_cache);
  EXPECT_NE(a.qkv, c.qkv);
  EXPECT_NE(a.k_cache, c.k_cache);
  EXPECT_NE(a.k_cache, a.v_cache);
}

TEST(Inputs, CacheLocFollowsThePageTableAndPositionsFollowSeqLens) {
  const Inputs in = make_inputs(small_shape(), 1, Fill::kNormal);
  const Inputs shifted = make_inputs(small_shape(), 1, Fill::kNormal, 7);
  EXPECT_EQ(in.seq_lens, (std::vector<int32_t>{0, 48, 128}));
  EXPECT_EQ(in.cache_seqlens, (std::vector<int32_t>{2, 50, 130}));
  EXPECT_EQ(in.cu_seqlens_q, (std::vector<int32_t>{0, 2, 4, 6}));
  EXPECT_EQ(in.positions, (std::vector<int64_t>{0, 1, 48, 49, 128, 129}));
  EXPECT_EQ(shifted.positions, (std::vector<int64_t>{7, 8, 55, 56, 135, 136}));
  EXPECT_EQ(shifted.cache_loc, in.cache_loc);
  for (int64_t n = 0; n < 6; ++n) {
    const int64_t token = in.seq_lens[static_cast<size_t>(n / 2)] + n % 2;
    EXPECT_EQ(in.cache_loc[static_cast<size_t>(n)], in.row(n / 2, token));
  }
}

TEST(Inputs, TheWindowOfEachQueryHasItsOwnLeftEdge) {
  const Inputs in = make_inputs(small_shape(), 1, Fill::kNormal);
  EXPECT_EQ(first_attended(in, 0, 0), 0);
  EXPECT_EQ(first_attended(in, 1, 0), 9);
  EXPECT_EQ(first_attended(in, 1, 1), 10);
  EXPECT_EQ(first_attended(in, 2, 1), 90);
}

TEST(Inputs, RopeTableHasARowForEachPositionWithTheRoundingsOfF32) {
  const Inputs in = make_inputs(small_shape(), 1, Fill::kNormal, 5);
  ASSERT_EQ(in.rope_positions, 129 + 5 + 1);
  ASSERT_EQ(in.cos_sin.size(), static_cast<size_t>(in.rope_positions * 64));
  for (const int64_t pos : {0, 1, 77, 134}) {
    for (const int64_t j : {0, 1, 13, 31}) {
      const auto power = static_cast<float>(std::pow(500000.0, static_cast<double>(2 * j) / 64));
      const float angle = static_cast<float>(pos) * (1.0F / power);
      const float* row = in.cos_sin.data() + pos * 64;
      EXPECT_EQ(row[j], static_cast<float>(std::cos(double{angle})));
      EXPECT_EQ(row[32 + j], static_cast<float>(std::sin(double{angle})));
    }
  }
  Shape plain = small_shape();
  plain.problem.rope_theta = 0;
  const Inputs without = make_inputs(plain, 1, Fill::kNormal);
  EXPECT_TRUE(without.cos_sin.empty());
  EXPECT_EQ(without.rope_positions, 0);
  EXPECT_EQ(without.view().cos_sin, nullptr);
}

TEST(Inputs, NumbersAreDistributedAsTheFillSays) {
  for (const double scale : {1.0, 0.523809493}) {
    Shape shape = small_shape();
    shape.problem.kv_scale = scale;
    const Inputs normal = make_inputs(shape, 1, Fill::kNormal);
    const Inputs flat = make_inputs(shape, 1, Fill::kFlat);
    const Inputs offset = make_inputs(shape, 1, Fill::kMeanOne);
    const Statistics qkv = statistics(static_cast<int64_t>(normal.qkv.size()), [&](int64_t i) {
      return bf16_to_f32(normal.qkv[static_cast<size_t>(i)]);
    });
    EXPECT_NEAR(qkv.mean, 0, 0.05);
    EXPECT_NEAR(qkv.deviation, 1, 0.05);
    EXPECT_EQ(normal.k_scale.front(), static_cast<float>(scale));
    EXPECT_NEAR(of_codes(normal.k_cache, scale).mean, 0, 0.01);
    EXPECT_NEAR(of_codes(normal.k_cache, scale).deviation, 1, 0.01);
    EXPECT_NEAR(of_codes(normal.v_cache, scale).deviation, 1, 0.01);
    EXPECT_NEAR(of_codes(flat.k_cache, scale).deviation, 0.2, 0.01);
    EXPECT_NEAR(of_codes(offset.k_cache, scale).deviation, 0.2, 0.01);
    EXPECT_NEAR(of_codes(offset.v_cache, scale).mean, 1, 0.01);
    EXPECT_NEAR(of_codes(offset.v_cache, scale).deviation, 1, 0.02);
  }
}

TEST(Inputs, OnlyTheValuesOfNewTokensMoveWithTheMean) {
  const Inputs normal = make_inputs(small_shape(), 1, Fill::kNormal);
  const Inputs offset = make_inputs(small_shape(), 1, Fill::kMeanOne);
  const Problem& p = normal.shape.problem;
  for (size_t i = 0; i < normal.qkv.size(); ++i) {
    const int64_t column = static_cast<int64_t>(i) % p.qkv_width() / p.head_dim;
    const bool value = column >= 18 && column < 20;
    const float moved = bf16_to_f32(offset.qkv[i]) - bf16_to_f32(normal.qkv[i]);
    EXPECT_NEAR(moved, value ? 1 : 0, value ? 0.02 : 0);
  }
}

TEST(Inputs, FlatDataMarksTheFirstAttendedRow) {
  const Inputs in = make_inputs(small_shape(), 1, Fill::kFlat);
  const auto magnitude = [&](int64_t row) {
    return std::abs(e4m3_to_f32(in.v_cache[static_cast<size_t>(row * 128 + 5)]));
  };
  for (const int64_t query : {0, 1}) {  // 2 * sqrt(40) is 12.6
    EXPECT_GE(magnitude(in.row(2, first_attended(in, 2, query))), 8);
    EXPECT_LT(magnitude(in.row(2, first_attended(in, 2, query))), 16);
  }
  EXPECT_LT(magnitude(in.row(2, first_attended(in, 2, 0) - 1)), 5);
  EXPECT_LT(magnitude(in.row(2, first_attended(in, 2, 1) + 1)), 5);
}

}  // namespace
}  // namespace muse::tuner
