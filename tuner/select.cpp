// SPDX-License-Identifier: Apache-2.0
// Selection: leader, tie set by simultaneous paired intervals, the fixed order inside it, the
// margin of the base.
#include "tuner/select.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <tuple>

namespace muse::tuner {
namespace {

/// A gross difference, of the leader's median.
constexpr double kGross = 0.5;
constexpr size_t kLeastGrossRounds = 3;

bool has_sample(Samples ns, size_t round) { return round < ns.size() && std::isfinite(ns[round]); }

std::vector<double> measured(Samples ns) {
  std::vector<double> kept;
  std::copy_if(ns.begin(), ns.end(), std::back_inserter(kept),
               [](double one) { return std::isfinite(one); });
  return kept;
}

/// Rounds that everyone with samples has, if they are at least half of what the fullest one has.
std::vector<size_t> shared_rounds(const std::vector<Samples>& all) {
  std::vector<Samples> present;
  size_t rounds = 0, fullest = 0;
  for (const Samples& ns : all) {
    const size_t own = measured(ns).size();
    if (own == 0) continue;
    present.push_back(ns);
    rounds = std::max(rounds, ns.size());
    fullest = std::max(fullest, own);
  }
  std::vector<size_t> shared;
  for (size_t round = 0; round < rounds; ++round) {
    if (std::all_of(present.begin(), present.end(),
                    [&](Samples ns) { return has_sample(ns, round); })) {
      shared.push_back(round);
    }
  }
  if (2 * shared.size() < fullest) shared.clear();
  return shared;
}

double median_over(Samples own, const std::vector<size_t>& shared) {
  std::vector<double> ns = measured(own);
  if (ns.empty()) return INFINITY;
  if (shared.empty()) return profiler::median(ns);
  ns.clear();
  for (const size_t round : shared) ns.push_back(own[round]);
  return profiler::median(ns);
}

/// a - b in the rounds in which both have a sample.
std::vector<double> differences(Samples a, Samples b) {
  std::vector<double> difference;
  for (size_t round = 0; round < a.size(); ++round) {
    if (has_sample(a, round) && has_sample(b, round)) difference.push_back(a[round] - b[round]);
  }
  return difference;
}

/// Whether nearly every difference is more than half of `scale_ns`.
bool gross(const std::vector<double>& difference, double scale_ns) {
  if (difference.size() < kLeastGrossRounds) return false;
  const auto small = std::count_if(difference.begin(), difference.end(),
                                   [&](double ns) { return !(ns > kGross * scale_ns); });
  return static_cast<size_t>(small) <= difference.size() / 6;
}

/// Everything one call of select() looks at. Indices are those of `contenders`.
class Selector {
 public:
  Selector(const std::vector<Contender>& contenders, const SelectionRules& rules)
      : contenders_(contenders), rules_(rules) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      if (!measured(contenders[i].ns).empty()) measured_.push_back(static_cast<int>(i));
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
    find_ties();
    choose(result);
    describe(result);
    return result;
  }

 private:
  const Contender& at(int i) const { return contenders_[static_cast<size_t>(i)]; }
  bool tied(int i) const { return std::find(ties_.begin(), ties_.end(), i) != ties_.end(); }

  /// Leader and tie set; both by position in measured_, which is ordered by key.
  void find_ties() {
    std::vector<Samples> all;
    for (const int i : measured_) all.emplace_back(at(i).ns);
    const int leader = leader_of(all);
    leader_ = measured_[static_cast<size_t>(leader)];
    const double least = leading_median(all, leader);
    tolerance_ns_ = std::max(rules_.tie_pct / 100 * least, rules_.step_ns);
    margin_ns_ = std::max(rules_.switch_margin_pct / 100 * least, tolerance_ns_);
    const std::vector<Gap> found = gaps(all, leader, tolerance_ns_, rules_.step_ns);
    for (size_t i = 0; i < measured_.size(); ++i) {
      if (found[i].slower) continue;
      ties_.push_back(measured_[i]);
      gaps_[measured_[i]] = found[i];
    }
  }

  /// A gain over the base that is worth a switch: of at least the margin, and surely above zero.
  bool clears_margin(int i) const {
    const std::vector<double> gain = differences(at(base_).ns, at(i).ns);
    if (gross(gain, profiler::median(measured(at(i).ns)))) return true;
    if (gain.size() < kLeastPairedRounds) return false;
    const double least = rules_.switch_margin_pct / 100 * profiler::median(measured(at(base_).ns));
    return profiler::median(gain) >= least && interval(gain).low > 0;
  }

  profiler::Interval interval(Samples ns) const {
    return profiler::median_interval(ns, {1 - kAlpha, rules_.step_ns});
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
      p90[i] = profiler::quantile(measured(at(i).ns), 0.9);
      lowest = std::min(lowest, p90[i]);
    }
    std::erase_if(eligible, [&](int i) { return p90[i] > lowest + tolerance_ns_; });
    return eligible.size() == 1 ? "tie_p90" : "tie_name";  // sorted by key already
  }

  /// Whether the rounds leave open that more than the margin is lost against the leader (by the
  /// winner) or by the leader (against anyone else of the tie set).
  bool undecided(int winner, int i) const {
    if (i == leader_) return false;
    const Gap& gap = gaps_.at(i);
    if (!gap.enough()) return true;
    if (gap.narrow(tolerance_ns_)) return false;
    return i == winner ? gap.behind.high > margin_ns_ : gap.behind.low < -margin_ns_;
  }

  std::string status(const Selection& result) const {
    const auto degraded = [&](int i) { return at(i).degraded; };
    if ((base_ >= 0 && degraded(base_)) ||
        std::any_of(result.tie_set.begin(), result.tie_set.end(), degraded)) {
      return "degraded";
    }
    const size_t size = result.tie_set.size();
    if (std::any_of(ties_.begin(), ties_.end(),
                    [&](int i) { return undecided(result.winner, i); })) {
      return "inconclusive";
    }
    return size == 1 ? "winner" : "tie(" + std::to_string(size) + ")";
  }

  void describe(Selection& result) const {
    result.tie_set.push_back(result.winner);
    std::copy_if(ties_.begin(), ties_.end(), std::back_inserter(result.tie_set),
                 [&](int i) { return i != result.winner; });
    result.status = status(result);
    const std::vector<double> own = measured(at(result.winner).ns);
    result.median_ns = profiler::median(own);
    result.interval = interval(own);
    if (base_ < 0) return;
    result.base_median_ns = profiler::median(measured(at(base_).ns));
    const std::vector<double> faster = differences(at(base_).ns, at(result.winner).ns);
    if (result.winner == base_ || faster.empty()) return;
    const double percent = 100 / result.base_median_ns;
    const profiler::Interval gain = interval(faster);
    result.gain_pct = {gain.low * percent, gain.high * percent};
  }

  const std::vector<Contender>& contenders_;
  const SelectionRules& rules_;
  std::vector<int> measured_;  ///< by key
  std::vector<int> ties_;      ///< by key, the leader among them
  std::map<int, Gap> gaps_;    ///< of those in the tie set
  int leader_ = -1, base_ = -1;
  double tolerance_ns_ = 0, margin_ns_ = 0;
};

}  // namespace

int leader_of(const std::vector<Samples>& all) {
  const std::vector<size_t> shared = shared_rounds(all);
  int leader = -1;
  double least = INFINITY;
  for (size_t i = 0; i < all.size(); ++i) {
    const double median = median_over(all[i], shared);
    if (median >= least) continue;
    least = median;
    leader = static_cast<int>(i);
  }
  return leader;
}

double leading_median(const std::vector<Samples>& all, int leader) {
  return leader < 0 ? INFINITY : median_over(all[static_cast<size_t>(leader)], shared_rounds(all));
}

std::vector<Gap> gaps(const std::vector<Samples>& all, int leader, double tolerance_ns,
                      double step_ns) {
  std::vector<Gap> found(all.size());
  if (leader < 0) return found;
  const Samples first = all[static_cast<size_t>(leader)];
  const double scale_ns = profiler::median(measured(first));
  std::map<size_t, std::vector<double>> open;
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<double> difference = differences(all[i], first);
    found[i].rounds = difference.size();
    if (difference.empty() || i == static_cast<size_t>(leader)) continue;
    found[i].behind = profiler::median_interval(difference, {1 - kAlpha, step_ns});
    found[i].slower = gross(difference, scale_ns);
    if (!found[i].slower && found[i].enough()) open.emplace(i, std::move(difference));
  }
  for (bool left = true; left && !open.empty();) {
    const double confidence = 1 - kAlpha / static_cast<double>(open.size());
    for (const auto& [i, difference] : open) {
      found[i].behind = profiler::median_interval(difference, {confidence, step_ns});
      found[i].slower = found[i].behind.low >= tolerance_ns;
    }
    left = std::erase_if(open, [&](const auto& entry) { return found[entry.first].slower; }) > 0;
  }
  return found;
}

Selection select(const std::vector<Contender>& contenders, const SelectionRules& rules) {
  return Selector(contenders, rules).run();
}

}  // namespace muse::tuner
