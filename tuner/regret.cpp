// SPDX-License-Identifier: Apache-2.0
// Regret of subsets, and a greedy search for small ones.
#include "tuner/regret.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

namespace muse::tuner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double best_of(const Times& times, size_t shape) {
  double best = kInfinity;
  for (const std::vector<double>& one : times) best = std::min(best, one[shape]);
  return best;
}

/// Infinite times count with a loss that no real one reaches, so that sums stay comparable.
constexpr double kUnmeasured = 1e6;

struct Score {
  double excess = 0;  ///< over the limits, summed over shapes
  double mean = 0, worst = 0;
  auto tie() const { return std::tie(excess, mean, worst); }
  /// By more than rounding, so that equal sets compare equal however they were summed.
  bool better_than(const Score& other) const {
    const auto clearly = [](double a, double b) { return a < b - 1e-12 * std::max(1.0, b); };
    if (clearly(excess, other.excess)) return true;
    if (clearly(other.excess, excess)) return false;
    if (clearly(mean, other.mean)) return true;
    if (clearly(other.mean, mean)) return false;
    return clearly(worst, other.worst);
  }
};

class Subsets {
 public:
  Subsets(const Times& times, const SubsetLimits& limits) : limits_(limits) {
    const size_t shapes = times.empty() ? 0 : times.front().size();
    losses_.resize(times.size());
    for (size_t s = 0; s < shapes; ++s) {
      const double best = best_of(times, s);
      if (!std::isfinite(best)) continue;
      for (size_t c = 0; c < times.size(); ++c) {
        losses_[c].push_back(std::isfinite(times[c][s]) ? times[c][s] / best - 1 : kUnmeasured);
      }
    }
  }

  Score score(const std::vector<size_t>& chosen) const {
    Score score;
    const size_t shapes = losses_.front().size();
    double logs = 0;
    for (size_t s = 0; s < shapes; ++s) {
      double least = kUnmeasured;
      for (const size_t c : chosen) least = std::min(least, losses_[c][s]);
      score.worst = std::max(score.worst, least);
      score.excess += std::max(0.0, least - limits_.worst);
      logs += std::log1p(least);
    }
    if (shapes > 0) score.mean = std::expm1(logs / static_cast<double>(shapes));
    score.excess += std::max(0.0, score.mean - limits_.mean) * static_cast<double>(shapes);
    return score;
  }
  size_t candidates() const { return losses_.size(); }
  bool limited() const { return std::isfinite(limits_.worst) || std::isfinite(limits_.mean); }
  /// Nothing more is wanted.
  bool enough(const Score& score) const { return limited() ? score.excess <= 0 : score.mean <= 0; }

 private:
  SubsetLimits limits_;
  Times losses_;
};

bool has(const std::vector<size_t>& chosen, size_t candidate) {
  return std::find(chosen.begin(), chosen.end(), candidate) != chosen.end();
}

/// The best of all sets that differ from `chosen` in place `at`; whether one is better.
bool exchange(const Subsets& subsets, std::vector<size_t>& chosen, size_t at, Score& score) {
  std::vector<size_t> trial = chosen;
  bool better = false;
  for (size_t c = 0; c < subsets.candidates(); ++c) {
    if (has(chosen, c)) continue;
    trial[at] = c;
    const Score other = subsets.score(trial);
    if (!other.better_than(score)) continue;
    score = other;
    chosen[at] = c;
    better = true;
  }
  return better;
}

/// Place 0 is what always stays.
void exchange_all(const Subsets& subsets, std::vector<size_t>& chosen, Score& score) {
  for (bool better = true; better;) {
    better = false;
    for (size_t at = 1; at < chosen.size(); ++at) {
      better = exchange(subsets, chosen, at, score) || better;
    }
  }
}

void drop_unneeded(const Subsets& subsets, std::vector<size_t>& chosen) {
  for (size_t at = chosen.size(); at-- > 1;) {
    std::vector<size_t> fewer = chosen;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(at));
    if (subsets.enough(subsets.score(fewer))) chosen = std::move(fewer);
  }
}

}  // namespace

Regret regret(const Times& times, const std::vector<size_t>& chosen) {
  Regret result;
  double logs = 0;
  size_t shapes = 0;
  for (size_t s = 0; !times.empty() && s < times.front().size(); ++s) {
    const double best = best_of(times, s);
    if (!std::isfinite(best)) continue;
    double least = kInfinity;
    for (const size_t c : chosen) least = std::min(least, times[c][s]);
    result.worst = std::max(result.worst, least / best - 1);
    logs += std::log(least / best);
    ++shapes;
  }
  if (shapes > 0) result.mean = std::expm1(logs / static_cast<double>(shapes));
  return result;
}

size_t least_worst_regret(const Times& times, const std::vector<size_t>& among) {
  size_t least = among.front();
  double worst = regret(times, {least}).worst;
  for (const size_t candidate : among) {
    const double other = regret(times, {candidate}).worst;
    if (other < worst) {
      least = candidate;
      worst = other;
    }
  }
  return least;
}

size_t least_worst_regret(const Times& times) {
  std::vector<size_t> all(times.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return least_worst_regret(times, all);
}

std::vector<size_t> few_candidates(const Times& times, size_t always, const SubsetLimits& limits) {
  const Subsets subsets(times, limits);
  std::vector<size_t> chosen{always};
  Score score = subsets.score(chosen);
  while (!subsets.enough(score) && chosen.size() < limits.variants) {
    const Score before = score;
    chosen.push_back(always);  // a place for whoever helps most
    if (!exchange(subsets, chosen, chosen.size() - 1, score)) {
      chosen.pop_back();
      break;
    }
    exchange_all(subsets, chosen, score);
    if (!score.better_than(before)) break;
  }
  if (subsets.enough(score)) drop_unneeded(subsets, chosen);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace muse::tuner
