// SPDX-License-Identifier: Apache-2.0
// Two kinds of batches: the first by the model and by coverage, the others by expected gain.
#include "tuner/guided_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "tuner/surrogate.h"

namespace muse::tuner {
namespace {

// Each batch costs a race, so they are few. The shares were chosen on the medians of an H200, where
// none of their neighbours does much worse.
constexpr double kFirstShare = 0.42;  ///< of the budget, for the first batch
constexpr double kGuessShare = 0.5;   ///< of its free places, for the model's best
constexpr int kGrowthBatches = 3;
constexpr double kOptimism = 0.3;  ///< standard deviations below the model's expectation

std::vector<int> permutation(size_t size, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<int> order(size);
  for (size_t i = 0; i < size; ++i) order[i] = static_cast<int>(i);
  for (size_t i = size; i > 1; --i) {
    std::swap(order[i - 1], order[random.below(static_cast<int64_t>(i))]);
  }
  return order;
}

/// How often each variant and each value of its tunables is taken.
class Coverage {
 public:
  void add(const SearchPoint& point) {
    ++variants_[point.variant->name];
    for (const auto& [name, value] : point.configuration) ++values_[{name, value}];
  }
  int crowd(const SearchPoint& point) const {
    int sum = count(variants_, point.variant->name);
    for (const auto& value : point.configuration)
      sum += count(values_, {value.first, value.second});
    return sum;
  }

 private:
  template <class Key>
  static int count(const std::map<Key, int>& counts, const Key& key) {
    const auto found = counts.find(key);
    return found == counts.end() ? 0 : found->second;
  }

  std::map<std::string, int> variants_;
  std::map<std::pair<std::string, int64_t>, int> values_;
};

}  // namespace

GuidedSearch::GuidedSearch(std::vector<SearchPoint> given, int budget, uint64_t seed)
    : Searcher(std::move(given), budget), order_(permutation(points().size(), seed)) {}

std::vector<int> GuidedSearch::choose(int left) {
  const int growth_left = std::max(1, kGrowthBatches + 1 - batches_);
  ++batches_;
  const bool leads = !in(State::kMeasured).empty();
  return leads ? grow((left + growth_left - 1) / growth_left) : sample(left);
}

/// Also where everything failed so far.
std::vector<int> GuidedSearch::sample(int left) {
  std::vector<int> batch = batches_ == 1 ? forced() : std::vector<int>{};
  const auto wanted = static_cast<size_t>(std::lround(kFirstShare * budget()));
  const size_t size =
      std::min(std::max({wanted, batch.size(), size_t{1}}), static_cast<size_t>(left));
  const auto guesses =
      static_cast<size_t>(std::lround(kGuessShare * static_cast<double>(size - batch.size())));
  add_best_guesses(batch, batch.size() + guesses);
  add_stratified(batch, size);
  return batch;
}

std::vector<int> GuidedSearch::grow(int size) const {
  Surrogate surrogate(points());
  double best_ns = 0, worst_ns = 0;
  for (const int index : in(State::kMeasured)) {
    const double ns = median_ns(index);
    surrogate.learn(index, ns);
    best_ns = best_ns == 0 ? ns : std::min(best_ns, ns);
    worst_ns = std::max(worst_ns, ns);
  }
  // Where one fails its likes do, too.
  for (const int index : in(State::kFailed)) surrogate.learn(index, worst_ns);
  std::vector<int> batch;
  std::vector<int> left = others(batch);
  while (static_cast<int>(batch.size()) < size && !left.empty()) {
    const auto best = std::max_element(left.begin(), left.end(), [&](int a, int b) {
      return surrogate.expected_gain(a, best_ns) < surrogate.expected_gain(b, best_ns);
    });
    batch.push_back(*best);
    surrogate.expect(*best);
    left.erase(best);
  }
  return batch;
}

std::vector<int> GuidedSearch::others(const std::vector<int>& batch) const {
  std::vector<int> indices;
  for (const int index : order_) {
    if (state(index) != State::kOpen) continue;
    if (std::find(batch.begin(), batch.end(), index) == batch.end()) indices.push_back(index);
  }
  return indices;
}

void GuidedSearch::add_best_guesses(std::vector<int>& batch, size_t size) const {
  Surrogate surrogate(points());
  for (const int index : batch) surrogate.expect(index);
  const auto bound = [&](int index) {
    return surrogate.mean(index) - kOptimism * surrogate.deviation(index);
  };
  std::vector<int> left = others(batch);
  while (batch.size() < size && !left.empty()) {
    const auto best = std::min_element(left.begin(), left.end(),
                                       [&](int a, int b) { return bound(a) < bound(b); });
    batch.push_back(*best);
    surrogate.expect(*best);
    left.erase(best);
  }
}

void GuidedSearch::add_stratified(std::vector<int>& batch, size_t size) const {
  Coverage coverage;
  for (const int index : batch) coverage.add(points()[index]);
  std::vector<int> left = others(batch);
  while (batch.size() < size && !left.empty()) {
    const auto rarest = std::min_element(left.begin(), left.end(), [&](int a, int b) {
      return coverage.crowd(points()[a]) < coverage.crowd(points()[b]);
    });
    batch.push_back(*rarest);
    coverage.add(points()[*rarest]);
    left.erase(rarest);
  }
}

}  // namespace muse::tuner
