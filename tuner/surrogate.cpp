// SPDX-License-Identifier: Apache-2.0
// Covariance between candidates by the steps between their tunables, conditioned point by point.
#include "tuner/surrogate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>

namespace muse::tuner {
namespace {

// Variances of the logarithm of a time.
constexpr double kModel = 1;         ///< of what the estimates are off by, all of them
constexpr double kSlope = 0.05;      ///< of a factor on the estimates' differences
constexpr double kVariant = 0.25;    ///< of what a variant is off by
constexpr double kTunable = 0.05;    ///< of each tunable's own effect
constexpr double kTogether = 0.05;   ///< of what tunables do together
constexpr double kNoise = 1e-4;      ///< of a median: 1 %
constexpr double kReachSteps = 2.0;  ///< of a tunable, over which candidates are alike
constexpr double kNoDoubt = 1e-9;

}  // namespace

Surrogate::Surrogate(const std::vector<SearchPoint>& points) {
  std::map<std::string, std::set<int64_t>> values;
  double sum = 0;
  int opinions = 0;
  for (const SearchPoint& point : points) {
    for (const auto& [name, value] : point.configuration) values[name].insert(value);
    if (point.estimate_ns > 0) sum += std::log(point.estimate_ns), ++opinions;
  }
  const double center = opinions > 0 ? sum / opinions : 0;
  for (const SearchPoint& point : points) {
    Place place{.steps = {}, .estimate = 0, .variant = point.variant};
    for (const auto& [name, of_tunable] : values) {
      const auto found = point.configuration.find(name);
      place.steps.push_back(found == point.configuration.end()
                                ? std::nan("")
                                : static_cast<double>(std::distance(
                                      of_tunable.begin(), of_tunable.find(found->second))));
    }
    if (point.estimate_ns > 0) place.estimate = std::log(point.estimate_ns) - center;
    mean_.push_back(center + place.estimate);
    variance_.push_back(covariance(place, place));
    places_.push_back(std::move(place));
  }
}

double Surrogate::deviation(int index) const { return std::sqrt(std::max(0.0, variance_[index])); }

double Surrogate::expected_gain(int index, double best_ns) const {
  const double gain = std::log(best_ns) - mean_[index];
  const double sd = deviation(index);
  if (sd < kNoDoubt) return std::max(0.0, gain);
  const double z = gain / sd;
  const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
  return gain * std::erfc(-z / std::numbers::sqrt2) / 2 + sd * density;
}

void Surrogate::learn(int index, double median_ns) { condition(index, std::log(median_ns)); }
void Surrogate::expect(int index) { condition(index, mean_[index]); }

double Surrogate::covariance(const Place& a, const Place& b) const {
  double result = kModel + kSlope * a.estimate * b.estimate;
  if (a.variant != b.variant) return result;
  double joint = kTogether, additive = 0;
  for (size_t i = 0; i < a.steps.size(); ++i) {
    if (std::isnan(a.steps[i]) || std::isnan(b.steps[i])) continue;
    const double apart = (a.steps[i] - b.steps[i]) / kReachSteps;
    const double alike = std::exp(-apart * apart / 2);
    joint *= alike;
    additive += kTunable * alike;
  }
  return result + kVariant + additive + joint;
}

void Surrogate::condition(int index, double logarithm) {
  const double scale = std::sqrt(std::max(variance_[index], 0.0) + kNoise);
  const double surprise = (logarithm - mean_[index]) / scale;
  std::vector<double> factor(places_.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    double explained = covariance(places_[i], places_[index]);
    for (const auto& earlier : factors_) explained -= earlier[i] * earlier[index];
    factor[i] = explained / scale;
  }
  for (size_t i = 0; i < places_.size(); ++i) {
    mean_[i] += factor[i] * surprise;
    variance_[i] -= factor[i] * factor[i];
  }
  factors_.push_back(std::move(factor));
}

}  // namespace muse::tuner
