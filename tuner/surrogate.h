// SPDX-License-Identifier: Apache-2.0
// What few measured candidates say about the others: a Gaussian process over the logarithm of
// times, whose prior mean is the floor model's estimate.
#pragma once

#include <string>
#include <vector>

#include "tuner/search.h"

namespace muse::tuner {

class Surrogate {
 public:
  explicit Surrogate(const std::vector<SearchPoint>& points);

  /// Learns the time of a point, ns.
  void learn(int index, double median_ns);
  /// Takes the expectation for the time of a point that will be measured with others at once, so
  /// that what it would tell is not asked twice.
  void expect(int index);

  /// Expected logarithm of the time, and its standard deviation.
  double mean(int index) const { return mean_[index]; }
  double deviation(int index) const;
  /// Expected gain over `best_ns`, as a logarithm of times: 0 where none is to be hoped for.
  double expected_gain(int index, double best_ns) const;

 private:
  struct Place {
    std::vector<double> steps;  ///< by tunable; NaN where the variant has not got it
    double estimate = 0;        ///< logarithm, centred
    const Variant* variant = nullptr;
  };
  double covariance(const Place& a, const Place& b) const;
  void condition(int index, double logarithm);

  std::vector<Place> places_;
  std::vector<double> mean_, variance_;
  /// Factors of the covariance that what was learnt explains, one row for each thing learnt.
  std::vector<std::vector<double>> factors_;
};

}  // namespace muse::tuner
