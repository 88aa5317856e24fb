// SPDX-License-Identifier: Apache-2.0
// From scripted records of a GPU to samples, and the reasons to reject one.
#include "profiler/kernel_records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "profiler/ceilings.h"
#include "profiler/nvml.h"

namespace muse::profiler {
namespace {

constexpr uint64_t kBefore = 6, kWork = 7;
constexpr uint32_t kFlushCall = 100, kGraphCall = 101;

/// A flush, then one launch of a graph of three kernels.
Trace graph_trace() {
  Trace trace;
  trace.owners = {{kFlushCall, kBefore}, {kGraphCall, kWork}};
  trace.records = {
      {.name = "flush", .start_ns = 1000, .end_ns = 2000, .correlation = kFlushCall, .grid = 1},
      {.name = "a", .start_ns = 2500, .end_ns = 3000, .correlation = kGraphCall, .node = 11},
      {.name = "b", .start_ns = 3100, .end_ns = 3500, .correlation = kGraphCall, .node = 12},
      {.name = "c", .start_ns = 3600, .end_ns = 4500, .correlation = kGraphCall, .node = 13}};
  return trace;
}

Sample sample(const Trace& trace, std::vector<std::string> kernels = {"a", "b", "c"}) {
  return sample_of(trace, kBefore, kWork, kernels);
}

TEST(KernelRecords, OfAGraphGiveItsSpanAndTheSumOfItsKernels) {
  const Sample good = sample(graph_trace());
  EXPECT_EQ(good.rejected, "");
  EXPECT_EQ(good.span_ns, 4500 - 2500);
  EXPECT_EQ(good.kernel_ns, 500 + 400 + 900);
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
  trace.owners = {{1, kWork}, {2, kWork}};
  trace.records = {{.name = "a", .start_ns = 10, .end_ns = 20, .correlation = 1, .grid = 1},
                   {.name = "a", .start_ns = 30, .end_ns = 40, .correlation = 2, .grid = 2}};
  EXPECT_EQ(sample(trace, {"a", "a"}).rejected, "");
  EXPECT_EQ(sample(trace, {"a", "a"}).span_ns, 30);
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
  trace.owners[900] = 3;  // an earlier sample that was recorded late
  trace.records.push_back(
      {.name = "b", .start_ns = 3200, .end_ns = 3300, .correlation = 900, .grid = 2});
  trace.records.push_back(  // launched outside of any region
      {.name = "c", .start_ns = 3200, .end_ns = 9900, .correlation = 901, .grid = 3});
  EXPECT_EQ(sample(trace).rejected, "");
  EXPECT_EQ(sample(trace).span_ns, 2000);
  EXPECT_EQ(count_of(trace, kWork), 3u);
  EXPECT_EQ(count_of(trace, kBefore), 1u);
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
