// SPDX-License-Identifier: Apache-2.0
// The guided searcher: a sample of the space and the model's best, then growth where the measured
// ones and the model together promise most.
#pragma once

#include <cstdint>
#include <vector>

#include "tuner/search.h"
#include "variants/random.h"

namespace muse::tuner {

class GuidedSearch final : public Searcher {
 public:
  GuidedSearch(std::vector<SearchPoint> points, int budget, uint64_t seed);

 private:
  std::vector<int> choose(int left) override;
  std::vector<int> sample(int left);
  std::vector<int> grow(int size) const;
  /// Open points that are not in the batch, in the order in which equal ones are taken.
  std::vector<int> others(const std::vector<int>& batch) const;
  void add_best_guesses(std::vector<int>& batch, size_t size) const;
  void add_stratified(std::vector<int>& batch, size_t size) const;

  std::vector<int> order_;  ///< a seeded permutation of the points
  int batches_ = 0;
};

}  // namespace muse::tuner
