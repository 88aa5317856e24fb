// SPDX-License-Identifier: Apache-2.0
// Names of regimes and timers, and the host's clock and cache as a sampler needs them.
#include "profiler/sampler.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

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

/// The CPUs this process may use; empty where the system does not say.
std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

constexpr int64_t kLineBytes = 64;
/// Twice the private cache of any core known so far: what each core reads at least.
constexpr int64_t kLeastPerCpuBytes = int64_t{4} << 20;

int64_t flush_bytes(int64_t last_level_bytes) {
  return 2 * (last_level_bytes > 0 ? last_level_bytes : kUnknownCacheBytes);
}

void read_lines(const uint8_t* data, int64_t begin, int64_t end) {
  uint64_t sum = 0;
  for (int64_t i = begin; i < end; i += kLineBytes) sum += data[i];
  volatile uint64_t sink = sum;  // keeps the loop
  static_cast<void>(sink);
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

HostSampler::HostSampler() : step_ns_(measure_step_ns()) {}

std::string HostSampler::version() const { return "host-1 CLOCK_MONOTONIC_RAW"; }

Sample HostSampler::take(const std::function<void()>& before, const std::function<void()>& work) {
  before();
  const int64_t start = now_ns();
  work();
  const int64_t end = now_ns();
  return host_sample(start, end);
}

Sample host_sample(int64_t start_ns, int64_t end_ns) {
  if (end_ns <= start_ns) {
    return {.rejected = end_ns == start_ns
                            ? "zero duration"
                            : fmt::format("clock went back by {} ns", start_ns - end_ns)};
  }
  const auto span = static_cast<double>(end_ns - start_ns);
  return {.span_ns = span, .kernel_ns = span, .rejected = {}};
}

HostCache::HostCache(int64_t last_level_bytes)
    : bytes_(flush_bytes(last_level_bytes)),
      cpus_(allowed_cpus()),
      data_(new uint8_t[static_cast<size_t>(bytes_)]) {
  // Written, not just allocated: untouched pages would all be the one zero page and evict nothing.
  std::memset(data_.get(), 1, static_cast<size_t>(bytes_));
}

void HostCache::flush() {
  // Last-level caches are not inclusive: another core keeps its private cache until it reads too.
  if (cpus_.size() < 2) {
    read_lines(data_.get(), 0, bytes_);
    return;
  }
  const auto count = static_cast<int64_t>(cpus_.size());
  const int64_t slice = std::min(bytes_, std::max(bytes_ / count + kLineBytes, kLeastPerCpuBytes));
  std::vector<std::thread> readers;
  readers.reserve(cpus_.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = (bytes_ - slice) * i / (count - 1);
    readers.emplace_back([this, cpu = cpus_[static_cast<size_t>(i)], begin, slice] {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(cpu, &set);
      // Where the CPU has been taken away meanwhile, the slice is read on another one.
      pthread_setaffinity_np(pthread_self(), sizeof set, &set);
      read_lines(data_.get(), begin, begin + slice);
    });
  }
  for (std::thread& reader : readers) reader.join();
}

std::string HostCache::recipe(int64_t last_level_bytes) {
  return fmt::format("read {} bytes, a slice of at least {} on every CPU",
                     flush_bytes(last_level_bytes), kLeastPerCpuBytes);
}

}  // namespace muse::profiler
