// SPDX-License-Identifier: Apache-2.0
// The host's clock, cache and identity.
#include "profiler/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "profiler/clock_reading.h"
#include "profiler/device_instance.h"
#include "profiler/host_cache.h"
#include "profiler/statistics.h"

namespace muse::profiler {
namespace {

using namespace std::chrono_literals;

TEST(Names, OfRegimesAndTimersComeBack) {
  for (Regime regime : {Regime::kCold, Regime::kWarm, Regime::kRotating}) {
    EXPECT_EQ(parse_regime(name(regime)), regime);
  }
  for (Timer timer : {Timer::kCupti, Timer::kEvents, Timer::kHost}) {
    EXPECT_EQ(parse_timer(name(timer)), timer);
  }
  EXPECT_EQ(name(Regime::kCold), "cold");
  EXPECT_EQ(name(Timer::kCupti), "cupti");
  EXPECT_EQ(parse_regime("Cold"), std::nullopt);
  EXPECT_EQ(parse_timer(""), std::nullopt);
}

void spin(std::chrono::nanoseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

TEST(HostSampler, TimesTheWorkAndNotWhatComesBefore) {
  HostSampler sampler;
  std::string order;
  const Sample sample = sampler.take({[&] {
                                        order += "before ";
                                        spin(50ms);
                                      },
                                      [&] {
                                        order += "work";
                                        spin(2ms);
                                      },
                                      {}});
  EXPECT_EQ(order, "before work");
  EXPECT_EQ(sample.rejected, "");
  EXPECT_GE(sample.span_ns, 1.99e6);  // two clocks, one of them slewed by up to 0.05 %
  EXPECT_EQ(sample.span_ns, sample.kernel_ns);
  double least = sample.span_ns;  // the machine may be busy: the best of a few
  for (int i = 0; i < 5; ++i) {
    least = std::min(least, sampler.take({[] { spin(50ms); }, [] { spin(2ms); }, {}}).span_ns);
  }
  EXPECT_LT(least, 50e6);
}

TEST(HostSampler, KnowsItsStepAndItsVersion) {
  HostSampler sampler;
  EXPECT_GT(sampler.step_ns(), 0);
  EXPECT_LT(sampler.step_ns(), 1e8);
  EXPECT_EQ(sampler.timer(), Timer::kHost);
  EXPECT_EQ(sampler.version(), HostSampler().version());
  EXPECT_FALSE(sampler.version().empty());
}

TEST(HostSample, IsRejectedWhereNoTimePassedOrTimeWentBack) {
  EXPECT_EQ(host_sample(100, 350).span_ns, 250);
  EXPECT_EQ(host_sample(100, 350).rejected, "");
  EXPECT_EQ(host_sample(100, 100).rejected, "zero duration");
  EXPECT_EQ(host_sample(100, 40).rejected, "clock went back by 60 ns");
}

TEST(HostCache, LeavesNothingOfABufferInAnyCache) {
  // Far below the private cache of a core: read twice, the second time is warm unless flushed.
  std::vector<uint8_t> data(256 << 10, 1);
  const std::array<std::span<const std::byte>, 1> ranges{std::as_bytes(std::span(data))};
  HostSampler sampler;
  HostCache cache(0);
  uint64_t sum = 0;
  // Line after line in an order that no prefetcher follows.
  const auto walk = [&] {
    for (size_t i = 0, at = 0; i < data.size() / 64; ++i, at = (at + 1237 * 64) % data.size()) {
      sum += data[at];
    }
  };
  std::vector<double> warm, cold;
  for (int i = 0; i < 31; ++i) {
    cold.push_back(sampler.take({[&] { cache.flush(ranges); }, walk, {}}).span_ns);
    warm.push_back(sampler.take({[] {}, walk, {}}).span_ns);
  }
  EXPECT_GT(sum, 0u);
  EXPECT_GT(median(cold), 1.5 * median(warm));
}

TEST(HostCache, TellsHowItFlushes) {
  const std::string recipe = HostCache::recipe(1 << 20);
  EXPECT_TRUE(recipe.find("evict") != std::string::npos ||
              recipe.find(std::to_string(2 << 20)) != std::string::npos)
      << recipe;
}

TEST(DeviceInstance, OfTheHostIsStable) {
  const DeviceInstance instance = host_device_instance();
  EXPECT_EQ(instance, host_device_instance());
  EXPECT_EQ(instance.kind, "host");
  ASSERT_EQ(instance.uuid.size(), 5u + 32u);
  EXPECT_EQ(instance.uuid.substr(0, 5), "host-");
  EXPECT_EQ(instance.uuid.find_first_not_of("0123456789abcdef", 5), std::string::npos);
  EXPECT_FALSE(instance.name.empty());
  EXPECT_FALSE(instance.driver.empty());
  EXPECT_FALSE(instance.clock_policy.empty());
}

TEST(HostClock, IsPositiveOrUnknown) {
  const ClockReading clock = read_host_clock();
  EXPECT_TRUE(clock.cpu_mhz == -1 || clock.cpu_mhz > 0) << clock.cpu_mhz;
  EXPECT_TRUE(clock.load == -1 || clock.load >= 0) << clock.load;
}

}  // namespace
}  // namespace muse::profiler
