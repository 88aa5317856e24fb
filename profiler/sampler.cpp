// SPDX-License-Identifier: Apache-2.0
// Names of regimes and timers, and the host's clock.
#include "profiler/sampler.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>

namespace muse::profiler {
namespace {

constexpr std::array kRegimes{Regime::kCold, Regime::kWarm, Regime::kRotating};
constexpr std::array kTimers{Timer::kCupti, Timer::kEvents, Timer::kHost};

/// Not slewed by time synchronisation, which may stretch CLOCK_MONOTONIC by 0.05 %.
int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

double measure_step_ns() {
  constexpr int kReads = 2000;
  int64_t least = std::numeric_limits<int64_t>::max();
  int64_t last = now_ns();
  // A coarse clock shows no step in 2000 reads: go on until it has moved once.
  for (int i = 0; i < kReads || least == std::numeric_limits<int64_t>::max(); ++i) {
    const int64_t now = now_ns();
    if (now > last) least = std::min(least, now - last);
    last = now;
  }
  return static_cast<double>(least);
}

}  // namespace

std::string_view name(Regime regime) {
  switch (regime) {
    case Regime::kCold:
      return "cold";
    case Regime::kWarm:
      return "warm";
    case Regime::kRotating:
      return "rotating";
  }
  return "";
}

std::optional<Regime> parse_regime(std::string_view text) {
  for (Regime regime : kRegimes) {
    if (name(regime) == text) return regime;
  }
  return std::nullopt;
}

std::string_view name(Timer timer) {
  switch (timer) {
    case Timer::kCupti:
      return "cupti";
    case Timer::kEvents:
      return "events";
    case Timer::kHost:
      return "host";
  }
  return "";
}

std::optional<Timer> parse_timer(std::string_view text) {
  for (Timer timer : kTimers) {
    if (name(timer) == text) return timer;
  }
  return std::nullopt;
}

std::vector<Sample> Sampler::take_all(std::vector<Work> works,
                                      const std::function<void()>& meanwhile) {
  start(std::move(works));
  meanwhile();
  return collect();
}

HostSampler::HostSampler() : step_ns_(measure_step_ns()) {}

std::string HostSampler::version() const { return "host-1 CLOCK_MONOTONIC_RAW"; }

void HostSampler::start(std::vector<Work> works) {
  std::vector<Sample> samples;
  for (const Work& work : works) {
    const int64_t first = now_ns();
    work.before();
    const int64_t start = now_ns();
    work.run();
    const int64_t end = now_ns();
    samples.push_back(host_sample(start, end));
    samples.back().device_ns = static_cast<double>(end - first);
  }
  std::move(samples.begin(), samples.end(), std::back_inserter(samples_));
}

std::vector<Sample> HostSampler::collect() { return std::exchange(samples_, {}); }

Sample host_sample(int64_t start_ns, int64_t end_ns) {
  if (end_ns <= start_ns) {
    return {.rejected = end_ns == start_ns
                            ? "zero duration"
                            : fmt::format("clock went back by {} ns", start_ns - end_ns)};
  }
  const auto span = static_cast<double>(end_ns - start_ns);
  return {.span_ns = span, .kernel_ns = span, .rejected = {}};
}

}  // namespace muse::profiler
