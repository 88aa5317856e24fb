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
#include "tuner/console.h"

namespace muse::tuner {
namespace {

/// Rounds that are asked for in one go; the worker answers after a quarter of a second in any case.
constexpr int kMostRoundsAtOnce = 64;

/// Why a sample gives no time; empty = it does.
std::string rejection(const RoundReply::One& one, const Floor& floor) {
  if (!one.rejected.empty() || !one.outcome.empty() || !(one.span_ns < floor.ns)) {
    return one.rejected;
  }
  return fmt::format("{} is below the floor of {}: {}", format_ns(one.span_ns), format_ns(floor.ns),
                     floor.why);
}

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

tl::expected<RoundReply, WorkerLoss> RaceRunner::rounds(const RoundRequest& request,
                                                        const std::function<void()>& meanwhile) {
  const Stopwatch watch(cost_.asking_s);
  auto reply = forgiving([&] { return measurer_.rounds(request, meanwhile); });
  if (reply) cost_.rounds_s += reply->rounds_s;
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

/// A race under way.
struct RaceRunner::Running {
  db::Id id;
  std::vector<Entrant>& entrants;
  Race race;
  RoundWatch watch;
  const Floor& floor;
  std::map<int, std::string> rejected{};  ///< why the last sample of an entrant was
  bool last_round_rejected = false;
  bool one_by_one = false;  ///< so that the one that runs when the worker dies is known
  int losses = 0;

  void take_out(Records& records, int entrant, const std::string& why) {
    records.add_exclusion(id, entrants[entrant], why);
    race.exclude(entrant, why);
  }
};

std::chrono::milliseconds RaceRunner::take_in(Running& running,
                                              const std::vector<RoundOrder>& orders,
                                              const RoundReply& reply) {
  std::vector<Entrant>& entrants = running.entrants;
  std::chrono::milliseconds wait{0};
  const int cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  records_.store().transaction([&] {
    for (size_t r = 0; r < reply.rounds.size() && running.race.wants(orders[r]); ++r) {
      const std::vector<int>& turns = orders[r].entrants;
      const RoundReply::Round& round = reply.rounds[r];
      RoundSamples samples;
      std::map<int, RoundReply::One> failed;
      for (size_t i = 0; i < turns.size(); ++i) {
        const RoundReply::One& one = round.samples.at(i);
        if (!one.outcome.empty()) failed.emplace(turns[i], one);
        const std::string why = rejection(one, running.floor);
        if (!why.empty()) running.rejected[turns[i]] = why;
        const bool good = one.outcome.empty() && why.empty();
        samples.ns.push_back(good ? one.span_ns : std::numeric_limits<double>::quiet_NaN());
      }
      if (host_overloaded(round.clock, cpus)) on_busy_host(round.clock.load, cpus);
      const RoundVerdict verdict = running.watch.judge(round.clock, turns, samples.ns);
      samples.rejected = verdict.reason;
      wait = verdict.wait;
      records_.add_round(running.id, entrants, orders[r], round.clock, samples);
      running.race.add(orders[r], samples);
      for (const auto& [i, one] : failed) {
        records_.set(entrants[i].trial, parse_outcome(one.outcome).value_or(Outcome::kLaunchFailed),
                     one.reason);
        running.take_out(records_, i, one.reason);
      }
      ++rounds_;
      const bool again = running.last_round_rejected && wait.count() > 0;
      running.last_round_rejected = !verdict.reason.empty();
      if (again) break;
    }
  });
  return wait;
}

bool RaceRunner::lost(const RaceGroup& group, Running& running,
                      const std::vector<RoundOrder>& orders, const WorkerLoss& loss) {
  if (loss.outcome == Outcome::kPending || is_the_end(loss)) return false;
  std::vector<Entrant>& entrants = running.entrants;
  std::vector<int> culprits = find_culprits(group, entrants, orders.front().entrants);
  const int ran = loss.entrant;
  if (culprits.empty() && running.one_by_one && ran >= 0 &&
      ran < static_cast<int>(entrants.size())) {
    strike(entrants[ran], 1, loss);
    if (is_final(entrants[ran].outcome())) culprits.push_back(ran);
  }
  running.one_by_one = culprits.empty();
  for (const int i : culprits) running.take_out(records_, i, entrants[i].trial.reason);
  // Whatever ends workers from outside must not keep us here for ever.
  if (++running.losses > 3 * static_cast<int>(entrants.size()) + 10) {
    gave_up_ = true;
    return false;
  }
  return true;
}

RaceRunner::Running RaceRunner::start(const RaceGroup& group, std::vector<Entrant>& entrants,
                                      const RaceRules& rules, std::optional<StoredRace> unfinished,
                                      const Floor& floor, bool scout) {
  const auto base_at =
      std::find_if(entrants.begin(), entrants.end(), [](const Entrant& e) { return e.base; });
  const int base = base_at == entrants.end() ? -1 : static_cast<int>(base_at - entrants.begin());
  db::Id id = unfinished ? unfinished->row.id : 0;
  records_.store().transaction([&] {
    for (Entrant& entrant : entrants) {
      if (is_final(entrant.outcome())) continue;
      records_.set(entrant.trial, Outcome::kRunning, scout ? "scouting" : "racing");
    }
    if (id == 0) id = records_.start_race(group, entrants, base, rules, scout);
  });
  Race race = unfinished ? unfinished->race : Race(static_cast<int>(entrants.size()), base, rules);
  return {id, entrants, std::move(race), RoundWatch(rules.step_ns), floor};
}

bool RaceRunner::run(const RaceGroup& group, Running& running) {
  std::vector<RoundOrder> orders;  // of the rounds under way, or run last
  std::optional<RoundReply> last;  // to these orders; not taken in yet
  std::chrono::milliseconds wait{0};
  const auto rest = [&] {
    const size_t done = last ? std::min(last->rounds.size(), orders.size()) : orders.size();
    return std::vector<RoundOrder>(orders.begin() + static_cast<std::ptrdiff_t>(done),
                                   orders.end());
  };
  for (;;) {
    std::vector<RoundOrder> next = rest();
    const auto take_in_last = [&] {
      if (!last) return;
      wait = take_in(running, orders, *std::exchange(last, std::nullopt));
      tick();
    };
    if (next.empty()) {
      take_in_last();
      pause(std::exchange(wait, std::chrono::milliseconds(0)));
      next = running.race.block(kMostRoundsAtOnce);
      if (next.empty()) return true;
    }
    if (!keep_on_()) {
      take_in_last();
      return false;
    }
    std::vector<std::vector<int>> turns;
    for (const RoundOrder& order : next) turns.push_back(order.entrants);
    RoundRequest asked = request(group, running.entrants, std::move(turns));
    asked.one_by_one = running.one_by_one;
    asked.placements = placements;
    asked.first_round = next.front().number;
    auto reply = rounds(asked, take_in_last);
    take_in_last();
    orders = std::move(next);
    if (!reply) {
      if (!lost(group, running, orders, reply.error())) return false;
      orders.clear();
      continue;
    }
    last = *std::move(reply);
    // The answer that was taken in meanwhile leaves no use for these, or the machine was to rest.
    if (wait.count() > 0 || !running.race.wants(orders.front())) {
      last.reset();
      orders.clear();
    }
  }
}

StoredRace RaceRunner::stored(const RaceGroup& group, db::Id id) const {
  for (StoredRace& race : records_.races(group)) {
    if (race.row.id == id) return std::move(race);
  }
  throw std::logic_error(fmt::format("race {} does not replay from its own rows", id));
}

std::optional<StoredRace> RaceRunner::race(const RaceGroup& group, std::vector<Entrant>& entrants,
                                           const RaceRules& rules,
                                           std::optional<StoredRace> unfinished,
                                           const Floor& floor) {
  const profiler::NvtxRange range(
      fmt::format("race {} {}", muse::name(group.span), muse::key(group.shape)));
  Running running = start(group, entrants, rules, std::move(unfinished), floor, false);
  if (!run(group, running)) return std::nullopt;
  const std::vector<Standing> standings = running.race.standings();
  records_.store().transaction([&] {
    for (size_t i = 0; i < entrants.size(); ++i) {
      if (is_final(entrants[i].outcome())) continue;
      if (standings[i].excluded) {
        const auto why = running.rejected.find(static_cast<int>(i));
        records_.set(entrants[i].trial, Outcome::kUnmeasurable,
                     why == running.rejected.end()
                         ? standings[i].why
                         : fmt::format("{}; the last: {}", standings[i].why, why->second));
      } else {
        records_.set(entrants[i].trial, running.race.degraded() ? Outcome::kDegraded : Outcome::kOk,
                     "");
      }
    }
    records_.finish_race(running.id, false);
  });
  return stored(group, running.id);
}

std::optional<StoredRace> RaceRunner::scout(const RaceGroup& group, std::vector<Entrant>& entrants,
                                            const RaceRules& rules,
                                            std::optional<StoredRace> unfinished,
                                            const Floor& floor) {
  const profiler::NvtxRange range(
      fmt::format("scout {} {}", muse::name(group.span), muse::key(group.shape)));
  Running running = start(group, entrants, rules, std::move(unfinished), floor, true);
  if (!run(group, running)) return std::nullopt;
  records_.finish_race(running.id, true);
  return stored(group, running.id);
}

}  // namespace muse::tuner
