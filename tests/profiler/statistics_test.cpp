// SPDX-License-Identifier: Apache-2.0
// Medians and bootstrap intervals on data whose truth is known.
#include "profiler/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>
#include <stdexcept>

namespace muse::profiler {
namespace {

double normal(SplitMix& random) {
  const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
  return radius * std::cos(2 * std::numbers::pi * random.uniform());
}

std::vector<double> normals(SplitMix& random, int count, double mean, double sigma) {
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = mean + sigma * normal(random);
  return values;
}

TEST(Quantile, InterpolatesBetweenOrderStatistics) {
  const std::vector<double> values{40, 10, 30, 20};
  EXPECT_DOUBLE_EQ(quantile(values, 0), 10);
  EXPECT_DOUBLE_EQ(quantile(values, 1), 40);
  EXPECT_DOUBLE_EQ(quantile(values, 0.5), 25);
  EXPECT_DOUBLE_EQ(quantile(values, 0.9), 37);
  EXPECT_DOUBLE_EQ(median(std::vector<double>{3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median(std::vector<double>{7}), 7);
}

TEST(Quantile, RefusesAnEmptyRange) {
  EXPECT_THROW(median({}), std::invalid_argument);
  EXPECT_THROW(geometric_mean({}), std::invalid_argument);
  EXPECT_THROW(median_interval({}, {}), std::invalid_argument);
  const std::vector<double> one{1}, two{1, 2};
  EXPECT_THROW(paired_median_interval(one, two, {}), std::invalid_argument);
}

TEST(GeometricMean, MultipliesRatios) {
  EXPECT_NEAR(geometric_mean(std::vector<double>{1, 2, 4}), 2, 1e-12);
  EXPECT_NEAR(geometric_mean(std::vector<double>{0.5, 2}), 1, 1e-12);
}

// SplitMix64's published first outputs for seed 1234567: a changed generator would change
// decisions.
TEST(SplitMix, IsThePublishedGenerator) {
  SplitMix random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317u);
  EXPECT_EQ(random.next(), 3203168211198807973u);
  EXPECT_EQ(random.next(), 9817491932198370423u);
}

TEST(SplitMix, DrawsBelowTheBoundEvenly) {
  SplitMix random(5);
  std::vector<int> counts(7);
  for (int i = 0; i < 70000; ++i) ++counts.at(random.below(7));
  for (int count : counts) EXPECT_NEAR(count, 10000, 400);
}

class Coverage : public testing::TestWithParam<int> {};

TEST_P(Coverage, OfTheMedianIsNearTheConfidence) {
  SplitMix random(11);
  int hits = 0;
  constexpr int kRepetitions = 400;
  for (uint64_t i = 0; i < kRepetitions; ++i) {
    const auto values = normals(random, GetParam(), 1000, 20);
    hits += median_interval(values, {.seed = i}).contains(1000);
  }
  EXPECT_NEAR(hits, 0.95 * kRepetitions, 0.03 * kRepetitions);
}

TEST_P(Coverage, OfAPairedDifferenceIsNearTheConfidence) {
  SplitMix random(12);
  int hits = 0;
  constexpr int kRepetitions = 400;
  for (uint64_t i = 0; i < kRepetitions; ++i) {
    const auto a = normals(random, GetParam(), 1030, 20);
    const auto b = normals(random, GetParam(), 1000, 20);
    hits += paired_median_interval(a, b, {.seed = i}).contains(30);
  }
  EXPECT_NEAR(hits, 0.95 * kRepetitions, 0.03 * kRepetitions);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Coverage, testing::Values(32, 64, 101));

TEST(PairedMedianInterval, KeepsPairsTogether) {
  // Both wander by a factor of three from round to round, and one is always 10 slower.
  SplitMix random(3);
  std::vector<double> a, b;
  for (int i = 0; i < 32; ++i) {
    b.push_back(1000 + 2000 * random.uniform());
    a.push_back(b.back() + 10);
  }
  const Interval interval = paired_median_interval(a, b, {});
  EXPECT_NEAR(interval.low, 10, 1e-9);
  EXPECT_NEAR(interval.high, 10, 1e-9);
  EXPECT_GT(median_interval(a, {}).half_width(), 100);
}

TEST(PairedMedianInterval, ChangesSignWithTheOrder) {
  SplitMix random(4);
  const auto a = normals(random, 33, 100, 5), b = normals(random, 33, 90, 5);
  const Interval forth = paired_median_interval(a, b, {});
  const Interval back = paired_median_interval(b, a, {});
  EXPECT_GT(forth.low, 0);
  EXPECT_LT(back.high, 0);
}

TEST(MedianInterval, IsNeverNarrowerThanAClockStep) {
  const std::vector<double> one{500}, equal(40, 500.0);
  for (const auto& values : {one, equal}) {
    const Interval interval = median_interval(values, {.least_half_width = 16});
    EXPECT_DOUBLE_EQ(interval.low, 484);
    EXPECT_DOUBLE_EQ(interval.high, 516);
  }
  const Interval paired = paired_median_interval(equal, equal, {.least_half_width = 16});
  EXPECT_DOUBLE_EQ(paired.half_width(), 16);
  EXPECT_TRUE(paired.contains(0));
}

TEST(MedianInterval, IsNotWidenedWhereItIsWideEnough) {
  SplitMix random(6);
  const auto values = normals(random, 64, 1000, 100);
  const Interval plain = median_interval(values, {});
  const Interval stepped = median_interval(values, {.least_half_width = 1});
  EXPECT_DOUBLE_EQ(plain.low, stepped.low);
  EXPECT_DOUBLE_EQ(plain.high, stepped.high);
}

TEST(MedianInterval, ShrugsOffOutliers) {
  SplitMix random(8);
  auto values = normals(random, 64, 1000, 1);
  for (int i = 0; i < 12; ++i) values[static_cast<size_t>(5 * i)] = 1e9;
  const Interval interval = median_interval(values, {});
  EXPECT_GT(interval.low, 999);
  EXPECT_LT(interval.high, 1002);
}

TEST(MedianInterval, IsDeterministicInItsSeedAndBlindToOrder) {
  SplitMix random(9);
  auto values = normals(random, 32, 1000, 50);
  const Interval first = median_interval(values, {.seed = 7});
  EXPECT_DOUBLE_EQ(first.low, median_interval(values, {.seed = 7}).low);
  std::reverse(values.begin(), values.end());
  EXPECT_DOUBLE_EQ(first.low, median_interval(values, {.seed = 7}).low);
  EXPECT_DOUBLE_EQ(first.high, median_interval(values, {.seed = 7}).high);
}

// Integers and a fixed generator: the same numbers with every compiler and library.
TEST(MedianInterval, GivesTheRecordedNumbers) {
  std::vector<double> values;
  for (int i = 0; i < 40; ++i) values.push_back((i * 37) % 101);
  const Interval interval = median_interval(values, {.seed = 42});
  EXPECT_DOUBLE_EQ(interval.low, 34.5);
  EXPECT_DOUBLE_EQ(interval.high, 65);
}

// The textbook way: draw values, take the median of each draw, take the quantiles of the medians.
TEST(MedianInterval, EqualsThePlainBootstrap) {
  SplitMix data(14);
  for (const int count : {1, 2, 3, 8, 33}) {
    auto values = normals(data, count, 1000, 50);
    std::sort(values.begin(), values.end());
    SplitMix random(21);
    std::vector<double> medians;
    for (int i = 0; i < 200; ++i) {
      std::vector<double> draw;
      for (int j = 0; j < count; ++j) draw.push_back(values[random.below(values.size())]);
      medians.push_back(median(draw));
    }
    const Interval interval = median_interval(values, {.resamples = 200, .seed = 21});
    EXPECT_NEAR(interval.low, quantile(medians, 0.025), 1e-9);
    EXPECT_NEAR(interval.high, quantile(medians, 0.975), 1e-9);
  }
}

TEST(MedianInterval, GrowsWithConfidence) {
  SplitMix random(10);
  const auto values = normals(random, 64, 1000, 50);
  EXPECT_LT(median_interval(values, {.confidence = 0.5}).half_width(),
            median_interval(values, {.confidence = 0.99}).half_width());
}

TEST(PairedMedianInterval, IsQuickEnoughToRunPerRound) {
  SplitMix random(13);
  const auto a = normals(random, 64, 100, 5), b = normals(random, 64, 100, 5);
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < 100; ++i) paired_median_interval(a, b, {.seed = i});
  // 10 ms each would be a hundred times what it takes: this catches a change of complexity only.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace muse::profiler
