// SPDX-License-Identifier: Apache-2.0
// Runs one race on the worker: gates, rounds, and what becomes of who crashes, hangs or gives no
// sample.
#include "tuner/race_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <thread>

#include "profiler/nvtx.h"

namespace muse::tuner {
namespace {

/// Rounds that are asked for in one go; the worker answers after a quarter of a second in any case.
constexpr int kMostRoundsAtOnce = 64;

/// Adds its lifetime.
class Stopwatch {
 public:
  explicit Stopwatch(double& sum_s) : sum_s_(sum_s) {}
  ~Stopwatch() {
    sum_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& sum_s_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

RaceRunner::RaceRunner(Records& records, Measurer& measurer, uint64_t input_seed,
                       std::function<bool()> keep_on)
    : records_(records),
      measurer_(measurer),
      input_seed_(input_seed),
      keep_on_(std::move(keep_on)) {
  pause = [this](std::chrono::milliseconds time) {
    constexpr std::chrono::milliseconds kLook{20};  // a stop need not wait for the end
    for (; time.count() > 0 && keep_on_(); time -= kLook) {
      std::this_thread::sleep_for(std::min(time, kLook));
    }
  };
}

template <class Ask>
auto RaceRunner::forgiving(Ask ask) const -> decltype(ask()) {
  for (int losses = 0;; ++losses) {
    auto answer = ask();
    if (answer || !answer.error().blameless || losses == kForgivenLosses || !keep_on_())
      return answer;
  }
}

bool RaceRunner::is_the_end(const WorkerLoss& loss) {
  if (!loss.no_worker) return false;
  gave_up_ = true;
  no_worker_ = loss.reason;
  return true;
}

void RaceRunner::strike(Entrant& entrant, int strikes, const WorkerLoss& loss) {
  entrant.trial.strikes += strikes;
  if (entrant.trial.strikes < kStrikes) {
    records_.set(entrant.trial, Outcome::kRunning, loss.reason);
    return;
  }
  records_.set(entrant.trial, loss.outcome, loss.reason);
  records_.quarantine(entrant, loss.reason);
}

bool RaceRunner::validate(const RaceGroup& group, Entrant& entrant) {
  if (is_final(entrant.outcome())) return true;
  if (records_.quarantined(entrant.chain)) {
    records_.set(entrant.trial, Outcome::kCrashed,
                 "quarantined: this code crashed or hung twice on this device before");
    return true;
  }
  if (records_.validated(entrant.trial)) return true;
  if (entrant.outcome() != Outcome::kRunning) {
    records_.set(entrant.trial, Outcome::kRunning, "validating");
  }
  while (keep_on_()) {
    const Stopwatch watch(cost_.validating_s);
    const auto report = forgiving([&] {
      return measurer_.validate({.shape = muse::key(group.shape),
                                 .chain = muse::key(entrant.chain),
                                 .seed = input_seed_});
    });
    tick();
    if (report) {
      records_.store().transaction([&] {
        records_.add(entrant.trial, *report);
        if (report->outcome != Outcome::kOk) {
          records_.set(entrant.trial, report->outcome, report->reason);
        }
      });
      return true;
    }
    if (report.error().outcome == Outcome::kPending) return false;  // stopped
    if (is_the_end(report.error())) return false;
    strike(entrant, 1, report.error());
    if (is_final(entrant.outcome())) return true;
  }
  return false;
}

bool RaceRunner::revalidate(const RaceGroup& group, Entrant& entrant) {
  if (records_.revalidated(entrant.trial)) return true;
  const Stopwatch watch(cost_.validating_s);
  const RoundRequest timed = request(group, {entrant}, {});
  const auto report = forgiving([&] {
    return measurer_.revalidate({.shape = timed.shape,
                                 .seed = timed.seed,
                                 .entrant = timed.entrants.front(),
                                 .other_seed = timed.seed + 1});
  });
  if (!report) {
    if (report.error().outcome == Outcome::kPending || is_the_end(report.error())) return false;
    strike(entrant, kStrikes, report.error());
    return false;
  }
  records_.store().transaction([&] {
    records_.add(entrant.trial, *report);
    if (report->outcome != Outcome::kOk) {
      records_.set(entrant.trial, report->outcome, report->reason);
    }
  });
  return report->outcome == Outcome::kOk;
}

RoundRequest RaceRunner::request(const RaceGroup& group, const std::vector<Entrant>& entrants,
                                 std::vector<std::vector<int>> orders) const {
  RoundRequest request{.shape = muse::key(group.shape),
                       .seed = input_seed_,
                       .regime = std::string(profiler::name(group.regime)),
                       .entrants = {},
                       .orders = std::move(orders)};
  for (const Entrant& entrant : entrants) {
    request.entrants.push_back({.chain = muse::key(entrant.chain),
                                .feeder = entrant.feeder.empty() ? "" : muse::key(entrant.feeder)});
  }
  return request;
}

tl::expected<RoundReply, WorkerLoss> RaceRunner::rounds(const RoundRequest& request) {
  const Stopwatch watch(cost_.rounds_s);
  auto reply = forgiving([&] { return measurer_.rounds(request); });
  if (reply) cost_.device_s += reply->device_ns * 1e-9;
  return reply;
}

std::optional<double> RaceRunner::time_once(const RaceGroup& group, const Entrant& entrant) {
  const auto reply = measurer_.rounds(request(group, {entrant}, {{0, 0}}));
  if (!reply) return std::nullopt;
  const RoundReply::One& second = reply->rounds.at(0).samples.at(1);
  if (!second.outcome.empty() || !second.rejected.empty()) return std::nullopt;
  return second.span_ns;
}

// The worker died in a round: run each of its entrants alone. Those that fail alone are the
// culprits.
std::vector<int> RaceRunner::find_culprits(const RaceGroup& group, std::vector<Entrant>& entrants,
                                           const std::vector<int>& order) {
  std::vector<int> out;
  const std::set<int> distinct(order.begin(), order.end());
  for (const int i : distinct) {
    if (!keep_on_()) return out;
    const auto alone = rounds(request(group, entrants, {{i}}));
    if (alone || alone.error().outcome == Outcome::kPending) continue;
    if (is_the_end(alone.error())) return out;
    strike(entrants[i], kStrikes, alone.error());
    out.push_back(i);
  }
  return out;
}

std::chrono::milliseconds RaceRunner::take_in(db::Id id, std::vector<Entrant>& entrants,
                                              const std::vector<RoundOrder>& orders,
                                              const RoundReply& reply, RoundWatch& watch,
                                              Race& race, std::map<int, std::string>& rejected) {
  std::chrono::milliseconds wait{0};
  records_.store().transaction([&] {
    for (size_t r = 0; r < reply.rounds.size() && race.wants(orders[r]); ++r) {
      const std::vector<int>& turns = orders[r].entrants;
      const RoundReply::Round& round = reply.rounds[r];
      RoundSamples samples;
      std::map<int, RoundReply::One> failed;
      for (size_t i = 0; i < turns.size(); ++i) {
        const RoundReply::One& one = round.samples.at(i);
        if (!one.outcome.empty()) failed.emplace(turns[i], one);
        if (!one.rejected.empty()) rejected[turns[i]] = one.rejected;
        const bool good = one.outcome.empty() && one.rejected.empty();
        samples.ns.push_back(good ? one.span_ns : std::numeric_limits<double>::quiet_NaN());
      }
      const RoundVerdict verdict = watch.judge(round.clock, turns, samples.ns);
      samples.rejected = verdict.reason;
      wait = verdict.wait;
      records_.add_round(id, entrants, orders[r], round.clock, samples);
      race.add(orders[r], samples);
      for (const auto& [i, one] : failed) {
        records_.set(entrants[i].trial, parse_outcome(one.outcome).value_or(Outcome::kLaunchFailed),
                     one.reason);
        records_.add_exclusion(id, entrants[i], one.reason);
        race.exclude(i, one.reason);
      }
      ++rounds_;
    }
  });
  return wait;
}

std::optional<StoredRace> RaceRunner::race(const RaceGroup& group, std::vector<Entrant>& entrants,
                                           const RaceRules& rules,
                                           std::optional<StoredRace> unfinished) {
  const profiler::NvtxRange range(
      fmt::format("race {} {}", muse::name(group.span), muse::key(group.shape)));
  const auto base_at =
      std::find_if(entrants.begin(), entrants.end(), [](const Entrant& e) { return e.base; });
  const int base = base_at == entrants.end() ? -1 : static_cast<int>(base_at - entrants.begin());
  db::Id id = unfinished ? unfinished->row.id : 0;
  records_.store().transaction([&] {
    for (Entrant& entrant : entrants) {
      if (!is_final(entrant.outcome())) records_.set(entrant.trial, Outcome::kRunning, "racing");
    }
    if (id == 0) id = records_.start_race(group, entrants, base, rules);
  });
  Race race = unfinished ? unfinished->race : Race(static_cast<int>(entrants.size()), base, rules);
  RoundWatch watch(rules.step_ns);
  int losses = 0;
  bool one_by_one = false;              // so that the one that runs when the worker dies is known
  std::map<int, std::string> rejected;  // why the last sample of an entrant was
  for (;;) {
    const std::vector<RoundOrder> orders = race.block(kMostRoundsAtOnce);
    if (orders.empty()) break;
    if (!keep_on_()) return std::nullopt;
    std::vector<std::vector<int>> turns;
    for (const RoundOrder& order : orders) turns.push_back(order.entrants);
    RoundRequest asked = request(group, entrants, std::move(turns));
    asked.one_by_one = one_by_one;
    const auto reply = rounds(asked);
    if (!reply) {
      if (reply.error().outcome == Outcome::kPending) return std::nullopt;
      if (is_the_end(reply.error())) return std::nullopt;
      std::vector<int> culprits = find_culprits(group, entrants, orders.front().entrants);
      const int running = reply.error().entrant;
      if (culprits.empty() && one_by_one && running >= 0 &&
          running < static_cast<int>(entrants.size())) {
        strike(entrants[running], 1, reply.error());
        if (is_final(entrants[running].outcome())) culprits.push_back(running);
      }
      one_by_one = culprits.empty();
      for (const int i : culprits) {
        records_.add_exclusion(id, entrants[i], entrants[i].trial.reason);
        race.exclude(i, entrants[i].trial.reason);
      }
      // Whatever ends workers from outside must not keep us here for ever.
      if (++losses > 3 * static_cast<int>(entrants.size()) + 10) {
        gave_up_ = true;
        return std::nullopt;
      }
      continue;
    }
    pause(take_in(id, entrants, orders, *reply, watch, race, rejected));
    tick();
  }
  const std::vector<Standing> standings = race.standings();
  records_.store().transaction([&] {
    for (size_t i = 0; i < entrants.size(); ++i) {
      if (is_final(entrants[i].outcome())) continue;
      if (standings[i].excluded) {
        const auto why = rejected.find(static_cast<int>(i));
        records_.set(entrants[i].trial, Outcome::kUnmeasurable,
                     why == rejected.end()
                         ? standings[i].why
                         : fmt::format("{}; the last: {}", standings[i].why, why->second));
      } else {
        records_.set(entrants[i].trial, race.degraded() ? Outcome::kDegraded : Outcome::kOk, "");
      }
    }
    records_.finish_race(id);
  });
  for (StoredRace& stored : records_.races(group)) {
    if (stored.row.id == id) return std::move(stored);
  }
  throw std::logic_error(fmt::format("race {} does not replay from its own rows", id));
}

}  // namespace muse::tuner
