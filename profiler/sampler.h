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

  /// Starts a batch, one sample of each in this order, behind those that were started before. On a
  /// GPU everything is enqueued, so that the device is idle neither between two samples nor between
  /// two batches; the host takes them at once. Of a batch that throws there will be no samples.
  virtual void start(std::vector<Work> works) = 0;
  /// Until the oldest batch under way has ended, and takes in what is known of it: what that costs
  /// the device does not wait for, where another batch was started. Precondition: there is one.
  virtual void wait() = 0;
  /// The samples of all batches since the last call, in order; waits for those under way. None is
  /// left, even if it throws.
  virtual std::vector<Sample> collect() = 0;

  /// One batch alone. `meanwhile` runs once, while the device is busy, and must not throw.
  std::vector<Sample> take_all(
      std::vector<Work> works, const std::function<void()>& meanwhile = [] {});
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
  void start(std::vector<Work> works) override;
  void wait() override {}
  std::vector<Sample> collect() override;

 private:
  double step_ns_;
  std::vector<Sample> samples_;
};

}  // namespace muse::profiler
