// SPDX-License-Identifier: Apache-2.0
// The race as a state that rounds are fed into; every decision is a function of rules and samples.
#include "tuner/race.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <stdexcept>

namespace muse::tuner {
namespace {

/// Rounds of the final after which it is looked at first.
constexpr int kFirstLook = 8;

constexpr double kNoSample = std::numeric_limits<double>::quiet_NaN();

bool is_sample(double ns) { return std::isfinite(ns) && ns > 0; }

std::vector<double> measured(const std::vector<double>& samples) {
  std::vector<double> good;
  std::copy_if(samples.begin(), samples.end(), std::back_inserter(good), is_sample);
  return good;
}

/// Infinity where there is no sample, so that it sorts last.
double median_ns(const std::vector<double>& samples) {
  const std::vector<double> good = measured(samples);
  return good.empty() ? std::numeric_limits<double>::infinity() : profiler::median(good);
}

profiler::Bootstrap bootstrap(const RaceRules& rules) {
  return {.least_half_width = rules.step_ns};
}

/// Over the rounds both have; nullopt where there is none.
std::optional<profiler::Interval> paired(const std::vector<double>& a, const std::vector<double>& b,
                                         const RaceRules& rules) {
  std::vector<double> left, right;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!is_sample(a[i]) || !is_sample(b[i])) continue;
    left.push_back(a[i]);
    right.push_back(b[i]);
  }
  if (left.empty()) return std::nullopt;
  return profiler::paired_median_interval(left, right, bootstrap(rules));
}

void shuffle(std::vector<int>& entrants, uint64_t seed, int number) {
  profiler::SplitMix random(profiler::SplitMix(seed + static_cast<uint64_t>(number)).next());
  for (size_t i = entrants.size(); i > 1; --i)
    std::swap(entrants[i - 1], entrants[random.below(i)]);
}

/// Early rounds end at the last checkpoint within half of the budget, or there where none fits.
int early_rounds(const RaceRules& rules) {
  int end = -1;
  for (const RaceRules::Checkpoint& checkpoint : rules.checkpoints) {
    if (checkpoint.rounds <= rules.max_rounds / 2) end = std::max(end, checkpoint.rounds);
  }
  return end >= 0 ? end : rules.max_rounds / 2;
}

}  // namespace

Race::Race(int entrants, int base, RaceRules rules)
    : base_(base),
      rules_(std::move(rules)),
      entrants_(static_cast<size_t>(std::max(entrants, 0))),
      early_end_(early_rounds(rules_)) {
  if (base >= entrants) throw std::invalid_argument("the base is no entrant of the race");
  if (rules_.max_rounds < 1) throw std::invalid_argument("a race needs at least one round");
  advance(0);
}

std::vector<int> Race::survivors() const {
  std::vector<int> running;
  for (size_t i = 0; i < entrants_.size(); ++i) {
    if (entrants_[i].running(in_final_)) running.push_back(static_cast<int>(i));
  }
  return running;
}

bool Race::over() const {
  return decided_ || early_rounds_ + final_rounds_ >= rules_.max_rounds || survivors().empty();
}

RoundOrder Race::order_of(int number) const {
  RoundOrder order{.number = number, .final = in_final_, .entrants = survivors()};
  shuffle(order.entrants, rules_.seed, order.number);
  if (base_ >= 0 && entrants_[static_cast<size_t>(base_)].running(in_final_)) {
    order.entrants.insert(order.entrants.begin(), base_);
    order.entrants.push_back(base_);
  }
  return order;
}

std::optional<RoundOrder> Race::next() const {
  if (over()) return std::nullopt;
  return order_of(added_);
}

int Race::rounds_to_decision() const {
  const int left = rules_.max_rounds - early_rounds_ - final_rounds_;
  if (in_final_) return std::min(left, next_check_ - final_rounds_);
  int end = early_end_;
  if (checkpoint_ < rules_.checkpoints.size()) {
    end = std::min(end, rules_.checkpoints[checkpoint_].rounds);
  }
  return std::min(left, end - early_rounds_);
}

std::vector<RoundOrder> Race::block(int limit) const {
  std::vector<RoundOrder> orders;
  if (over()) return orders;
  const int count = std::min(limit, rounds_to_decision());
  for (int i = 0; i < count; ++i) orders.push_back(order_of(added_ + i));
  return orders;
}

void Race::add(const RoundOrder& order, const RoundSamples& samples) {
  added_ = order.number + 1;
  if (samples.rejected.empty()) {
    if (samples.ns.size() != order.entrants.size()) {
      throw std::logic_error("a round needs one sample per turn");
    }
    rejected_in_a_row_ = 0;
  } else {
    if (++rejected_in_a_row_ <= kMaxRejectedInARow) return;
    degraded_ = true;
  }
  record(order, samples);
  exclude_unmeasured();
  advance(order.number);
}

/// One value per entrant and round, so that equal positions are pairs. Of the base's turns, the
/// first and the last are sentinels and tell of the machine alone; the one between counts.
void Race::record(const RoundOrder& order, const RoundSamples& samples) {
  std::vector<double> round(entrants_.size(), kNoSample);
  const bool sentinel =
      base_ >= 0 && std::count(order.entrants.begin(), order.entrants.end(), base_) > 1;
  const size_t turns = order.entrants.size();
  for (size_t i = sentinel ? 1 : 0; i < turns - (sentinel ? 1 : 0); ++i) {
    const auto index = static_cast<size_t>(order.entrants[i]);
    if (i < samples.ns.size() && is_sample(samples.ns[i])) round[index] = samples.ns[i];
    ++entrants_[index].turns;
    if (!is_sample(round[index])) ++entrants_[index].missed;
  }
  for (size_t i = 0; i < entrants_.size(); ++i) {
    (order.final ? entrants_[i].final : entrants_[i].early).push_back(round[i]);
  }
  ++(order.final ? final_rounds_ : early_rounds_);
}

void Race::exclude_unmeasured() {
  const bool ended = early_rounds_ + final_rounds_ >= rules_.max_rounds;
  for (Entrant& entrant : entrants_) {
    if (!entrant.running(in_final_) || 2 * entrant.missed <= entrant.turns) continue;
    if (entrant.turns < kLeastTurns && !ended) continue;
    entrant.excluded = true;
    entrant.why = fmt::format("{} of {} samples rejected", entrant.missed, entrant.turns);
  }
}

void Race::exclude(int entrant, const std::string& why) {
  Entrant& out = entrants_.at(static_cast<size_t>(entrant));
  if (out.excluded) return;
  out.excluded = true;
  out.why = why;
  advance(std::max(added_ - 1, 0));
}

void Race::advance(int round) {
  if (in_final_) {
    check_final(round);
    return;
  }
  while (checkpoint_ < rules_.checkpoints.size() &&
         rules_.checkpoints[checkpoint_].rounds <= std::min(early_rounds_, early_end_)) {
    eliminate(rules_.checkpoints[checkpoint_++], round);
  }
  if (early_rounds_ >= early_end_ || survivors().size() <= 2) begin_final(round);
}

void Race::eliminate(const RaceRules::Checkpoint& checkpoint, int round) {
  const std::vector<int> running = survivors();
  const int first = leader();
  if (first < 0) return;
  const Entrant& leader = entrants_[static_cast<size_t>(first)];
  const double leader_ns = median_ns(leader.early);
  for (int index : running) {
    if (index == first || index == base_) continue;
    Entrant& entrant = entrants_[static_cast<size_t>(index)];
    const auto interval = paired(entrant.early, leader.early, rules_);
    if (!interval) continue;  // no common round yet: nothing is known against it
    const double behind_pct = 100 * interval->low / leader_ns;
    if (behind_pct <= checkpoint.behind_pct) continue;
    entrant.dropped_in_round = round;
    entrant.why = fmt::format("at least {:.1f} % behind the leader after {} rounds (limit {:g} %)",
                              behind_pct, early_rounds_, checkpoint.behind_pct);
  }
}

void Race::begin_final(int round) {
  std::vector<int> running = survivors();
  // The base first: it always has a seat. Stable, so that equal medians stay ordered by index.
  std::stable_sort(running.begin(), running.end(), [this](int a, int b) {
    if ((a == base_) != (b == base_)) return a == base_;
    return median_ns(entrants_[static_cast<size_t>(a)].early) <
           median_ns(entrants_[static_cast<size_t>(b)].early);
  });
  // Without a round there is no evidence to choose by, and everybody goes on.
  const size_t seats =
      early_rounds_ == 0 ? running.size() : static_cast<size_t>(std::max(rules_.max_finalists, 1));
  for (size_t i = 0; i < running.size(); ++i) {
    Entrant& entrant = entrants_[static_cast<size_t>(running[i])];
    entrant.finalist = i < seats;
    if (entrant.finalist) continue;
    entrant.dropped_in_round = round;
    const double ns = median_ns(entrant.early);
    entrant.why = std::isinf(ns)
                      ? "no sample to go into the final with"
                      : fmt::format("behind the {} finalists by median, {:.0f} ns", seats, ns);
  }
  in_final_ = true;
  least_final_ = std::max(1, std::min(rules_.final_rounds, rules_.max_rounds - early_rounds_));
  next_check_ = std::min(kFirstLook, least_final_);
}

void Race::check_final(int round) {
  if (final_rounds_ < next_check_) return;
  if (final_rounds_ < least_final_) {
    next_check_ = std::min(2 * final_rounds_, least_final_);
  } else {
    next_check_ = final_rounds_ + std::max(4, final_rounds_ / 4);
  }
  const int first = leader();
  if (first < 0) return;
  leave_final(first, round);
  if (final_rounds_ < least_final_) return;
  const std::vector<int> running = survivors();
  const std::vector<Samples> all = samples_of(running);
  const auto at = std::find(running.begin(), running.end(), first);
  const double limit =
      std::max(rules_.half_width_pct / 100 * median_ns(samples(first)), rules_.step_ns);
  std::vector<Gap> found = gaps(all, static_cast<int>(at - running.begin()), limit, rules_.step_ns);
  found.erase(found.begin() + (at - running.begin()));
  decided_ =
      std::all_of(found.begin(), found.end(), [&](const Gap& gap) { return gap.settled(limit); });
}

/// Those that stay lose a rival for good, and gain its time.
void Race::leave_final(int first, int round) {
  if (rules_.checkpoints.empty()) return;
  const double limit_pct = rules_.checkpoints.back().behind_pct;
  const std::vector<int> running = survivors();
  const auto at = std::find(running.begin(), running.end(), first) - running.begin();
  const double leader_ns = median_ns(samples(first));
  const double limit = std::max(limit_pct / 100 * leader_ns, rules_.step_ns);
  const std::vector<Gap> found =
      gaps(samples_of(running), static_cast<int>(at), limit, rules_.step_ns);
  for (size_t i = 0; i < running.size(); ++i) {
    if (!found[i].slower || running[i] == base_) continue;
    Entrant& entrant = entrants_[static_cast<size_t>(running[i])];
    entrant.dropped_in_round = round;
    entrant.why = fmt::format(
        "{:.1f} to {:.1f} % behind the leader after {} rounds of the final (limit {:g} %)",
        100 * found[i].behind.low / leader_ns, 100 * found[i].behind.high / leader_ns,
        final_rounds_, limit_pct);
  }
}

std::vector<Samples> Race::samples_of(const std::vector<int>& entrants) const {
  std::vector<Samples> all;
  for (const int index : entrants) all.emplace_back(samples(index));
  return all;
}

const std::vector<double>& Race::samples(int entrant) const {
  const Entrant& one = entrants_.at(static_cast<size_t>(entrant));
  return one.finalist && final_rounds_ > 0 ? one.final : one.early;
}

int Race::leader() const {
  const std::vector<int> running = survivors();
  const int first = leader_of(samples_of(running));
  return first < 0 ? -1 : running[static_cast<size_t>(first)];
}

/// In the final where both ran it, else in the early rounds, which everybody ran.
profiler::Interval Race::behind(const Entrant& entrant, const Entrant& leader) const {
  std::optional<profiler::Interval> interval;
  if (entrant.finalist) interval = paired(entrant.final, leader.final, rules_);
  if (!interval) interval = paired(entrant.early, leader.early, rules_);
  return interval.value_or(profiler::Interval{});
}

std::vector<Standing> Race::standings() const {
  const int first = leader();
  std::vector<Standing> standings;
  for (size_t i = 0; i < entrants_.size(); ++i) {
    const Entrant& entrant = entrants_[i];
    const std::vector<double> good = measured(samples(static_cast<int>(i)));
    Standing standing;
    standing.samples = static_cast<int>(good.size());
    standing.finalist = entrant.finalist && entrant.dropped_in_round < 0;
    standing.dropped_in_round = entrant.dropped_in_round;
    standing.why = entrant.why;
    standing.excluded = entrant.excluded;
    if (!good.empty()) {
      standing.median_ns = profiler::median(good);
      standing.interval = profiler::median_interval(good, bootstrap(rules_));
      if (first >= 0 && static_cast<int>(i) != first) {
        standing.behind = behind(entrant, entrants_[static_cast<size_t>(first)]);
      }
    }
    standings.push_back(std::move(standing));
  }
  return standings;
}

}  // namespace muse::tuner
