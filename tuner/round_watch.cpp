// SPDX-License-Identifier: Apache-2.0
// Clock events, clocks and the common move of a round's samples against the race's own history.
#include "tuner/round_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "profiler/nvml.h"
#include "profiler/statistics.h"
#include "tuner/race.h"

namespace muse::tuner {
namespace {

constexpr double kClockMove = 0.02;
constexpr double kSampleMove = 0.03;
constexpr size_t kSettlingRounds = 3;  ///< within which a clock may still rise
constexpr size_t kLeastReference = 3;  ///< good samples of an entrant before it is a witness
constexpr size_t kReference = 64;      ///< samples a reference is the median of, at most
constexpr size_t kLeastScatter = 16;   ///< turns before their scatter is believed
constexpr size_t kScatter = 256;
constexpr size_t kRoundScatter = 64;
constexpr size_t kLasting = 12;  ///< rounds that show a move that lasts
constexpr std::chrono::milliseconds kFirstWait{50};

// How far beyond the scatter, in standard errors. Chosen on 59,000 rounds of an H200 with steady
// clocks so that fewer than 1 in 100 is rejected. The tails of short kernels' samples are heavy, so
// normal quantiles would reject 1 in 10.
constexpr double kRoundSigmas = 3.5, kHalfSigmas = 5, kLastingSigmas = 3.5;
constexpr double kMedianError = 1.2533;  ///< of a median, against the mean's sigma / sqrt(n)

void keep(std::deque<double>& values, double value, size_t most) {
  values.push_back(value);
  if (values.size() > most) values.pop_front();
}

double median(const std::deque<double>& values) {
  return profiler::median(std::vector<double>(values.begin(), values.end()));
}

/// The standard deviation whose absolute values have this 90 % quantile: sees the tails' beginning,
/// which a median deviation does not, and no single outlier.
double sigma_of(const std::deque<double>& absolute) {
  return profiler::quantile(std::vector<double>(absolute.begin(), absolute.end()), 0.9) / 1.6449;
}

std::string moved(const char* what, double move, double limit) {
  return fmt::format("{} by {:+.1f} % (limit {:.1f} %)", what, 100 * move, 100 * limit);
}

/// Judges one clock and keeps it where it held.
std::string judge_clock(const char* name, double mhz, std::deque<double>& good) {
  if (mhz < 0 || good.empty()) return "";
  const double reference = median(good);
  const double move = mhz / reference - 1;
  if (move > kClockMove && good.size() < kSettlingRounds) {
    good.clear();
    return "";
  }
  if (std::abs(move) <= kClockMove) return "";
  return fmt::format("{} clock moved from {:.0f} to {:.0f} MHz", name, reference, mhz);
}

}  // namespace

std::string RoundWatch::clock_reason(const profiler::ClockReading& clock) {
  if (const int64_t bits = clock.reason_bits & profiler::kSlowdownBits; bits != 0) {
    return "clock held back: " + profiler::clock_reasons(bits);
  }
  std::string reason = judge_clock("SM", clock.sm_mhz, sm_mhz_);
  if (reason.empty()) reason = judge_clock("memory", clock.memory_mhz, memory_mhz_);
  return reason;
}

RoundWatch::Moves RoundWatch::moves(const std::vector<int>& turns,
                                    const std::vector<double>& ns) const {
  Moves moves;
  for (size_t i = 0; i < std::min(turns.size(), ns.size()); ++i) {
    const auto good = good_ns_.find(turns[i]);
    if (!std::isfinite(ns[i]) || good == good_ns_.end()) continue;
    if (good->second.size() < kLeastReference) continue;
    const double reference = median(good->second);
    if (reference <= 0) continue;
    const double move = ns[i] / reference - 1;
    moves.all.push_back(move);
    if (2 * i + 1 < turns.size()) moves.first_half.push_back(move);
    if (2 * i + 1 > turns.size()) moves.second_half.push_back(move);
    moves.step = std::max(moves.step, step_ns_ / reference);
  }
  return moves;
}

double RoundWatch::limit(double sigmas, double turns, double step) const {
  return std::max({kSampleMove, 2 * step, sigmas * kMedianError * sigma_ / std::sqrt(turns)});
}

std::string RoundWatch::move_reason(const Moves& moves) const {
  if (sigma_ == 0 || moves.all.empty()) return "";
  const auto count = static_cast<double>(moves.all.size());
  const double round = profiler::median(moves.all);
  const double round_limit = limit(kRoundSigmas, count, moves.step);
  if (std::abs(round) > round_limit) return moved("samples moved", round, round_limit);

  if (!moves.first_half.empty() && !moves.second_half.empty()) {
    const double within = profiler::median(moves.second_half) - profiler::median(moves.first_half);
    const double pairs = 1 / (1 / static_cast<double>(moves.first_half.size()) +
                              1 / static_cast<double>(moves.second_half.size()));
    const double half_limit = limit(kHalfSigmas, pairs, moves.step);
    if (std::abs(within) > half_limit) {
      return moved("samples moved within the round", within, half_limit);
    }
  }

  if (recent_.size() + 1 < kLasting) return "";
  std::vector<double> all = moves.all;
  for (const auto& one : recent_) all.insert(all.end(), one.begin(), one.end());
  const double lasting = profiler::median(all);
  const double lasting_limit = limit(kLastingSigmas, static_cast<double>(all.size()), moves.step);
  if (std::abs(lasting) <= lasting_limit) return "";
  return moved("samples of the last rounds moved", lasting, lasting_limit);
}

/// From rejected rounds, too: a machine whose rounds scatter has to be judged by that.
void RoundWatch::learn(const Moves& moves) {
  if (moves.all.empty()) return;
  for (const double move : moves.all) keep(scatter_, std::abs(move), kScatter);
  keep(round_scatter_,
       std::abs(profiler::median(moves.all)) * std::sqrt(static_cast<double>(moves.all.size())),
       kRoundScatter);
  recent_.push_back(moves.all);
  if (recent_.size() + 1 > kLasting) recent_.pop_front();
  if (scatter_.size() < kLeastScatter) return;
  sigma_ = std::max(sigma_of(scatter_), sigma_of(round_scatter_) / kMedianError);
}

RoundVerdict RoundWatch::judge(const profiler::ClockReading& clock, const std::vector<int>& turns,
                               const std::vector<double>& ns) {
  const Moves found = moves(turns, ns);
  RoundVerdict verdict{.reason = clock_reason(clock)};
  if (verdict.reason.empty()) verdict.reason = move_reason(found);
  learn(found);
  if (!verdict.reason.empty()) {
    if (rejected_in_a_row_ < Race::kMaxRejectedInARow) {
      verdict.wait = kFirstWait * (1 << rejected_in_a_row_);
      ++rejected_in_a_row_;
    }
    return verdict;
  }
  rejected_in_a_row_ = 0;
  if (clock.sm_mhz >= 0) keep(sm_mhz_, clock.sm_mhz, kReference);
  if (clock.memory_mhz >= 0) keep(memory_mhz_, clock.memory_mhz, kReference);
  for (size_t i = 0; i < std::min(turns.size(), ns.size()); ++i) {
    if (std::isfinite(ns[i])) keep(good_ns_[turns[i]], ns[i], kReference);
  }
  return verdict;
}

bool host_overloaded(const profiler::ClockReading& clock, int cpus) { return clock.load > cpus; }

}  // namespace muse::tuner
