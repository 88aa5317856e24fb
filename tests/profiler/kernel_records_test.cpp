// SPDX-License-Identifier: Apache-2.0
// From scripted records of a GPU to samples, and the reasons to reject one.
#include "profiler/kernel_records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "profiler/ceilings.h"
#include "profiler/nvml.h"

#if defined(MUSE_HAS_CUDA)
#include <cuda_runtime_api.h>

#include "profiler/launch_regions.h"
#endif

namespace muse::profiler {
namespace {

constexpr uint64_t kBefore = 6, kWork = 7;
constexpr uint32_t kFlushCall = 100, kGraphCall = 101;

/// A flush, then one launch of a graph of three kernels.
Trace graph_trace() {
  Trace trace;
  trace.launches = {{kFlushCall, kBefore}, {kGraphCall, kWork}};
  trace.records = {
      {.name = "flush", .start_ns = 1000, .end_ns = 2000, .correlation = kFlushCall, .grid = 1},
      {.name = "a", .start_ns = 2500, .end_ns = 3000, .correlation = kGraphCall, .node = 11},
      {.name = "b", .start_ns = 3100, .end_ns = 3500, .correlation = kGraphCall, .node = 12},
      {.name = "c", .start_ns = 3600, .end_ns = 4500, .correlation = kGraphCall, .node = 13}};
  return trace;
}

Sample sample(const Trace& trace, const std::vector<std::string>& kernels = {"a", "b", "c"}) {
  return sample_of(TraceIndex(trace), {.before = kBefore, .work = kWork, .kernels = &kernels});
}

TEST(KernelRecords, OfAGraphGiveItsSpanAndTheSumOfItsKernels) {
  const Sample good = sample(graph_trace());
  EXPECT_EQ(good.rejected, "");
  EXPECT_EQ(good.span_ns, 4500 - 2500);
  EXPECT_EQ(good.kernel_ns, 500 + 400 + 900);
  EXPECT_EQ(good.device_ns, 4500 - 1000);
}

TEST(KernelRecords, MayArriveInAnyOrder) {
  Trace trace = graph_trace();
  std::reverse(trace.records.begin(), trace.records.end());
  EXPECT_EQ(sample(trace).rejected, "");
  EXPECT_EQ(sample(trace).span_ns, sample(graph_trace()).span_ns);
}

TEST(KernelRecords, OfProgrammaticLaunchesMayOverlap) {
  Trace trace = graph_trace();
  trace.records[2].start_ns = 2600;  // starts while a runs, as c does while b runs
  trace.records[3].start_ns = 3400;
  const Sample good = sample(trace);
  EXPECT_EQ(good.rejected, "");
  EXPECT_EQ(good.span_ns, 2000);
  EXPECT_EQ(good.kernel_ns, 500 + 900 + 1100);
}

TEST(KernelRecords, ThatStartTogetherKeepTheOrderOfTheGraph) {
  Trace trace = graph_trace();
  trace.records[2].start_ns = trace.records[1].start_ns;
  std::swap(trace.records[1], trace.records[2]);
  EXPECT_EQ(sample(trace).rejected, "");
}

TEST(KernelRecords, EndWithTheLastToEndNotWithTheLastToStart) {
  Trace trace = graph_trace();
  trace.records[1].end_ns = 9000;
  EXPECT_EQ(sample(trace).span_ns, 9000 - 2500);
}

TEST(KernelRecords, AreRejectedWhereOneIsMissing) {
  Trace trace = graph_trace();
  trace.records.erase(trace.records.begin() + 2);
  EXPECT_EQ(sample(trace).rejected, "2 records of 3 kernels");
  EXPECT_EQ(sample(trace).span_ns, 0);
}

TEST(KernelRecords, AreRejectedWhereAllAreMissing) {
  EXPECT_EQ(sample({}).rejected, "0 records of 3 kernels");
}

TEST(KernelRecords, AreRejectedWhereOneIsDoubled) {
  Trace trace = graph_trace();
  trace.records.push_back(trace.records[1]);
  EXPECT_EQ(sample(trace).rejected, "kernel a is recorded twice");
  // Even where the number is right, because another one is missing.
  trace.records.erase(trace.records.begin() + 3);
  EXPECT_EQ(sample(trace).rejected, "kernel a is recorded twice");
}

TEST(KernelRecords, OfRepeatedLaunchesAreNotTakenForDoubledOnes) {
  Trace trace;
  trace.launches = {{1, kWork}, {2, kWork}};
  trace.records = {{.name = "a", .start_ns = 10, .end_ns = 20, .correlation = 1, .grid = 1},
                   {.name = "a", .start_ns = 30, .end_ns = 40, .correlation = 2, .grid = 2}};
  EXPECT_EQ(sample(trace, {"a", "a"}).rejected, "");
  EXPECT_EQ(sample(trace, {"a", "a"}).span_ns, 30);
  EXPECT_EQ(sample(trace, {"a", "a"}).device_ns, 30);  // nothing ran before
}

TEST(KernelRecords, AreRejectedWhereMoreRanThanExpected) {
  EXPECT_EQ(sample(graph_trace(), {"a", "b"}).rejected, "3 records of 2 kernels");
}

TEST(KernelRecords, AreRejectedWhereNothingIsExpected) {
  EXPECT_NE(sample(graph_trace(), {}).rejected, "");
}

TEST(KernelRecords, AreRejectedWhereAnotherKernelRan) {
  EXPECT_EQ(sample(graph_trace(), {"a", "x", "c"}).rejected, "kernel 2 is b where x was expected");
  EXPECT_EQ(sample(graph_trace(), {"b", "a", "c"}).rejected, "kernel 1 is a where b was expected");
}

TEST(KernelRecords, CountAMemsetAsAKernel) {
  Trace trace = graph_trace();
  trace.records[2].name = kMemsetName;
  EXPECT_EQ(sample(trace, {"a", kMemsetName, "c"}).rejected, "");
  EXPECT_NE(sample(trace).rejected, "");
}

TEST(KernelRecords, AreRejectedWhereTimesCannotBe) {
  const auto with_b = [](uint64_t start, uint64_t end) {
    Trace trace = graph_trace();
    trace.records[2].start_ns = start;
    trace.records[2].end_ns = end;
    return sample(trace).rejected;
  };
  EXPECT_EQ(with_b(0, 0), "kernel b has no timestamp");
  EXPECT_EQ(with_b(3100, 0), "kernel b has no timestamp");
  EXPECT_EQ(with_b(3100, 3100), "kernel b took no time");
  EXPECT_EQ(with_b(3100, 3090), "in kernel b time went back by 10 ns");
}

TEST(KernelRecords, AreRejectedWhereTheFlushWasStillRunning) {
  Trace trace = graph_trace();
  trace.records[0].end_ns = 2600;
  EXPECT_EQ(sample(trace).rejected, "starts 100 ns before what ran before it had ended");
  trace.records[0].end_ns = 2500;
  EXPECT_EQ(sample(trace).rejected, "");
}

TEST(KernelRecords, AreRejectedWhereSomeWereDropped) {
  Trace trace = graph_trace();
  trace.dropped = 2;
  EXPECT_EQ(sample(trace).rejected, "2 records were dropped");
}

// A flush that bears the name of a timed kernel, at any time, is told apart by where it was
// launched.
TEST(KernelRecords, OfOtherRegionsAreToldApartByTheirCallAlone) {
  Trace trace = graph_trace();
  trace.records[0].name = "a";
  trace.launches.push_back({900, 3});  // an earlier sample that was recorded late
  trace.records.push_back(
      {.name = "b", .start_ns = 3200, .end_ns = 3300, .correlation = 900, .grid = 2});
  trace.records.push_back(  // launched outside of any region
      {.name = "c", .start_ns = 3200, .end_ns = 9900, .correlation = 901, .grid = 3});
  EXPECT_EQ(sample(trace).rejected, "");
  EXPECT_EQ(sample(trace).span_ns, 2000);
  const TraceIndex index(trace);
  EXPECT_EQ(index[kWork].records.size(), 3u);
  EXPECT_EQ(index[kBefore].records.size(), 1u);
  EXPECT_EQ(index[999].records.size(), 0u);
}

TEST(KernelRecords, AreRejectedWhereOneOfWhatRanBeforeIsMissing) {
  Trace trace = graph_trace();
  trace.launches.push_back({99, kBefore});  // a predecessor, whose record is there
  trace.records.push_back(
      {.name = "p", .start_ns = 500, .end_ns = 900, .correlation = 99, .grid = 2});
  EXPECT_EQ(sample(trace).rejected, "");
  EXPECT_EQ(sample(trace).device_ns, 4500 - 500);
  trace.records.erase(trace.records.begin());  // the flush
  EXPECT_EQ(sample(trace).rejected, "1 of 2 launches of what ran before left no record");
  EXPECT_EQ(sample(trace).span_ns, 0);
}

TEST(KernelRecords, AreRejectedWhereOneOfWhatRanBeforeIsBad) {
  const auto with_flush = [](uint64_t start, uint64_t end) {
    Trace trace = graph_trace();
    trace.records[0].start_ns = start;
    trace.records[0].end_ns = end;
    return sample(trace).rejected;
  };
  EXPECT_EQ(with_flush(0, 0), "of what ran before, kernel flush has no timestamp");
  EXPECT_EQ(with_flush(1000, 990), "of what ran before, in kernel flush time went back by 10 ns");
  Trace trace = graph_trace();
  trace.records.push_back(trace.records[0]);
  EXPECT_EQ(sample(trace).rejected, "of what ran before, kernel flush is recorded twice");
}

// The number is right, so another launch must have left one too many.
TEST(KernelRecords, AreRejectedWhereALaunchOfTheWorkLeftNone) {
  Trace trace = graph_trace();
  trace.launches.push_back({102, kWork});
  EXPECT_EQ(sample(trace).rejected, "1 of 2 launches left no record");
}

TEST(KernelRecords, OfALaunchThatWasToldTwiceCountOnce) {
  Trace trace = graph_trace();
  trace.launches.push_back(trace.launches.front());
  EXPECT_EQ(sample(trace).rejected, "");
  EXPECT_EQ(TraceIndex(trace)[kBefore].launches, 1u);
}

/// `count` samples of a flush and a kernel each, back to back: 100 ns a flush, 50 ns a kernel.
struct Batch {
  explicit Batch(size_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t at = 1000 + 200 * i, before = 2 * i + 1, work = 2 * i + 2;
      trace.launches.push_back({.correlation = 10 * i + 1, .region = before});
      trace.launches.push_back({.correlation = 10 * i + 2, .region = work});
      trace.records.push_back({.name = "flush",
                               .start_ns = at,
                               .end_ns = at + 100,
                               .correlation = 10 * i + 1,
                               .grid = 2 * i});
      trace.records.push_back({.name = "a",
                               .start_ns = at + 110,
                               .end_ns = at + 160,
                               .correlation = 10 * i + 2,
                               .grid = 2 * i + 1});
      parts.push_back({.before = before, .work = work, .kernels = &kernels});
    }
  }
  std::vector<Sample> samples() const {
    const TraceIndex index(trace);
    std::vector<Sample> all;
    for (const SampleParts& sample : parts) all.push_back(sample_of(index, sample));
    return all;
  }
  std::vector<std::string> kernels{"a"};
  Trace trace;
  std::vector<SampleParts> parts;
};

TEST(KernelRecords, OfSeveralSamplesGoToTheirOwn) {
  Batch batch(64);
  std::reverse(batch.trace.records.begin(), batch.trace.records.end());
  for (const Sample& sample : batch.samples()) {
    EXPECT_EQ(sample.rejected, "");
    EXPECT_EQ(sample.span_ns, 50);
    EXPECT_EQ(sample.device_ns, 160);
  }
}

TEST(KernelRecords, OfABadSampleLeaveTheOthersGood) {
  Batch batch(4);
  batch.trace.records[2].end_ns = batch.trace.records[3].start_ns + 7;  // its flush runs too long
  batch.trace.records[5].name = "b";
  batch.trace.records.erase(batch.trace.records.begin() + 6);  // a flush
  const std::vector<Sample> samples = batch.samples();
  EXPECT_EQ(samples[0].rejected, "");
  EXPECT_EQ(samples[1].rejected, "starts 7 ns before what ran before it had ended");
  EXPECT_EQ(samples[2].rejected, "kernel 1 is b where a was expected");
  EXPECT_EQ(samples[3].rejected, "1 of 1 launches of what ran before left no record");
}

// Which samples lost a record is not known.
TEST(KernelRecords, OfAllSamplesAreRejectedWhereSomeWereDropped) {
  Batch batch(3);
  batch.trace.dropped = 1;
  for (const Sample& sample : batch.samples()) EXPECT_EQ(sample.rejected, "1 records were dropped");
}

TEST(KernelRecords, AreCompleteOnceEveryLaunchHasLeftItsOwn) {
  Batch batch(2);
  const auto complete_of = [&](size_t i) {
    return complete(TraceIndex(batch.trace), batch.parts[i]);
  };
  EXPECT_TRUE(complete_of(0));
  batch.trace.records.erase(batch.trace.records.begin());
  EXPECT_FALSE(complete_of(0));
  EXPECT_TRUE(complete_of(1));
  batch.kernels.push_back("a");
  EXPECT_FALSE(complete_of(1));
}

// While a batch runs, the records of the one before come in, some of them later than others.
TEST(KernelRecords, MayComeInSeveralTraces) {
  const Batch whole(8);
  Trace first = whole.trace, second, third;
  first.records.clear();
  for (size_t i = 0; i < whole.trace.records.size(); ++i) {
    (i % 3 == 0 ? second : i % 3 == 1 ? third : first).records.push_back(whole.trace.records[i]);
  }
  TraceIndex index;
  const auto all_complete = [&] {
    return std::all_of(whole.parts.begin(), whole.parts.end(),
                       [&](const SampleParts& parts) { return complete(index, parts); });
  };
  for (const Trace* trace : {&first, &second}) {
    index.add(*trace);
    EXPECT_FALSE(all_complete());
  }
  EXPECT_NE(sample_of(index, whole.parts[0]).rejected, "") << "not all of it has come";
  index.add(third);
  EXPECT_TRUE(all_complete());
  for (const SampleParts& parts : whole.parts) EXPECT_EQ(sample_of(index, parts).rejected, "");
  third.records.resize(1);
  index.add(third);
  EXPECT_NE(sample_of(index, whole.parts[0]).rejected, "") << "one has come twice";
}

TEST(KernelRecords, DroppedInOneOfSeveralTracesSpoilAll) {
  const Batch batch(2);
  TraceIndex index(batch.trace);
  Trace later;
  later.dropped = 3;
  index.add(later);
  EXPECT_EQ(sample_of(index, batch.parts[0]).rejected, "3 records were dropped");
}

// Far more regions than a scan of all records for each could bear within the limit of a test.
TEST(KernelRecords, OfManySamplesAreFoundAtOnce) {
  const Batch batch(100'000);
  const std::vector<Sample> samples = batch.samples();
  EXPECT_TRUE(std::all_of(samples.begin(), samples.end(),
                          [](const Sample& sample) { return sample.rejected.empty(); }));
}

TEST(TimestampStep, IsTheDistanceOfTheValuesThatTimesTake) {
  std::vector<double> durations;
  for (int i = 0; i < 200; ++i) durations.push_back(32.0 * (20 + i % 17) + i % 2);
  EXPECT_NEAR(timestamp_step(durations), 32, 1);
}

TEST(TimestampStep, IsOneForAClockThatCountsNanoseconds) {
  std::vector<double> durations;
  for (int i = 0; i < 200; ++i) durations.push_back(600 + i);
  EXPECT_EQ(timestamp_step(durations), 1);
}

TEST(TimestampStep, IsUnknownWhereAllTimesAreEqual) {
  EXPECT_EQ(timestamp_step({640, 640, 640}), 0);
  EXPECT_EQ(timestamp_step({}), 0);
}

TEST(ClockReasons, AreNamedAndUnknownBitsShown) {
  EXPECT_EQ(clock_reasons(0), "none");
  EXPECT_EQ(clock_reasons(0x1), "idle");
  EXPECT_EQ(clock_reasons(0x44), "SW power cap, HW thermal slowdown");
  EXPECT_EQ(clock_reasons(0x1001), "idle, 0x1000");
  EXPECT_EQ(kSlowdownBits & kPowerCapBit, 0);
}

#if defined(MUSE_HAS_CUDA)

/// As the library tells of a call, at its end.
void call(LaunchRegions& regions, uint32_t correlation, cudaError_t outcome = cudaSuccess,
          CUpti_ApiCallbackSite site = CUPTI_API_EXIT) {
  CUpti_CallbackData data{};
  data.callbackSite = site;
  data.correlationId = correlation;
  data.functionReturnValue = &outcome;
  LaunchRegions::on_call(&regions, CUPTI_CB_DOMAIN_RUNTIME_API, 0, &data);
}

TEST(LaunchRegions, KeepWhatTheThreadThatIsInOneLaunches) {
  LaunchRegions regions;
  call(regions, 1);
  LaunchRegions::set_region(7);
  call(regions, 2);
  call(regions, 3, cudaErrorInvalidValue);
  call(regions, 4, cudaSuccess, CUPTI_API_ENTER);
  std::thread([&] { call(regions, 5); }).join();
  LaunchRegions::set_region(8);
  call(regions, 6);
  LaunchRegions::set_region(0);
  call(regions, 7);
  const std::vector<TracedLaunch> launches = regions.take();
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(launches[0].correlation, 2u);
  EXPECT_EQ(launches[0].region, 7u);
  EXPECT_EQ(launches[1].correlation, 6u);
  EXPECT_EQ(launches[1].region, 8u);
  EXPECT_TRUE(regions.take().empty());
}

TEST(PageTable, HoldsEachRowOnceInTheAskedOrder) {
  GatherShape shape{.batch = 3, .tokens = 4, .order = PageOrder::kContiguous};
  EXPECT_EQ(page_table(shape, 12), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  shape.order = PageOrder::kStrideB;
  EXPECT_EQ(page_table(shape, 12), (std::vector<int32_t>{0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11}));
  shape.order = PageOrder::kRandom;
  std::vector<int32_t> random = page_table(shape, 1000);
  EXPECT_EQ(random, page_table(shape, 1000));
  EXPECT_FALSE(std::is_sorted(random.begin(), random.end()));
  std::sort(random.begin(), random.end());
  EXPECT_EQ(std::adjacent_find(random.begin(), random.end()), random.end());
  EXPECT_GE(random.front(), 0);
  EXPECT_LT(random.back(), 1000);
  EXPECT_THROW(page_table(shape, 11), std::invalid_argument);
  EXPECT_EQ(shape.bytes(), 2 * 12 * 128);
}

#endif

}  // namespace
}  // namespace muse::profiler
