// SPDX-License-Identifier: Apache-2.0
// Runs one race on the worker: gates, rounds, and what becomes of who crashes, hangs or gives no
// sample.
#include "tuner/race_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "profiler/nvtx.h"

namespace muse::tuner {

RaceRunner::RaceRunner(Records& records, Supervisor& supervisor, uint64_t input_seed,
                       std::function<bool()> keep_on)
    : records_(records),
      supervisor_(supervisor),
      input_seed_(input_seed),
      keep_on_(std::move(keep_on)) {}

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
    const auto report = forgiving([&] {
      return supervisor_.validate({.shape = muse::key(group.shape),
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

RoundRequest RaceRunner::request(const RaceGroup& group, const std::vector<Entrant>& entrants,
                                 std::vector<int> order) const {
  RoundRequest request{.shape = muse::key(group.shape),
                       .seed = input_seed_,
                       .regime = std::string(profiler::name(group.regime)),
                       .entrants = {},
                       .order = std::move(order)};
  for (const Entrant& entrant : entrants) {
    request.entrants.push_back({.chain = muse::key(entrant.chain),
                                .feeder = entrant.feeder.empty() ? "" : muse::key(entrant.feeder)});
  }
  return request;
}

std::optional<double> RaceRunner::time_once(const RaceGroup& group, const Entrant& entrant) {
  const auto reply = supervisor_.round(request(group, {entrant}, {0, 0}));
  if (!reply) return std::nullopt;
  const RoundReply::One& second = reply->samples.at(1);
  if (!second.outcome.empty() || !second.rejected.empty()) return std::nullopt;
  return second.span_ns;
}

// The worker died in a round: run each of its entrants alone. Those that fail alone are the
// culprits; where none does, the one that was running gets a strike.
std::vector<int> RaceRunner::find_culprits(const RaceGroup& group, std::vector<Entrant>& entrants,
                                           const RoundOrder& order, const WorkerLoss& loss) {
  std::vector<int> out;
  const std::set<int> distinct(order.entrants.begin(), order.entrants.end());
  for (const int i : distinct) {
    if (!keep_on_()) return out;
    const auto alone = forgiving([&] { return supervisor_.round(request(group, entrants, {i})); });
    if (alone || alone.error().outcome == Outcome::kPending) continue;
    if (is_the_end(alone.error())) return out;
    strike(entrants[i], kStrikes, alone.error());
    out.push_back(i);
  }
  if (out.empty() && loss.entrant >= 0 && loss.entrant < static_cast<int>(entrants.size())) {
    strike(entrants[loss.entrant], 1, loss);
    if (is_final(entrants[loss.entrant].outcome())) out.push_back(loss.entrant);
  }
  return out;
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
  int losses = 0;
  std::map<int, std::string> rejected;  // why the last sample of an entrant was
  while (const std::optional<RoundOrder> order = race.next()) {
    if (!keep_on_()) return std::nullopt;
    const auto reply =
        forgiving([&] { return supervisor_.round(request(group, entrants, order->entrants)); });
    if (!reply) {
      if (reply.error().outcome == Outcome::kPending) return std::nullopt;
      if (is_the_end(reply.error())) return std::nullopt;
      for (const int i : find_culprits(group, entrants, *order, reply.error())) {
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
    RoundSamples samples;
    std::map<int, RoundReply::One> failed;
    for (size_t i = 0; i < order->entrants.size(); ++i) {
      const RoundReply::One& one = reply->samples.at(i);
      if (!one.outcome.empty()) failed.emplace(order->entrants[i], one);
      if (!one.rejected.empty()) rejected[order->entrants[i]] = one.rejected;
      const bool good = one.outcome.empty() && one.rejected.empty();
      samples.ns.push_back(good ? one.span_ns : std::numeric_limits<double>::quiet_NaN());
    }
    records_.add_round(id, entrants, *order, *reply, samples);
    race.add(*order, samples);
    for (const auto& [i, one] : failed) {
      records_.set(entrants[i].trial, parse_outcome(one.outcome).value_or(Outcome::kLaunchFailed),
                   one.reason);
      records_.add_exclusion(id, entrants[i], one.reason);
      race.exclude(i, one.reason);
    }
    ++rounds_;
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
