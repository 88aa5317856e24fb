// SPDX-License-Identifier: Apache-2.0
// Splits that fill the chip fit on it: what a geometry launches, against the occupancy of its
// kernel.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/command.h"
#include "tuner/backend.h"
#include "tuner/compile.h"
#include "tuner/cuda_error.h"
#include "tuner/cuda_program.h"
#include "variants/registry.h"
#include "variants/runtime/launch_config_cuda.h"

namespace muse::tuner {
namespace {

/// Many have a cluster each, whether that fits or not.
std::vector<Problem> few_requests() {
  std::vector<Problem> all;
  for (const int64_t q_len : {1, 2, 8}) {
    for (int64_t batch = 1; batch <= 8; ++batch) {
      all.push_back({.batch = batch,
                     .q_len = q_len,
                     .num_q_heads = 16,
                     .num_kv_heads = 2,
                     .max_context = 16384});
    }
  }
  return all;
}

struct Filling {
  Candidate candidate;
  std::vector<Problem> problems;  // that it supports
};

/// Every candidate whose splits fill the chip and that has something to do on the device.
std::vector<Filling> filling(const DeviceClass& device) {
  std::vector<Filling> all;
  for (const Variant* variant : Registry::global().all()) {
    if (variant->target.kind != TargetKind::kCuda) continue;
    for (const Configuration& configuration : space(*variant)) {
      const auto fill = configuration.find("fill");
      if (fill == configuration.end() || fill->second == 0) continue;
      Filling one{{variant, configuration}, {}};
      for (const Problem& problem : few_requests()) {
        if (variant->supports(problem, configuration, device).ok()) one.problems.push_back(problem);
      }
      if (!one.problems.empty()) all.push_back(std::move(one));
    }
  }
  return all;
}

/// Of its clusters, or CTAs where there are none, those that the device holds at once.
int64_t room_for(const Launch& launch, cudaKernel_t kernel, int sm_count) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(launch.smem_bytes)),
        "opting in to shared memory");
  int count = 0;
  if (volume(launch.cluster) == 1) {
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kernel,
                                                        static_cast<int>(volume(launch.block)),
                                                        static_cast<size_t>(launch.smem_bytes)),
          "asking for room for CTAs");
    return int64_t{count} * sm_count;
  }
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
        "opting in to large clusters");
  const LaunchConfig shape(launch, false);
  const cudaLaunchConfig_t config = shape.on(nullptr);
  check(cudaOccupancyMaxActiveClusters(&count, kernel, &config), "asking for room for clusters");
  return count;
}

TEST(SplitsThatFillTheChip, FitOnItAtOnceUnlessARequestHasTheLeast) {
  std::unique_ptr<Backend> backend;
  try {
    backend = make_cuda_backend({.timer = profiler::Timer::kEvents});
  } catch (const TargetError& error) {
    GTEST_SKIP() << error.what();
  }
  const DeviceClass& device = backend->device_class();
  const auto toolkit = compiler_toolkit(MUSE_TUNE);
  ASSERT_TRUE(toolkit) << toolkit.error();
  const std::vector<Filling> all = filling(device);
  ASSERT_FALSE(all.empty());
  std::vector<Candidate> candidates;
  for (const Filling& one : all) candidates.push_back(one.candidate);
  const fakes::TemporaryFolder folder;
  const auto results =
      compile_all(candidates, *toolkit,
                  {.architecture = device.isa, .cache = folder.path(), .executable = MUSE_TUNE});
  for (const auto& [name, result] : results) {
    ASSERT_EQ(result.outcome, Outcome::kOk) << name << ": " << result.reason;
  }

  CudaModules modules(folder.path(), *toolkit, device.isa);
  for (const auto& [candidate, problems] : all) {
    const auto module = modules.get(candidate);
    for (const Problem& problem : problems) {
      const Geometry geometry =
          candidate.variant->geometry(problem, candidate.configuration, device);
      for (const Launch& launch : geometry.launches) {
        const int64_t launched = volume(launch.grid) / volume(launch.cluster);
        const int64_t room = room_for(launch, module->kernel(launch.entry).handle, device.sm_count);
        const bool least = launch.grid.x == launch.cluster.x;
        EXPECT_TRUE(launched <= room || least) << fmt::format(
            "{}, batch {}, q_len {}: launches {} clusters of {} CTAs, the device holds {}",
            key(candidate), problem.batch, problem.q_len, launched, volume(launch.cluster), room);
      }
    }
  }
}

}  // namespace
}  // namespace muse::tuner
