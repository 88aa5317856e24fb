// SPDX-License-Identifier: Apache-2.0
// Statistics of samples: medians and bootstrap intervals. Pure; every random choice is seeded.
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
  int resamples = 1000;
  uint64_t seed = 1;
  double least_half_width = 0;  ///< one step of the clock: no interval is narrower
};

// All of these throw std::invalid_argument where a precondition on sizes is broken.

/// Percentile-bootstrap interval of the median. One value gives a point widened to the least width.
Interval median_interval(std::span<const double> values, const Bootstrap& options);
/// Interval of median(a_i - b_i), pairs resampled together. Precondition: equal sizes, not empty.
Interval paired_median_interval(std::span<const double> a, std::span<const double> b,
                                const Bootstrap& options);

}  // namespace muse::profiler
