// SPDX-License-Identifier: Apache-2.0
// A device that follows a script: sweeps, races and selections run as in life, without a worker.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tuner/measurer.h"

namespace muse::fakes {

/// One sample that is asked for.
struct Turn {
  const std::string& shape;
  const std::string& regime;
  const std::string& chain;   ///< what is timed
  const std::string& feeder;  ///< what runs before it; empty where it starts at prepare
  int entrants = 0;           ///< of the request
  int round = 0;              ///< of the race (one set of entrants on one shape) so far
  int place = 0;              ///< within the round
  int sample = 0;             ///< of this entrant in this race so far
};

/// How the device behaves. What is left out is a device without faults: every sample takes 20 us
/// and some noise, clocks are steady, every gate passes.
struct Script {
  uint64_t seed = 1;     ///< of the noise
  double noise = 0.003;  ///< standard deviation of a sample, relative
  /// What the sample would take without noise, ns.
  std::function<double(const Turn&)> ns;
  /// Why the sample is no good; empty = it is.
  std::function<std::string(const Turn&)> rejected;
  /// The launch is refused: an outcome's name and the reason; empty = it is not.
  std::function<std::pair<std::string, std::string>(const Turn&)> refused;
  /// The worker ends at this sample.
  std::function<std::optional<tuner::WorkerLoss>(const Turn&)> lost;
  std::function<profiler::ClockReading(int round)> clock;
  using Verdict = tl::expected<tuner::ValidationReport, tuner::WorkerLoss>;
  std::function<Verdict(const tuner::ValidateRequest&)> validate;
  std::function<Verdict(const tuner::RevalidateRequest&)> revalidate;
};

/// A report of one gate that passed, or of a failure with its reason.
tuner::ValidationReport passed();
tuner::ValidationReport failed(tuner::Outcome outcome, const std::string& reason);

/// A GPU's clock without anything to complain of.
profiler::ClockReading steady_clock_reading();

class MockMeasurer final : public tuner::Measurer {
 public:
  explicit MockMeasurer(Script script) : script(std::move(script)) {}

  tl::expected<tuner::ValidationReport, tuner::WorkerLoss> validate(
      const tuner::ValidateRequest& request) override;
  tl::expected<tuner::RoundReply, tuner::WorkerLoss> rounds(
      const tuner::RoundRequest& request, const std::function<void()>& meanwhile = [] {}) override;
  tl::expected<tuner::ValidationReport, tuner::WorkerLoss> revalidate(
      const tuner::RevalidateRequest& request) override;
  void set_deadline(std::chrono::milliseconds) override {}
  bool lost_device() const override { return false; }

  Script script;
  /// The signal that `stop` gets at this request (counted from 0 over all); the request is not
  /// answered any more, or is the last one to be.
  int stop_at = -1;
  bool answers_before_it_stops = false;
  std::atomic<int> stop{0};

  /// Rounds that fit into the time of a request.
  int most_rounds = 1'000'000;

  int requests = 0, validations = 0, revalidations = 0, round_requests = 0;
  int64_t samples = 0;

 private:
  /// What has been asked so far of one set of entrants: noise follows from it alone, so that a
  /// sweep that was stopped sees what an uninterrupted one does.
  struct RaceState {
    uint64_t key = 0;
    int round = 0;
    std::vector<int> samples;
  };
  RaceState& state_of(const tuner::RoundRequest& request);
  double noise(uint64_t race, int entrant, int sample) const;
  tuner::RoundReply::One take(const Turn& turn, uint64_t race, int entrant) const;
  /// True where this request is not to be answered.
  bool stops_now();

  std::string shape_;  ///< of the states: only the last shape's are kept
  std::map<uint64_t, RaceState> races_;
};

}  // namespace muse::fakes
