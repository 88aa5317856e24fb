// SPDX-License-Identifier: Apache-2.0
// Quantiles and percentile bootstrap. Own generator and own index draw: the standard library's
// distributions differ between versions, and a stored decision must be replayed bit by bit.
#include "profiler/statistics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>

namespace muse::profiler {
namespace {

void require_values(std::span<const double> values) {
  if (values.empty()) throw std::invalid_argument("statistics of no values");
}

/// The order statistic `position` (counted from 0, linear in between) of a range it reorders.
double select_quantile(std::vector<double>& values, double q) {
  const double position = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::ptrdiff_t>(std::floor(position));
  const double weight = position - static_cast<double>(below);
  const auto at = values.begin() + below;
  std::nth_element(values.begin(), at, values.end());
  if (weight == 0) return *at;
  const double next = *std::min_element(at + 1, values.end());
  return *at + weight * (next - *at);
}

/// Draws `counts.size()` ranks with replacement.
void resample(SplitMix& random, std::vector<uint32_t>& counts) {
  std::fill(counts.begin(), counts.end(), 0u);
  for (size_t i = 0; i < counts.size(); ++i) ++counts[random.below(counts.size())];
}

/// Median of a multiset given by how often each of `sorted` occurs in it; as many as sorted has.
double median_of_counts(const std::vector<double>& sorted, const std::vector<uint32_t>& counts) {
  const size_t upper = sorted.size() / 2;
  const size_t lower = sorted.size() % 2 ? upper : upper - 1;
  size_t seen = 0, rank = 0;
  while ((seen += counts[rank]) <= lower) ++rank;
  const double low = sorted[rank];
  while (seen <= upper) seen += counts[++rank];
  return low + (sorted[rank] - low) / 2;
}

Interval widened(Interval interval, double least_half_width) {
  if (interval.half_width() >= least_half_width) return interval;
  const double middle = interval.low + (interval.high - interval.low) / 2;
  return {middle - least_half_width, middle + least_half_width};
}

/// Sorting once makes a resample a handful of counters: no selection per resample.
Interval bootstrap_median(std::vector<double> values, const Bootstrap& options) {
  std::sort(values.begin(), values.end());
  std::vector<uint32_t> counts(values.size());
  std::vector<double> medians(static_cast<size_t>(std::max(options.resamples, 1)));
  SplitMix random(options.seed);
  for (double& one : medians) {
    resample(random, counts);
    one = median_of_counts(values, counts);
  }
  const double tail = (1 - options.confidence) / 2;
  const double low = select_quantile(medians, tail);
  return widened({low, select_quantile(medians, 1 - tail)}, options.least_half_width);
}

}  // namespace

uint64_t SplitMix::next() {
  uint64_t z = state_ += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

size_t SplitMix::below(size_t bound) { return ((next() >> 32) * bound) >> 32; }

double SplitMix::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

double quantile(std::span<const double> values, double q) {
  require_values(values);
  std::vector<double> copy(values.begin(), values.end());
  return select_quantile(copy, q);
}

double median(std::span<const double> values) { return quantile(values, 0.5); }

double geometric_mean(std::span<const double> values) {
  require_values(values);
  double sum = 0;
  for (double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

Interval median_interval(std::span<const double> values, const Bootstrap& options) {
  require_values(values);
  return bootstrap_median({values.begin(), values.end()}, options);
}

Interval paired_median_interval(std::span<const double> a, std::span<const double> b,
                                const Bootstrap& options) {
  require_values(a);
  if (a.size() != b.size()) throw std::invalid_argument("pairs of unequal length");
  // A resampled pair keeps its difference, so resampling differences resamples pairs.
  std::vector<double> differences(a.size());
  std::transform(a.begin(), a.end(), b.begin(), differences.begin(), std::minus<>{});
  return bootstrap_median(std::move(differences), options);
}

}  // namespace muse::profiler
