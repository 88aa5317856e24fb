// SPDX-License-Identifier: Apache-2.0
// How one sample is taken: the regime, the timer, and the interface behind which clocks differ.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muse::profiler {

enum class Regime : uint8_t { kCold, kWarm, kRotating };
std::string_view name(Regime regime);
std::optional<Regime> parse_regime(std::string_view text);

enum class Timer : uint8_t { kCupti, kEvents, kHost };
std::string_view name(Timer timer);
std::optional<Timer> parse_timer(std::string_view text);

/// One timed execution, or why there is none.
struct Sample {
  double span_ns = 0;    ///< last end - first start
  double kernel_ns = 0;  ///< sum over the launches; host: equal to span_ns
  double device_ns = 0;  ///< from the start of what ran before to the end: what the sample cost
  std::string rejected;  ///< empty = good
};

/// What a sample is taken of.
struct Work {
  std::function<void()> before;  ///< untimed: predecessor, then eviction
  std::function<void()> run;     ///< timed
  /// Symbols of what `run` runs on a GPU, in order; a sample of anything else is rejected. The host
  /// has none.
  std::vector<std::string> kernels;
};

class Sampler {
 public:
  virtual ~Sampler() = default;
  virtual Timer timer() const = 0;
  /// Smallest difference the clock can show, ns, measured.
  virtual double step_ns() const = 0;
  /// Changes when a sample would mean something else; part of the protocol hash.
  virtual std::string version() const = 0;
  /// One sample of each, taken in this order. On a GPU all of them are enqueued before the wait, so
  /// that the device is never idle between two. `meanwhile` runs once, before the wait.
  virtual std::vector<Sample> take_all(
      const std::vector<Work>& works, const std::function<void()>& meanwhile = [] {}) = 0;
  Sample take(const Work& work) { return take_all({work}).front(); }
};

/// A sample from two readings of one clock; rejected where no time has passed or time went back.
Sample host_sample(int64_t start_ns, int64_t end_ns);

/// CLOCK_MONOTONIC_RAW around the call: steady and not slewed.
class HostSampler final : public Sampler {
 public:
  HostSampler();
  Timer timer() const override { return Timer::kHost; }
  double step_ns() const override { return step_ns_; }
  std::string version() const override;
  std::vector<Sample> take_all(const std::vector<Work>& works,
                               const std::function<void()>& meanwhile) override;

 private:
  double step_ns_;
};

}  // namespace muse::profiler
