// SPDX-License-Identifier: Apache-2.0
// Quantiles and the exact percentile bootstrap of medians. Own generator and own draw: the standard
// library's distributions differ between versions, and a stored race must be replayed bit by bit.
#include "profiler/statistics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>
#include <utility>

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

/// P(B >= least) for B binomial over `draws` with probability p <= 1/2 and least >= draws * p: from
/// there on the terms fall, so the sum goes upwards from the largest. Its logarithm cannot
/// underflow before it counts for nothing.
double binomial_tail(size_t draws, size_t least, double p) {
  const auto n = static_cast<double>(draws), first = static_cast<double>(least);
  double log_term = first * std::log(p) + (n - first) * std::log1p(-p);
  for (double i = 1; i <= n - first; ++i) log_term += std::log1p(first / i);
  double term = std::exp(log_term), sum = 0;
  for (double i = first; i <= n && term > 0; ++i) {
    sum += term;
    term *= (n - i) / (i + 1) * p / (1 - p);
  }
  return sum;
}

/// The least k whose chance that a resample's (lower) median is at most the k-th value reaches
/// tail.
size_t find_rank(size_t count, double tail) {
  const size_t middle = (count + 1) / 2;
  size_t low = 1, high = middle;  // at the middle it is a half, more than any tail
  while (low < high) {
    const size_t k = (low + high) / 2;
    const double p = static_cast<double>(k) / static_cast<double>(count);
    if (binomial_tail(count, middle, p) >= tail) {
      high = k;
    } else {
      low = k + 1;
    }
  }
  return low;
}

Interval widened(Interval interval, double least_half_width) {
  if (interval.half_width() >= least_half_width) return interval;
  const double middle = interval.low + (interval.high - interval.low) / 2;
  return {middle - least_half_width, middle + least_half_width};
}

/// Two selections instead of a sort: nothing but the two ends is looked at.
Interval bootstrap_median(std::vector<double>& values, const Bootstrap& options) {
  const size_t rank = median_rank(values.size(), options.confidence);
  const auto low = values.begin() + static_cast<std::ptrdiff_t>(rank - 1);
  const auto high = values.end() - static_cast<std::ptrdiff_t>(rank);
  std::nth_element(values.begin(), low, values.end());
  if (high > low) std::nth_element(low + 1, high, values.end());
  return widened({*low, *high}, options.least_half_width);
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

size_t median_rank(size_t count, double confidence) {
  if (count == 0) throw std::invalid_argument("statistics of no values");
  // A race asks for few sizes and levels, but for each of them again and again.
  thread_local std::map<std::pair<size_t, double>, size_t> known;
  const auto [at, fresh] = known.try_emplace({count, confidence}, 0);
  if (fresh) at->second = find_rank(count, (1 - confidence) / 2);
  return at->second;
}

Interval median_interval(std::span<const double> values, const Bootstrap& options) {
  std::vector<double> copy(values.begin(), values.end());
  return bootstrap_median(copy, options);
}

Interval paired_median_interval(std::span<const double> a, std::span<const double> b,
                                const Bootstrap& options) {
  if (a.size() != b.size()) throw std::invalid_argument("pairs of unequal length");
  // A resampled pair keeps its difference, so resampling differences resamples pairs.
  std::vector<double> differences(a.size());
  std::transform(a.begin(), a.end(), b.begin(), differences.begin(), std::minus<>{});
  return bootstrap_median(differences, options);
}

}  // namespace muse::profiler
