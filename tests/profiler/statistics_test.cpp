// SPDX-License-Identifier: Apache-2.0
// Medians and bootstrap intervals on data whose truth is known, and against resampling.
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

double bimodal(SplitMix& random) { return (random.below(2) ? 1.2 : 1.0) + 0.01 * normal(random); }
/// Cauchy: no mean, no variance, outliers of any size.
double heavy_tailed(SplitMix& random) {
  return std::tan(std::numbers::pi * (random.uniform() - 0.5));
}

/// How often in 2,000 races of `count` rounds the interval of a paired difference covers zero where
/// both sides are the same distribution.
double coverage(double (*draw)(SplitMix&), int count, double confidence) {
  SplitMix random(11);
  constexpr int kRepetitions = 2000;
  int hits = 0;
  std::vector<double> a(static_cast<size_t>(count)), b(a.size());
  for (int i = 0; i < kRepetitions; ++i) {
    for (size_t j = 0; j < a.size(); ++j) {
      a[j] = draw(random);
      b[j] = draw(random);
    }
    hits += paired_median_interval(a, b, {.confidence = confidence}).contains(0);
  }
  return 1.0 * hits / kRepetitions;
}

class Coverage : public testing::TestWithParam<int> {};

TEST_P(Coverage, IsNearTheConfidenceOnEveryKindOfData) {
  for (const auto draw : {normal, bimodal, heavy_tailed}) {
    for (const double confidence : {0.9, 0.95, 0.99}) {
      const double covered = coverage(draw, GetParam(), confidence);
      // Ranks are whole: an odd count gives up to four points less, an even one hardly any.
      EXPECT_GE(covered, confidence - (GetParam() % 2 ? 0.042 : 0.015)) << confidence;
      EXPECT_LE(covered, confidence + (1 - confidence) * 0.8 + 0.01) << confidence;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Coverage, testing::Values(32, 33, 64, 101, 256));

TEST(MedianInterval, CoversNoLessThanNineInTenOfEightRounds) {
  for (const auto draw : {normal, bimodal, heavy_tailed}) {
    EXPECT_GE(coverage(draw, 8, 0.95), 0.90);
    EXPECT_GE(coverage(draw, 16, 0.95), 0.92);
  }
}

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

TEST(MedianInterval, IsBlindToOrder) {
  SplitMix random(9);
  auto values = normals(random, 32, 1000, 50);
  const Interval first = median_interval(values, {});
  std::reverse(values.begin(), values.end());
  EXPECT_EQ(first.low, median_interval(values, {}).low);
  EXPECT_EQ(first.high, median_interval(values, {}).high);
}

TEST(MedianInterval, LiesAtOrderStatistics) {
  // Binomial tables: P(B(9, 2/9) >= 5) = 0.028, P(B(9, 1/9) >= 5) = 0.0014; the lower median of 40
  // is at most the 14th value where 20 of 40 draws fall on 14 / 40: 0.037; on 13 / 40: 0.016.
  EXPECT_EQ(median_rank(9, 0.95), 2u);
  EXPECT_EQ(median_rank(9, 0.94), 2u);
  EXPECT_EQ(median_rank(40, 0.95), 14u);
  std::vector<double> values;
  for (int i = 1; i <= 40; ++i) values.push_back((i * 37) % 41);  // 1 to 40, shuffled
  const Interval interval = median_interval(values, {});
  EXPECT_EQ(interval.low, 14);
  EXPECT_EQ(interval.high, 27);
}

TEST(MedianInterval, IsTheRangeOfOneOrTwoValues) {
  for (const double confidence : {0.4, 0.95, 0.999}) {
    EXPECT_EQ(median_interval(std::vector<double>{5}, {.confidence = confidence}).low, 5);
    const Interval two = median_interval(std::vector<double>{7, 5}, {.confidence = confidence});
    EXPECT_EQ(two.low, 5);
    EXPECT_EQ(two.high, 7);
  }
  EXPECT_THROW(median_rank(0, 0.95), std::invalid_argument);
}

// The textbook way: draw values, take the median of each draw, take the quantiles of the medians.
TEST(MedianInterval, EqualsResampling) {
  constexpr int kResamples = 20000;
  for (const int count : {1, 2, 3, 7, 8, 33, 64}) {
    for (const double confidence : {0.8, 0.95, 0.99}) {
      std::vector<double> ranks(static_cast<size_t>(count));  // the values are their own ranks
      for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<double>(i + 1);
      SplitMix random(21);
      std::vector<double> medians;
      for (int i = 0; i < kResamples; ++i) {
        std::vector<double> draw;
        for (int j = 0; j < count; ++j) draw.push_back(ranks[random.below(ranks.size())]);
        std::sort(draw.begin(), draw.end());
        // Of an even number the lower one: that is what the low end is defined by.
        medians.push_back(draw[(draw.size() - 1) / 2]);
      }
      std::sort(medians.begin(), medians.end());
      const double tail = (1 - confidence) / 2;
      const Interval interval = median_interval(ranks, {.confidence = confidence});
      // A tail probability near the limit may fall on either side of it by chance.
      const auto at = [&](double q) { return medians[static_cast<size_t>(q * (kResamples - 1))]; };
      EXPECT_GE(interval.low, at(tail * 0.8)) << count << " at " << confidence;
      EXPECT_LE(interval.low, at(tail * 1.25)) << count << " at " << confidence;
      EXPECT_EQ(interval.high, count + 1 - interval.low);
    }
  }
}

TEST(MedianInterval, StandsTies) {
  std::vector<double> values(40, 992);
  for (size_t i = 0; i < 15; ++i) values[i] = i < 5 ? 960 : 1024;
  const Interval interval = median_interval(values, {});
  EXPECT_EQ(interval.low, 992);
  EXPECT_EQ(interval.high, 992);
}

TEST(MedianInterval, GrowsWithConfidenceAndNeverShrinks) {
  SplitMix random(10);
  for (const int count : {5, 16, 64, 257}) {
    const auto values = normals(random, count, 1000, 50);
    double width = 0;
    for (const double confidence : {0.1, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 0.99999}) {
      const double wider = median_interval(values, {.confidence = confidence}).half_width();
      EXPECT_GE(wider, width);
      width = wider;
    }
    EXPECT_GT(width, 0);
  }
}

TEST(MedianInterval, NarrowsWithTheRootOfTheCount) {
  EXPECT_NEAR(5000 - static_cast<double>(median_rank(10000, 0.95)), 98, 2);
  EXPECT_NEAR(500000 - static_cast<double>(median_rank(1000000, 0.95)), 980, 5);
}

TEST(PairedMedianInterval, IsQuickEnoughToRunPerRound) {
  SplitMix random(13);
  const auto a = normals(random, 64, 100, 5), b = normals(random, 64, 100, 5);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) paired_median_interval(a, b, {});
  // 10 ms each would be thousands of times what it takes: this catches a change of complexity only.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace muse::profiler
