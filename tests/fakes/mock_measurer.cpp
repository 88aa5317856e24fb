// SPDX-License-Identifier: Apache-2.0
// Times, clocks and faults by the script; seeded noise.
#include "tests/fakes/mock_measurer.h"

#include <cmath>
#include <csignal>
#include <numbers>

#include "tuner/revalidate.h"

namespace muse::fakes {
namespace {

using tuner::Outcome;
using tuner::RoundReply;
using tuner::ValidationReport;
using tuner::WorkerLoss;

// The finaliser of splitmix64: neighbours in, unrelated numbers out.
uint64_t scramble(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

double uniform(uint64_t x) { return (static_cast<double>(scramble(x) >> 11) + 0.5) * 0x1p-53; }

uint64_t hash_of(const std::string& text, uint64_t hash) {
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return scramble(hash);
}

}  // namespace

ValidationReport passed() {
  return {.outcome = Outcome::kOk,
          .reason = "",
          .gates = {{.gate = tuner::Gate::kEndToEnd, .passed = true}}};
}

ValidationReport failed(Outcome outcome, const std::string& reason) {
  ValidationReport report{.outcome = outcome, .reason = reason, .gates = {}};
  if (outcome == Outcome::kIncorrect) {
    report.gates.push_back({.gate = tuner::Gate::kEndToEnd, .passed = false});
  }
  return report;
}

profiler::ClockReading steady_clock_reading() {
  return {.sm_mhz = 1980, .memory_mhz = 3201, .power_w = 400, .temperature_c = 50};
}

bool MockMeasurer::stops_now() {
  if (requests++ != stop_at) return false;
  stop = SIGTERM;
  return !answers_before_it_stops;
}

tl::expected<ValidationReport, WorkerLoss> MockMeasurer::validate(
    const tuner::ValidateRequest& request) {
  if (stops_now()) return tl::unexpected(WorkerLoss{.outcome = Outcome::kPending});
  ++validations;
  return script.validate ? script.validate(request) : passed();
}

tl::expected<ValidationReport, WorkerLoss> MockMeasurer::revalidate(
    const tuner::RevalidateRequest& request) {
  if (stops_now()) return tl::unexpected(WorkerLoss{.outcome = Outcome::kPending});
  ++revalidations;
  auto report = script.revalidate ? script.revalidate(request) : passed();
  if (report) {
    for (tuner::GateResult& gate : report->gates) {
      gate.metrics[tuner::kOtherDataSeed] = static_cast<double>(request.other_seed);
    }
  }
  return report;
}

MockMeasurer::RaceState& MockMeasurer::state_of(const tuner::RoundRequest& request) {
  if (request.shape != shape_) races_.clear();
  shape_ = request.shape;
  uint64_t key = hash_of(request.regime, hash_of(request.shape, script.seed));
  for (const tuner::EntrantText& entrant : request.entrants) {
    key = hash_of(entrant.feeder, hash_of(entrant.chain, key));
  }
  RaceState& state = races_[key];
  state.key = key;
  state.samples.resize(request.entrants.size());
  return state;
}

double MockMeasurer::noise(uint64_t race, int entrant, int sample) const {
  const uint64_t at = race ^ scramble(static_cast<uint64_t>(entrant) << 32 |
                                      static_cast<uint64_t>(static_cast<uint32_t>(sample)));
  const double radius = std::sqrt(-2 * std::log(uniform(at)));
  return script.noise * radius * std::cos(2 * std::numbers::pi * uniform(at + 1));
}

RoundReply::One MockMeasurer::take(const Turn& turn, uint64_t race, int entrant) const {
  RoundReply::One one;
  one.span_ns = script.ns ? script.ns(turn) : 20'000;
  one.span_ns *= 1 + noise(race, entrant, turn.sample);
  if (script.rejected) one.rejected = script.rejected(turn);
  if (script.refused) std::tie(one.outcome, one.reason) = script.refused(turn);
  // What a refused or broken sample reads must not matter: the value that would win every race.
  if (!one.rejected.empty() || !one.outcome.empty()) one.span_ns = 0;
  return one;
}

tl::expected<RoundReply, WorkerLoss> MockMeasurer::rounds(const tuner::RoundRequest& request,
                                                          const std::function<void()>& meanwhile) {
  if (stops_now()) return tl::unexpected(WorkerLoss{.outcome = Outcome::kPending});
  ++round_requests;
  RaceState& state = state_of(request);
  meanwhile();
  RoundReply reply;
  for (const std::vector<int>& order : request.orders) {
    if (static_cast<int>(reply.rounds.size()) == most_rounds) break;
    RoundReply::Round& round = reply.rounds.emplace_back();
    for (size_t place = 0; place < order.size(); ++place) {
      const int i = order[place];
      const tuner::EntrantText& entrant = request.entrants.at(i);
      const Turn turn{.shape = request.shape,
                      .regime = request.regime,
                      .chain = entrant.chain,
                      .feeder = entrant.feeder,
                      .entrants = static_cast<int>(request.entrants.size()),
                      .round = state.round,
                      .place = static_cast<int>(place),
                      .sample = state.samples[i]};
      ++state.samples[i];
      ++samples;
      if (script.lost) {
        if (std::optional<WorkerLoss> loss = script.lost(turn)) {
          loss->entrant = i;
          return tl::unexpected(*std::move(loss));
        }
      }
      round.samples.push_back(take(turn, state.key, i));
      reply.device_ns += round.samples.back().span_ns;
      reply.rounds_s += round.samples.back().span_ns * 1e-9;
    }
    round.clock = script.clock ? script.clock(state.round) : steady_clock_reading();
    ++state.round;
  }
  return reply;
}

}  // namespace muse::fakes
