// SPDX-License-Identifier: Apache-2.0
// Statistics of samples: medians and exact bootstrap intervals. Pure; draws come from a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace muse::profiler {

/// SplitMix64 (Steele, Lea, Flood 2014): the same numbers on every platform and library version.
class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}
  uint64_t next();
  size_t below(size_t bound);  ///< 0 .. bound - 1; bound below 2^32
  double uniform();            ///< [0, 1)

 private:
  uint64_t state_;
};

/// Linear interpolation between order statistics; q in [0, 1]. Precondition: not empty, finite.
double quantile(std::span<const double> values, double q);
double median(std::span<const double> values);
double geometric_mean(std::span<const double> values);

struct Interval {
  double low = 0, high = 0;
  double half_width() const { return (high - low) / 2; }
  bool contains(double x) const { return low <= x && x <= high; }
};

struct Bootstrap {
  double confidence = 0.95;
  double least_half_width = 0;  ///< one step of the clock: no interval is narrower
};

// All of these throw std::invalid_argument where a precondition on sizes is broken.

/// The rank (from 1) of the order statistic at the low end of the percentile-bootstrap interval of
/// the median of `count` values; the high end has rank count + 1 - rank. Exact, no resampling: the
/// median of a resample is at most the k-th of n values where at least half of n draws fall on the
/// k smallest, and that number of draws is binomial with probability k / n. Of an even number the
/// low end is that of the lower, the high end that of the upper of the two middle values, so the
/// interval covers that of their mean: slightly conservative. Precondition: count > 0.
size_t median_rank(size_t count, double confidence);

/// Percentile-bootstrap interval of the median. One value gives a point widened to the least width.
Interval median_interval(std::span<const double> values, const Bootstrap& options);
/// Interval of median(a_i - b_i), pairs resampled together. Precondition: equal sizes, not empty.
Interval paired_median_interval(std::span<const double> a, std::span<const double> b,
                                const Bootstrap& options);

}  // namespace muse::profiler
