// SPDX-License-Identifier: Apache-2.0
// Samplers, flush and ceilings on a real GPU. No absolute speed is asserted beyond what tells a
// time from nonsense.
#include <gtest/gtest.h>

#if defined(MUSE_HAS_CUDA)

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "profiler/ceilings.h"
#include "profiler/cupti.h"
#include "profiler/device_error.h"
#include "profiler/device_facts.h"
#include "profiler/device_instance.h"
#include "profiler/device_kernels.h"
#include "profiler/event_sampler.h"
#include "profiler/nvml.h"
#include "profiler/stream.h"

namespace muse::profiler {
namespace {

class DeviceProfiler : public ::testing::Test {
 protected:
  void SetUp() override {
    const DeviceCount count = count_devices();
    if (count.error != 0 || count.devices == 0) GTEST_SKIP() << "no GPU: error " << count.error;
    use_device(0);
    stream_.emplace();
  }
  CUstream_st* stream() { return stream_->get(); }
  std::unique_ptr<Sampler> cupti() {
    auto sampler = make_cupti_sampler(stream());
    if (!sampler) throw std::runtime_error(sampler.error().what);
    return *std::move(sampler);
  }
  std::optional<Stream> stream_;
};

TEST_F(DeviceProfiler, TimesANullKernelByItsOwnTimestamps) {
  const auto sampler = cupti();
  CeilingWork work(stream());
  const Timing time = measure(*sampler, work.null_kernel(), 30);
  EXPECT_EQ(time.rejected, 0) << time.why;
  EXPECT_GE(time.median_ns, 200);
  EXPECT_LE(time.median_ns, 20000);
  EXPECT_EQ(time.median_ns, time.kernel_ns);
  EXPECT_EQ(sampler->timer(), Timer::kCupti);
  EXPECT_GT(sampler->step_ns(), 0);
  EXPECT_LE(sampler->step_ns(), 2000);
  EXPECT_EQ(sampler->version().rfind("cupti-2 13.", 0), 0u) << sampler->version();
}

TEST_F(DeviceProfiler, RejectsASequenceThatWasNotExpected) {
  const auto sampler = cupti();
  const std::string null = symbol(OwnKernel::kNull), spin = symbol(OwnKernel::kSpin);
  const auto run = [&] {
    launch_null(stream());
    launch_spin(stream(), 2000);
  };
  const auto rejected = [&](const std::vector<std::string>& kernels) {
    return sampler->take({[] {}, run, kernels}).rejected;
  };
  EXPECT_EQ(rejected({null, spin}), "");
  EXPECT_NE(rejected({spin, null}), "");
  EXPECT_NE(rejected({null}), "");
  EXPECT_NE(rejected({null, spin, null}), "");
  EXPECT_NE(rejected({null, null}), "");
  EXPECT_NE(rejected({}), "");
}

TEST_F(DeviceProfiler, CountsEveryNodeOfAGraph) {
  const auto sampler = cupti();
  CeilingWork work(stream());
  for (const bool programmatic : {false, true}) {
    const Timing three = measure(*sampler, work.null_graph(3, programmatic), 20);
    EXPECT_EQ(three.rejected, 0) << three.why;
    EXPECT_EQ(three.samples, 20);
    const Work four = work.null_graph(4, programmatic);
    EXPECT_EQ(sampler->take({four.before, four.run, work.null_graph(3, false).kernels}).rejected,
              "4 records of 3 kernels");
  }
}

// What ran before is told apart by where it was launched, though it has the same name.
TEST_F(DeviceProfiler, LeavesOutWhatRunsBefore) {
  const auto sampler = cupti();
  const std::vector<std::string> one{symbol(OwnKernel::kSpin)};
  const Sample sample = sampler->take(
      {[&] { launch_spin(stream(), 2'000'000); }, [&] { launch_spin(stream(), 20'000); }, one});
  EXPECT_EQ(sample.rejected, "");
  EXPECT_LT(sample.span_ns, 400'000);
}

TEST_F(DeviceProfiler, SumsKernelsThatFollowEachOther) {
  const auto sampler = cupti();
  const std::vector<std::string> two(2, symbol(OwnKernel::kSpin));
  const auto spin_twice = [&] {
    launch_spin(stream(), 100'000);
    launch_spin(stream(), 100'000);
  };
  const Sample sample = sampler->take({[] {}, spin_twice, two});
  EXPECT_EQ(sample.rejected, "");
  EXPECT_GE(sample.span_ns, sample.kernel_ns);
  EXPECT_GT(sample.kernel_ns, 0.5 * sample.span_ns);
}

TEST_F(DeviceProfiler, MatchesRecordsOfManyLaunches) {
  const auto sampler = cupti();
  constexpr size_t kLaunches = 200'000;  // far more than one buffer of records holds
  const std::vector<std::string> kernels(kLaunches, symbol(OwnKernel::kNull));
  const Sample sample = sampler->take({[] {},
                                       [&] {
                                         for (size_t i = 0; i < kLaunches; ++i)
                                           launch_null(stream());
                                       },
                                       kernels});
  EXPECT_EQ(sample.rejected, "");
}

TEST_F(DeviceProfiler, LeavesOutWhatOtherThreadsLaunch) {
  const auto sampler = cupti();
  const Stream other;
  const Sample sample = sampler->take({[] {},
                                       [&] {
                                         std::thread neighbour([&] {
                                           for (int i = 0; i < 100; ++i)
                                             launch_spin(other.get(), 1000);
                                         });
                                         launch_spin(stream(), 20'000);
                                         neighbour.join();
                                       },
                                       {symbol(OwnKernel::kSpin)}});
  other.synchronize();
  EXPECT_EQ(sample.rejected, "");
}

TEST_F(DeviceProfiler, RejectsWorkThatOtherThreadsLaunch) {
  const auto sampler = cupti();
  const auto from_four_threads = [&] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&] { launch_null(stream()); });
    for (std::thread& thread : threads) thread.join();
  };
  const std::vector<std::string> four(4, symbol(OwnKernel::kNull));
  EXPECT_EQ(sampler->take({[] {}, from_four_threads, four}).rejected, "0 records of 4 kernels");
  // What was not counted is not left to the next one either.
  EXPECT_EQ(sampler->take({[] {}, [&] { launch_null(stream()); }, {four[0]}}).rejected, "");
}

TEST_F(DeviceProfiler, LosesNothingWhileFourThreadsLaunch) {
  const auto sampler = cupti();
  CeilingWork work(stream());
  const std::vector<Work> works(16, work.null_graph(3, false));
  std::atomic<int> running = 4;
  std::vector<std::thread> neighbours;
  for (int i = 0; i < 4; ++i) {
    neighbours.emplace_back([&] {
      const Stream own;
      for (int launch = 0; launch < 20'000; ++launch) launch_null(own.get());
      own.synchronize();
      --running;
    });
  }
  do {
    for (const Sample& sample : sampler->take_all(works)) EXPECT_EQ(sample.rejected, "");
  } while (running > 0);
  for (std::thread& neighbour : neighbours) neighbour.join();
}

TEST_F(DeviceProfiler, TakesABatchOfManyAtOnceEachOnItsOwn) {
  CeilingWork work(stream());
  std::vector<Work> works;
  for (int i = 0; i < 64; ++i) works.push_back(i % 2 ? work.null_graph(3, true) : work.spin(20));
  const auto wrong = works.size() / 3;
  works[wrong].kernels = {symbol(OwnKernel::kWrite)};
  int meanwhile = 0;
  const auto sampler = cupti();
  const std::vector<Sample> samples = sampler->take_all(works, [&] { ++meanwhile; });
  EXPECT_EQ(meanwhile, 1);
  ASSERT_EQ(samples.size(), works.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(samples[i].rejected.empty(), i != wrong) << i << ": " << samples[i].rejected;
    if (i == wrong) continue;
    EXPECT_GT(samples[i].span_ns, 0) << i;
    EXPECT_GT(samples[i].device_ns, samples[i].span_ns) << i;  // the flush ran before
  }
}

// Records beside those of a kernel that still runs come later: none is missing in the end.
TEST_F(DeviceProfiler, LosesNothingOfBatchesThatAreUnderWayTogether) {
  CeilingWork work(stream());
  constexpr size_t kBatches = 12, kSamples = 40, kWrong = 5 * kSamples + 7;
  const auto check = [&](Sampler& sampler, bool sees_kernels) {
    for (int again = 0; again < 2; ++again) {
      for (size_t batch = 0; batch < kBatches; ++batch) {
        std::vector<Work> works(kSamples, batch % 2 ? work.null_graph(3, true) : work.spin(20));
        if (batch == kWrong / kSamples) {
          works[kWrong % kSamples].kernels = {symbol(OwnKernel::kWrite)};
        }
        sampler.start(std::move(works));
        if (batch > 0) sampler.wait();
      }
      const std::vector<Sample> samples = sampler.collect();
      ASSERT_EQ(samples.size(), kBatches * kSamples);
      for (size_t i = 0; i < samples.size(); ++i) {
        EXPECT_EQ(samples[i].rejected.empty(), !sees_kernels || i != kWrong)
            << i << ": " << samples[i].rejected;
      }
      EXPECT_TRUE(sampler.collect().empty());
    }
  };
  check(*cupti(), true);
  check(*make_event_sampler(stream()), false);
}

TEST_F(DeviceProfiler, TakesTheSameInABatchAsOneByOne) {
  CeilingWork work(stream());
  const std::vector<Work> two{work.read(int64_t{200} << 20), work.copy(int64_t{200} << 20)};
  std::vector<Work> works;
  for (int i = 0; i < 32; ++i) works.push_back(two[i % 2]);
  const auto check = [&](Sampler& sampler) {
    std::vector<std::vector<double>> batched(2);
    const std::vector<Sample> samples = sampler.take_all(works);
    for (size_t i = 0; i < samples.size(); ++i) {
      EXPECT_EQ(samples[i].rejected, "");
      EXPECT_GE(samples[i].device_ns, samples[i].span_ns);
      batched[i % 2].push_back(samples[i].span_ns);
    }
    for (size_t i = 0; i < 2; ++i) {
      const Timing alone = measure(sampler, two[i], 16);
      ASSERT_GT(alone.samples, 0) << alone.why;
      std::nth_element(batched[i].begin(), batched[i].begin() + 8, batched[i].end());
      EXPECT_NEAR(batched[i][8], alone.median_ns, 0.1 * alone.median_ns) << i;
    }
  };
  check(*cupti());
  check(*make_event_sampler(stream()));
}

TEST_F(DeviceProfiler, TimesAGraphWithAMemsetAsEventsDo) {
  CeilingWork ceiling(stream());
  constexpr int64_t kBytes = int64_t{1} << 20, kCycles = 100'000;
  const DeviceMemory area(kBytes);
  const auto enqueue = [&] {
    launch_spin(stream(), kCycles);
    check_cuda(cudaMemsetAsync(area.data(), 0, kBytes, stream()), "cudaMemsetAsync");
    launch_spin(stream(), kCycles);
    launch_spin(stream(), kCycles);
  };
  CapturedGraph graph(stream(), enqueue);
  const std::string spin = symbol(OwnKernel::kSpin);
  const std::vector<std::string> kernels{spin, kMemsetName, spin, spin};
  const auto flush = ceiling.null_kernel().before;
  const Work plain{flush, enqueue, kernels}, replayed{flush, [&] { graph.launch(); }, kernels};
  const auto events = make_event_sampler(stream());
  const Timing by_events = measure(*events, replayed, 30);
  const auto sampler = cupti();
  const Timing alone = measure(*sampler, plain, 30);
  const Timing by_cupti = measure(*sampler, replayed, 30);
  const Timing beside = measure(*sampler, plain, 30);
  EXPECT_EQ(alone.rejected + by_cupti.rejected + beside.rejected, 0)
      << alone.why << by_cupti.why << beside.why;
  EXPECT_GT(by_cupti.median_ns, 0);
  EXPECT_NEAR(by_cupti.median_ns, by_events.median_ns, 0.1 * by_events.median_ns);
  EXPECT_NEAR(beside.median_ns, alone.median_ns, 0.1 * alone.median_ns);
}

TEST_F(DeviceProfiler, TracesAgainAfterItHasStopped) {
  CeilingWork work(stream());
  for (int i = 0; i < 3; ++i) {
    const Timing time = measure(*cupti(), work.null_kernel(), 5);
    EXPECT_EQ(time.rejected, 0) << time.why;
  }
}

TEST_F(DeviceProfiler, AgreesWithEventsOnAReadOfSome50Microseconds) {
  CeilingWork work(stream());
  const Work read = work.read(int64_t{200} << 20);
  const auto events = make_event_sampler(stream());
  const Timing by_events = measure(*events, read, 50);
  const Timing floor_events = measure(*events, work.null_kernel(), 50);
  const auto sampler = cupti();
  const Timing by_cupti = measure(*sampler, read, 50);
  const Timing floor_cupti = measure(*sampler, work.null_kernel(), 50);
  ASSERT_GT(by_cupti.samples, 40) << by_cupti.why;
  ASSERT_GT(by_events.samples, 40) << by_events.why;
  const double floor = floor_events.median_ns - floor_cupti.median_ns;
  EXPECT_GE(floor, 0);
  EXPECT_NEAR(by_events.median_ns, by_cupti.median_ns, 0.03 * by_cupti.median_ns + floor);
}

TEST_F(DeviceProfiler, FlushMakesARereadSlower) {
  const auto sampler = cupti();
  DeviceCache cache(stream());
  // A quarter of the L2, which holds it whole: warm it is read from there.
  const int64_t bytes = cache.bytes() / 8 / 16 * 16;
  const DeviceMemory data(bytes + 16);
  launch_write(stream(), data.data(), bytes);
  const auto read = [&] { launch_read(stream(), data.data(), bytes, data.as<uint32_t>(bytes)); };
  const std::vector<std::string> kernels{symbol(OwnKernel::kRead)};
  const Timing warm = measure(*sampler, {.before = read, .run = read, .kernels = kernels}, 30);
  const Timing cold =
      measure(*sampler, {.before = [&] { cache.flush(); }, .run = read, .kernels = kernels}, 30);
  ASSERT_EQ(warm.rejected + cold.rejected, 0) << warm.why << cold.why;
  EXPECT_GT(cold.median_ns, 1.1 * warm.median_ns);
}

// 8 MiB, which every L2 of these cards holds: a larger flush makes nothing colder.
TEST_F(DeviceProfiler, AColdReadIsColdAndADoubledFlushChangesNothing) {
  const auto sampler = cupti();
  DeviceCache cache(stream());
  constexpr int64_t kBytes = int64_t{8} << 20;
  const DeviceMemory data(kBytes + 16), twice(2 * cache.bytes() + 16);
  launch_write(stream(), data.data(), kBytes);
  launch_write(stream(), twice.data(), 2 * cache.bytes());
  const auto read = [&] { launch_read(stream(), data.data(), kBytes, data.as<uint32_t>(kBytes)); };
  const auto flush_twice = [&] {
    launch_read(stream(), twice.data(), 2 * cache.bytes(), twice.as<uint32_t>(2 * cache.bytes()));
  };
  const std::vector<std::string> kernels{symbol(OwnKernel::kRead)};
  const Timing warm = measure(*sampler, {.before = read, .run = read, .kernels = kernels}, 60);
  const Timing cold =
      measure(*sampler, {.before = [&] { cache.flush(); }, .run = read, .kernels = kernels}, 60);
  const Timing colder =
      measure(*sampler, {.before = flush_twice, .run = read, .kernels = kernels}, 60);
  ASSERT_EQ(warm.rejected + cold.rejected + colder.rejected, 0)
      << warm.why << cold.why << colder.why;
  EXPECT_GE(cold.median_ns, 1.1 * warm.median_ns);
  EXPECT_NEAR(colder.median_ns, cold.median_ns, 0.03 * cold.median_ns);
}

// What the host does before it launches is no part of the kernel's time, by its own records.
TEST_F(DeviceProfiler, ALauncherThatTakesItsTimeReadsTheSame) {
  CeilingWork ceiling(stream());
  const auto flush = ceiling.null_kernel().before;
  const auto launch = [&] { launch_spin(stream(), 5'000); };
  const auto slow_launch = [&] {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(40);
    while (std::chrono::steady_clock::now() < until) {
    }
    launch();
  };
  const std::vector<std::string> kernels{symbol(OwnKernel::kSpin)};
  const auto sampler = cupti();
  const Timing a = measure(*sampler, {flush, launch, kernels}, 50);
  const Timing b = measure(*sampler, {flush, slow_launch, kernels}, 50);
  ASSERT_GT(a.samples, 40) << a.why;
  ASSERT_GT(b.samples, 40) << b.why;
  EXPECT_NEAR(b.median_ns, a.median_ns, std::max(200.0, 0.05 * a.median_ns));
}

TEST_F(DeviceProfiler, SetsNoneOfTheL2AsideForPersistingLines) {
  size_t set_aside = 0;
  check_cuda(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, size_t{1} << 20), "set limit");
  check_cuda(cudaDeviceGetLimit(&set_aside, cudaLimitPersistingL2CacheSize), "get limit");
  EXPECT_GT(set_aside, 0u);
  reset_persisting();
  check_cuda(cudaDeviceGetLimit(&set_aside, cudaLimitPersistingL2CacheSize), "get limit");
  EXPECT_EQ(set_aside, 0u);
}

TEST_F(DeviceProfiler, ReportsAFailedLaunchAsAnErrorWithItsName) {
  const auto sampler = cupti();
  try {
    use_device(4096);
    FAIL() << "device 4096 exists";
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.name, "cudaErrorInvalidDevice");
    EXPECT_NE(std::string(error.what()).find("cudaSetDevice"), std::string::npos);
  }
  // It is not sticky, and the next sample knows nothing of it.
  EXPECT_EQ(
      sampler->take({[] {}, [&] { launch_null(stream()); }, {symbol(OwnKernel::kNull)}}).rejected,
      "");
}

TEST_F(DeviceProfiler, KnowsTheDevice) {
  const DeviceFacts facts = device_facts(0);
  EXPECT_EQ(facts.uuid.size(), 4u + 36u) << facts.uuid;
  EXPECT_GT(facts.memory_bytes_per_s, 1e10);
  const DeviceInstance instance = cuda_device_instance(facts.uuid, facts.name);
  EXPECT_EQ(instance.kind, "cuda");
  EXPECT_FALSE(instance.driver.empty());
  if (!Nvml::instance()) GTEST_SKIP() << Nvml::instance().error();
  const ClockReading clock = read_gpu_clock(facts.uuid);
  EXPECT_GT(clock.sm_mhz, 0);
  EXPECT_GT(clock.memory_mhz, 0);
  EXPECT_GE(clock.reason_bits, 0);
}

TEST_F(DeviceProfiler, MeasuresEveryCeiling) {
  CeilingOptions options = ceiling_options(true);
  options.samples = 5;
  const Ceilings ceilings = measure_ceilings(stream(), options);
  ASSERT_FALSE(ceilings.no_cupti) << ceilings.no_cupti->what;
  for (const Ceiling& row : ceilings.rows) {
    EXPECT_GT(row.time.samples, 0) << row.name << ": " << row.time.why;
    EXPECT_LE(row.time.low_ns, row.time.high_ns) << row.name;
    EXPECT_EQ(row.tb_per_s() > 0, row.bytes > 0) << row.name;
  }
  EXPECT_GT(ceilings.sample_host_ns, 0);
  EXPECT_GT(ceilings.event_step_ns, 0);
  EXPECT_NE(ceilings.find("read_512MiB", Timer::kCupti), nullptr);
  EXPECT_NE(ceilings.find("null_kernel", Timer::kEvents, true), nullptr);
}

}  // namespace
}  // namespace muse::profiler

#else

TEST(DeviceProfiler, NeedsABuildWithCuda) { GTEST_SKIP() << "built without CUDA"; }

#endif
