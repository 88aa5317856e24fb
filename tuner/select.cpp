// SPDX-License-Identifier: Apache-2.0
// Selection: leader, tie set by paired intervals, the fixed order inside it, the margin of the
// base.
#include "tuner/select.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <tuple>

namespace muse::tuner {
namespace {

constexpr double kAlpha = 0.05;
/// Holm asks for tails far below 2.5 %; 1,000 resamples would leave nothing there.
constexpr int kResamples = 2000;

struct Pair {
  std::vector<double> a, b;  ///< the rounds in which both have a sample
  bool enough() const { return a.size() >= kLeastPairedRounds; }
};

bool has_sample(const Contender& contender, size_t round) {
  return round < contender.ns.size() && std::isfinite(contender.ns[round]);
}

std::vector<double> samples(const Contender& contender) {
  std::vector<double> kept;
  std::copy_if(contender.ns.begin(), contender.ns.end(), std::back_inserter(kept),
               [](double ns) { return std::isfinite(ns); });
  return kept;
}

Pair pair_up(const Contender& a, const Contender& b) {
  Pair pair;
  for (size_t round = 0; round < a.ns.size(); ++round) {
    if (!has_sample(a, round) || !has_sample(b, round)) continue;
    pair.a.push_back(a.ns[round]);
    pair.b.push_back(b.ns[round]);
  }
  return pair;
}

double median_difference(const Pair& pair) {
  std::vector<double> difference(pair.a.size());
  std::transform(pair.a.begin(), pair.a.end(), pair.b.begin(), difference.begin(), std::minus<>());
  return profiler::median(difference);
}

/// Everything one call of select() looks at. Indices are those of `contenders`.
class Selector {
 public:
  Selector(const std::vector<Contender>& contenders, const SelectionRules& rules)
      : contenders_(contenders), rules_(rules) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      if (!samples(contenders[i]).empty()) measured_.push_back(static_cast<int>(i));
    }
    // By content, so that nothing below depends on the order in which contenders were given.
    std::sort(measured_.begin(), measured_.end(), [&](int a, int b) {
      return std::tie(at(a).key, at(a).ns) < std::tie(at(b).key, at(b).ns);
    });
    const auto base =
        std::find_if(measured_.begin(), measured_.end(), [&](int i) { return at(i).base; });
    if (base != measured_.end()) base_ = *base;
  }

  Selection run() {
    Selection result;
    if (measured_.empty()) return result;
    find_leader();
    find_tie_set();
    choose(result);
    describe(result);
    return result;
  }

 private:
  const Contender& at(int i) const { return contenders_[static_cast<size_t>(i)]; }
  bool tied(int i) const { return std::find(ties_.begin(), ties_.end(), i) != ties_.end(); }

  profiler::Interval interval(const Pair& pair, double confidence) const {
    return profiler::paired_median_interval(pair.a, pair.b,
                                            {confidence, kResamples, rules_.seed, rules_.step_ns});
  }

  /// Rounds that everyone measured has, if they are at least half of what the fullest one has.
  std::vector<size_t> shared_rounds() const {
    size_t rounds = 0, fullest = 0;
    for (const int i : measured_) {
      rounds = std::max(rounds, at(i).ns.size());
      fullest = std::max(fullest, samples(at(i)).size());
    }
    std::vector<size_t> shared;
    for (size_t round = 0; round < rounds; ++round) {
      if (std::all_of(measured_.begin(), measured_.end(),
                      [&](int i) { return has_sample(at(i), round); })) {
        shared.push_back(round);
      }
    }
    if (2 * shared.size() < fullest) shared.clear();
    return shared;
  }

  void find_leader() {
    const std::vector<size_t> shared = shared_rounds();
    double least = INFINITY;
    for (const int i : measured_) {
      std::vector<double> ns;
      for (const size_t round : shared) ns.push_back(at(i).ns[round]);
      const double median = profiler::median(shared.empty() ? samples(at(i)) : ns);
      if (median < least) {
        least = median;
        leader_ = i;
      }
    }
    tolerance_ns_ = std::max(rules_.tie_pct / 100 * least, rules_.step_ns);
    margin_ns_ = std::max(rules_.switch_margin_pct / 100 * least, tolerance_ns_);
  }

  /// Holm, step down: with m pairs open each is tested at alpha / m; those rejected as "tied"
  /// leave, the rest is tested again at the milder level, until nobody leaves.
  void find_tie_set() {
    std::map<int, Pair> open;
    for (const int i : measured_) {
      if (i == leader_) continue;
      Pair pair = pair_up(at(i), at(leader_));
      if (pair.enough()) {
        open.emplace(i, std::move(pair));
      } else {
        ties_.push_back(i);
      }
    }
    for (bool left = true; left && !open.empty();) {
      const double confidence = 1 - kAlpha / static_cast<double>(open.size());
      left = std::erase_if(open, [&](const auto& entry) {
               return interval(entry.second, confidence).low >= tolerance_ns_;
             }) > 0;
    }
    for (const auto& [i, pair] : open) ties_.push_back(i);
    ties_.push_back(leader_);
    std::sort(ties_.begin(), ties_.end(), [&](int a, int b) {
      return std::tie(at(a).key, at(a).ns) < std::tie(at(b).key, at(b).ns);
    });
  }

  /// A gain over the base that is worth a switch: of at least the margin, and surely above zero.
  bool clears_margin(int i) const {
    const Pair pair = pair_up(at(base_), at(i));
    if (!pair.enough()) return false;
    const double least = rules_.switch_margin_pct / 100 * profiler::median(pair.a);
    return median_difference(pair) >= least && interval(pair, 1 - kAlpha).low > 0;
  }

  void choose(Selection& result) const {
    std::vector<int> eligible = ties_;
    if (base_ >= 0 && tied(base_)) {
      result.winner = base_;
      result.rule = ties_.size() == 1 ? "fastest" : "tie_base";
      return;
    }
    if (base_ >= 0) {
      std::erase_if(eligible, [&](int i) { return !clears_margin(i); });
      if (eligible.empty()) {
        result.winner = base_;
        result.rule = "base_kept";
        return;
      }
    }
    result.rule = "fastest";
    if (eligible.size() > 1) result.rule = break_tie(eligible);
    result.winner = eligible.front();
  }

  /// Leaves the preferred one in front; says which rule decided.
  std::string break_tie(std::vector<int>& eligible) const {
    const auto workspace = [&](int i) { return at(i).workspace_bytes; };
    const int64_t smallest =
        workspace(*std::min_element(eligible.begin(), eligible.end(),
                                    [&](int a, int b) { return workspace(a) < workspace(b); }));
    std::erase_if(eligible, [&](int i) { return workspace(i) > smallest; });
    if (eligible.size() == 1) return "tie_workspace";

    std::map<int, double> p90;
    double lowest = INFINITY;
    for (const int i : eligible) {
      p90[i] = profiler::quantile(samples(at(i)), 0.9);
      lowest = std::min(lowest, p90[i]);
    }
    std::erase_if(eligible, [&](int i) { return p90[i] > lowest + tolerance_ns_; });
    return eligible.size() == 1 ? "tie_p90" : "tie_name";  // sorted by key already
  }

  /// Whether the rounds leave open that `winner` costs more than the margin against `other`.
  bool undecided(int winner, int other, double confidence) const {
    const Pair pair = pair_up(at(winner), at(other));
    if (!pair.enough()) return true;
    const profiler::Interval slower = interval(pair, confidence);
    return slower.half_width() > tolerance_ns_ && slower.high > margin_ns_;
  }

  std::string status(const Selection& result) const {
    const auto degraded = [&](int i) { return at(i).degraded; };
    if ((base_ >= 0 && degraded(base_)) ||
        std::any_of(result.tie_set.begin(), result.tie_set.end(), degraded)) {
      return "degraded";
    }
    const size_t size = result.tie_set.size();
    const double confidence = 1 - kAlpha / static_cast<double>(std::max<size_t>(size - 1, 1));
    if (std::any_of(result.tie_set.begin() + 1, result.tie_set.end(),
                    [&](int i) { return undecided(result.winner, i, confidence); })) {
      return "inconclusive";
    }
    return size == 1 ? "winner" : "tie(" + std::to_string(size) + ")";
  }

  void describe(Selection& result) const {
    result.tie_set.push_back(result.winner);
    std::copy_if(ties_.begin(), ties_.end(), std::back_inserter(result.tie_set),
                 [&](int i) { return i != result.winner; });
    result.status = status(result);
    const std::vector<double> own = samples(at(result.winner));
    result.median_ns = profiler::median(own);
    result.interval =
        profiler::median_interval(own, {1 - kAlpha, kResamples, rules_.seed, rules_.step_ns});
    if (base_ < 0) return;
    result.base_median_ns = profiler::median(samples(at(base_)));
    const Pair pair = pair_up(at(base_), at(result.winner));
    if (result.winner == base_ || pair.a.empty()) return;
    const double percent = 100 / profiler::median(pair.a);
    const profiler::Interval gain = interval(pair, 1 - kAlpha);
    result.gain_pct = {gain.low * percent, gain.high * percent};
  }

  const std::vector<Contender>& contenders_;
  const SelectionRules& rules_;
  std::vector<int> measured_;  ///< by key
  std::vector<int> ties_;      ///< by key, the leader among them
  int leader_ = -1, base_ = -1;
  double tolerance_ns_ = 0, margin_ns_ = 0;
};

}  // namespace

Selection select(const std::vector<Contender>& contenders, const SelectionRules& rules) {
  return Selector(contenders, rules).run();
}

}  // namespace muse::tuner
