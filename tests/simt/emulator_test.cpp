// SPDX-License-Identifier: Apache-2.0
// The emulator itself: what waits for whom, what is poisoned, and what is refused with which words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/fakes/sanitized.h"
#include "tests/simt/emulator_test_kernels.h"

namespace muse::simt_test {
namespace {

using simt::Kernel;
using simt::LaunchShape;
using testing::HasSubstr;

std::vector<int> run(const Kernel& kernel, size_t elements, const LaunchShape& shape,
                     int number = 0, int os_threads = 1) {
  std::vector<int> out(elements, 0);
  alignas(16) static const int in[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const Args args{out.data(), in, number};
  simt::launch(kernel, &args, shape, os_threads);
  return out;
}

std::string error(const Kernel& kernel, const LaunchShape& shape, int number = 0) {
  try {
    run(kernel, 1024, shape, number);
  } catch (const simt::Error& error) {
    return error.what();
  }
  return "";
}

TEST(Emulator, BarriersPassSharedMemoryBetweenWarpsInEveryBlock) {
  for (const int os_threads : {1, 3}) {
    const std::vector<int> out = run(rotate_kernel(), 96 * 20, {{20}, {96}}, 0, os_threads);
    for (int i = 0; i < 96 * 20; ++i) ASSERT_EQ(out[i], (i % 96 + 33) % 96) << i;
  }
}

TEST(Emulator, SharedMemoryIsPoisonedBeforeEachBlock) {
  for (int launch = 0; launch < 2; ++launch) {
    const LaunchShape shape{{1}, {96}, 96 * sizeof(int)};
    for (const int value : run(read_unwritten_kernel(), 192, shape)) ASSERT_EQ(value, -1);
  }
}

TEST(Emulator, ShufflesAndVotesAsTheManualSays) {
  const std::vector<int> out = run(shuffle_kernel(), 64 * 8, {{1}, {64}});
  for (int thread = 0; thread < 64; ++thread) {
    const int lane = thread % 32;
    const std::vector<int> got(&out[thread * 8], &out[thread * 8] + 8);
    const std::vector<int> expected{5,
                                    lane / 8 * 8 + 1,
                                    lane % 16 < 3 ? lane : lane - 3,
                                    lane % 16 > 12 ? lane : lane + 3,
                                    lane ^ 24,
                                    0x49249249,
                                    1,
                                    1};
    EXPECT_EQ(got, expected) << thread;
  }
}

TEST(Emulator, LanesOfDifferentMasksDoNotWaitForOneAnother) {
  const std::vector<int> out = run(shuffle_in_halves_kernel(), 32, {{1}, {32}});
  for (int i = 0; i < 32; ++i) {
    const int pair = 2 * (i / 2) * 2 + 1;
    EXPECT_EQ(out[i], i < 16 ? pair : 4 * pair) << i;
  }
}

TEST(Emulator, WhoHasEndedIsNotWaitedFor) {
  const std::vector<int> out = run(ends_early_kernel(), 96, {{1}, {96}});
  for (int i = 0; i < 96; ++i) EXPECT_EQ(out[i], i % 2 == 0 ? 0x55555555 : 0) << i;
}

TEST(Emulator, MultipliesFragmentsOfAWarp) {
  const std::vector<int> out = run(multiply_kernel(), 128, {{1}, {32}});
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      int expected = 1;
      for (int k = 0; k < 16; ++k) expected += (i - k) * (k + 2 * j);
      EXPECT_EQ(out[i * 8 + j], expected) << i << ", " << j;
    }
  }
}

TEST(Emulator, TransposesAMatrixOfAWarp) {
  const std::vector<int> out = run(transpose_kernel(), 64, {{1}, {32}});
  for (int i = 0; i < 64; ++i) EXPECT_EQ(out[i], i % 8 * 8 + i / 8) << i;
}

TEST(Emulator, CopiesLandLateInEvenBlocksAndAtOnceInOddOnes) {
  const LaunchShape shape{{2}, {1}, 32};
  const std::vector<int> all{1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(run(copy_kernel(), 16, shape, 0), all);
  const std::vector<int> one_missed{1, 2, 3, 4, -1, -1, -1, -1, 1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(run(copy_kernel(), 16, shape, 1), one_missed);
  const std::vector<int> zeros{1, 2, 3, 4, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0};
  EXPECT_EQ(run(copy_kernel(), 16, shape, 2), zeros);
}

TEST(Emulator, AtomicsHoldAcrossBlocksOnSeveralThreads) {
  EXPECT_EQ(run(count_kernel(), 1, {{200}, {64}}, 3, 4)[0], 200 * 64 * 3);
}

TEST(Emulator, ReportsWhoWaitsForWhatInADeadlock) {
  const std::string what = error(parts_at_barrier_kernel(), {{1}, {64}});
  EXPECT_THAT(what, HasSubstr("block (0, 0, 0): deadlock"));
  EXPECT_THAT(what, HasSubstr("warp 0 lane 0..31 waits at __syncthreads"));
  EXPECT_THAT(what, HasSubstr("warp 1 lane 8..31 waits at __syncwarp with mask 0xffffffff"));
}

TEST(Emulator, RefusesAMaskWithoutTheLaneItself) {
  EXPECT_THAT(error(lacks_itself_kernel(), {{1}, {32}}), HasSubstr("lacks the lane itself"));
}

TEST(Emulator, RefusesAnInstructionOfTheWholeWarpInAPartOfIt) {
  EXPECT_THAT(error(mma_in_half_a_warp_kernel(), {{1}, {32}}), HasSubstr("without all its lanes"));
}

TEST(Emulator, GuardsTheEndsOfSharedMemory) {
  EXPECT_EQ(error(write_shared_kernel(), {{1}, {1}, 100}, 99), "");
  EXPECT_THAT(error(write_shared_kernel(), {{1}, {1}, 100}, 103),
              HasSubstr("3 bytes behind its 100"));
  EXPECT_THAT(error(write_shared_kernel(), {{1}, {1}, 100}, -1), HasSubstr("1 bytes before"));
}

TEST(Emulator, RefusesMisalignedAccesses) {
  EXPECT_EQ(error(misaligned_kernel(), {{1}, {1}}, 4), "");
  const std::string what = error(misaligned_kernel(), {{1}, {1}}, 1);
  EXPECT_THAT(what, HasSubstr("thread (0, 0, 0) (warp 0, lane 0)"));
  EXPECT_THAT(what, HasSubstr("not aligned to 4 bytes"));
}

TEST(Emulator, TurnsAnIllegalAccessIntoAnErrorAndGoesOn) {
  if (fakes::kSanitized) GTEST_SKIP() << "the sanitizer ends the process";
  EXPECT_THAT(error(dereference_null_kernel(), {{1}, {64}}, 1), HasSubstr("illegal access"));
  EXPECT_EQ(run(rotate_kernel(), 96, {{1}, {96}})[0], 33);
}

constexpr LaunchShape kClusters{{8}, {32}, 264, {4}};

TEST(Emulator, BlocksOfAClusterPassDataThroughSharedMemoryOfPeers) {
  for (const int os_threads : {1, 2}) {
    const std::vector<int> out = run(pass_on_kernel(), 256, kClusters, 0, os_threads);
    for (int i = 0; i < 256; ++i) ASSERT_EQ(out[i], i / 32 % 4 == 0 ? -96 : 32) << i;
  }
}

TEST(Emulator, RefusesStoresToPeersThatMayNotHaveStartedOrHaveEnded) {
  EXPECT_THAT(error(pass_on_kernel(), kClusters, 1), HasSubstr("may not have started"));
  EXPECT_THAT(error(pass_on_kernel(), kClusters, 2), HasSubstr("a store to a peer that has ended"));
  EXPECT_THAT(error(store_to_the_ended_kernel(), {{2}, {32}, 256, {2}}), HasSubstr("has ended"));
}

TEST(Emulator, RefusesMailThatIsNotCounted) {
  EXPECT_THAT(error(pass_on_kernel(), kClusters, 3), HasSubstr("expects no more"));
  EXPECT_THAT(error(pass_on_kernel(), kClusters, 4), HasSubstr("lane 0..31 waits for mail"));
  EXPECT_THAT(error(pass_on_kernel(), kClusters, 5), HasSubstr("not open"));
}

TEST(Emulator, RefusesMisuseOfAClustersBarrier) {
  const LaunchShape pair{{2}, {32}, 0, {2}};
  EXPECT_THAT(error(misuse_cluster_kernel(), pair, 0), HasSubstr("again without having waited"));
  EXPECT_THAT(error(misuse_cluster_kernel(), pair, 1), HasSubstr("without having arrived"));
  const std::string what = error(misuse_cluster_kernel(), pair, 2);
  EXPECT_THAT(what, HasSubstr("block (0, 0, 0): deadlock"));
  EXPECT_THAT(what, HasSubstr("lane 0..31 waits for its cluster"));
}

TEST(Emulator, BarriersWithPhasesHandASlotToAndFro) {
  const LaunchShape shape{{2}, {64}, 144};
  const std::vector<int> out = run(through_ring_kernel(), 64, shape);
  for (int i = 0; i < 64; ++i) {
    int expected = 0;
    for (int round = 0; round < 4; ++round) expected = 10 * expected + (i + round) % 8 + 1;
    EXPECT_EQ(out[i], expected) << i;
  }
}

TEST(Emulator, RefusesMisuseOfBarriersWithPhases) {
  const LaunchShape shape{{1}, {64}, 144};
  EXPECT_THAT(error(through_ring_kernel(), shape, 1), HasSubstr("waits for a phase"));
  EXPECT_THAT(error(through_ring_kernel(), shape, 2), HasSubstr("that nobody has made"));
  EXPECT_THAT(error(through_ring_kernel(), shape, 3), HasSubstr("waits for a phase"));
  EXPECT_THAT(error(through_ring_kernel(), shape, 4), HasSubstr("have landed"));
  EXPECT_THAT(error(through_ring_kernel(), shape, 5), HasSubstr("lane 0..31 waits for a phase"));
}

TEST(Emulator, CopiesBoxesOfTensorMapsAsTheirSwizzleSays) {
  static int rows[4][3][16];  // 64 bytes to a row, 192 to a step of either outer dimension
  for (int i = 0; i < 4 * 3 * 16; ++i) rows[i / 48][i / 16 % 3][i % 16] = i;
  std::vector<int> out(64);
  Args args{out.data(), &rows[0][0][0], 0};
  const LaunchShape shape{{1}, {1}, 1032};
  simt::launch(copy_box_kernel(), &args, shape, 1);
  for (int row = 0; row < 4; ++row) {
    for (int word = 0; word < 16; ++word) {
      const int at = row * 16 + (word / 4 ^ row / 2) * 4 + word % 4;
      EXPECT_EQ(out[at], row % 2 == 1 ? 0 : rows[row / 2 + 1][2][word]) << row << ", " << word;
    }
  }
  EXPECT_THAT(error(copy_box_kernel(), shape, 1), HasSubstr("nobody has encoded"));
  EXPECT_THAT(error(copy_box_kernel(), shape, 2), HasSubstr("not aligned to 1024"));
  EXPECT_THAT(error(copy_box_kernel(), shape, 3), HasSubstr("expects no more"));
}

TEST(Emulator, EveryOtherLaunchTakesItsBlocksInReverse) {
  const std::vector<int> first = run(come_last_kernel(), 2, {{7}, {1}});
  const std::vector<int> second = run(come_last_kernel(), 2, {{7}, {1}});
  EXPECT_EQ(first[1] + second[1], 6);
  EXPECT_EQ(first[1] * second[1], 0);
  EXPECT_EQ(first[0] + second[0], 0);  // tickets are back at 0
}

TEST(Emulator, RefusesLaunchesThatAGpuWouldRefuse) {
  EXPECT_THAT(error(count_kernel(), {{0}, {32}}), HasSubstr("grid of (0, 1, 1)"));
  EXPECT_THAT(error(count_kernel(), {{1}, {1025}}), HasSubstr("block of (1025, 1, 1)"));
  EXPECT_THAT(error(count_kernel(), {{1}, {32}, 232449}),
              HasSubstr("232449 bytes of shared memory"));
  EXPECT_THAT(error(count_kernel(), {{6}, {32}, 0, {4}}), HasSubstr("no clusters of (4, 1, 1)"));
}

}  // namespace
}  // namespace muse::simt_test
