// SPDX-License-Identifier: Apache-2.0
// What searchers have in common, the two simple ones, and which one the rules ask for.
#include "tuner/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "tuner/guided_search.h"
#include "variants/random.h"

namespace muse::tuner {
namespace {

class WholeSearch final : public Searcher {
 public:
  explicit WholeSearch(std::vector<SearchPoint> points)
      : Searcher(std::move(points), std::numeric_limits<int>::max()) {}

 private:
  std::vector<int> choose(int) override { return in(State::kOpen); }
};

class RandomSearch final : public Searcher {
 public:
  RandomSearch(std::vector<SearchPoint> points, int budget, uint64_t seed)
      : Searcher(std::move(points), budget), random_(seed) {}

 private:
  std::vector<int> choose(int left) override {
    std::vector<int> batch = forced();
    std::vector<int> open = in(State::kOpen);
    for (const int index : batch) open.erase(std::find(open.begin(), open.end(), index));
    while (static_cast<int>(batch.size()) < left) {
      const auto drawn = open.begin() + random_.below(static_cast<int64_t>(open.size()));
      batch.push_back(*drawn);
      open.erase(drawn);
    }
    return batch;
  }

  SplitMix64 random_;
};

}  // namespace

Searcher::Searcher(std::vector<SearchPoint> points, int budget)
    : points_(std::move(points)),
      states_(points_.size(), State::kOpen),
      medians_ns_(points_.size(), 0),
      budget_(std::clamp(budget, static_cast<int>(forced().size()),
                         static_cast<int>(points_.size()))) {}

const std::vector<int>& Searcher::propose() {
  const auto waits = [&](int index) { return states_[index] == State::kProposed; };
  if (std::any_of(batch_.begin(), batch_.end(), waits)) return batch_;
  batch_ = told_ < budget_ ? choose(budget_ - told_) : std::vector<int>{};
  std::sort(batch_.begin(), batch_.end());
  for (const int index : batch_) states_[index] = State::kProposed;
  return batch_;
}

bool Searcher::is_last() const {
  const auto waiting = std::count(states_.begin(), states_.end(), State::kProposed);
  return told_ + waiting >= budget_;
}

void Searcher::tell(int index, std::optional<double> median_ns) {
  const bool known = index >= 0 && index < static_cast<int>(points_.size());
  if (!known || states_[index] != State::kProposed) {
    throw std::logic_error(fmt::format("candidate {} was not proposed, or told before", index));
  }
  if (median_ns && !(*median_ns > 0 && std::isfinite(*median_ns))) {
    throw std::logic_error(fmt::format("candidate {}: {} ns is no time", index, *median_ns));
  }
  states_[index] = median_ns ? State::kMeasured : State::kFailed;
  medians_ns_[index] = median_ns.value_or(0);
  ++told_;
}

double Searcher::seen() const {
  return points_.empty() ? 1 : static_cast<double>(told_) / static_cast<double>(points_.size());
}

std::vector<int> Searcher::forced() const {
  std::vector<int> indices;
  for (int i = 0; i < static_cast<int>(points_.size()); ++i) {
    const SearchPoint& point = points_[i];
    if (point.required || point.configuration == default_configuration(*point.variant)) {
      indices.push_back(i);
    }
  }
  return indices;
}

std::vector<int> Searcher::in(State state) const {
  std::vector<int> indices;
  for (int i = 0; i < static_cast<int>(states_.size()); ++i) {
    if (states_[i] == state) indices.push_back(i);
  }
  return indices;
}

std::unique_ptr<Searcher> make_searcher(const SearchRules& rules, std::vector<SearchPoint> points,
                                        uint64_t seed) {
  const bool whole = points.size() < static_cast<size_t>(Searcher::kWholeBelow);
  const double share = static_cast<double>(points.size()) * rules.share_pct / 100;
  const int budget = std::max(Searcher::kLeast, static_cast<int>(share));
  switch (whole ? SearchKind::kExhaustive : rules.kind) {
    case SearchKind::kExhaustive:
      return std::make_unique<WholeSearch>(std::move(points));
    case SearchKind::kRandom:
      return std::make_unique<RandomSearch>(std::move(points), budget, seed);
    case SearchKind::kGuided:
      return std::make_unique<GuidedSearch>(std::move(points), budget, seed);
  }
  throw std::logic_error("no such kind of search");
}

}  // namespace muse::tuner
