// SPDX-License-Identifier: Apache-2.0
// A GPU behind the backend: memory, cubins, launches, graphs, samples, and what cannot be had.
#include "tuner/backend.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "profiler/statistics.h"
#include "tests/fakes/command.h"
#include "tuner/arena.h"
#include "tuner/compile.h"
#include "tuner/inputs.h"
#include "tuner/plan.h"
#include "variants/registry.h"

namespace muse::tuner {
namespace {

/// Kernels of the base, compiled once for all tests.
class Device : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<fakes::TemporaryFolder>();
    try {
      backend_ = make_cuda_backend({.timer = profiler::Timer::kEvents});
    } catch (const TargetError& error) {
      why_not_ = error.what();
      return;
    }
    const auto toolkit = compiler_toolkit(MUSE_TUNE);
    ASSERT_TRUE(toolkit) << toolkit.error();
    base_ = default_base(TargetKind::kCuda, Registry::global()).value();
    const auto results = compile_all(base_, *toolkit,
                                     {.architecture = backend_->device_class().isa,
                                      .cache = folder_->path(),
                                      .executable = MUSE_TUNE});
    for (const auto& [name, result] : results) {
      ASSERT_EQ(result.outcome, Outcome::kOk) << name << ": " << result.reason;
    }
    options_ = {.timer = profiler::Timer::kEvents, .cache = folder_->path(), .toolkit = *toolkit};
    backend_ = make_cuda_backend(options_);
  }
  static void TearDownTestSuite() {
    backend_.reset();
    folder_.reset();
  }
  void SetUp() override {
    if (!backend_) GTEST_SKIP() << why_not_;
  }

  static Shape shape() {
    Shape shape;
    shape.problem = {.batch = 3,
                     .q_len = 2,
                     .num_q_heads = 16,
                     .num_kv_heads = 2,
                     .page_size = 16,
                     .window = 128,
                     .rope_theta = 500000,
                     .max_context = 512};
    shape.lengths.profile = Profile::kList;
    shape.lengths.list = {500, 129, 1};
    shape.lengths.context = 500;
    shape.lengths.pool_bytes = 1 << 20;
    return shape;
  }

  static inline std::unique_ptr<fakes::TemporaryFolder> folder_;
  static inline std::unique_ptr<Backend> backend_;
  static inline CudaOptions options_;
  static inline Chain base_;
  static inline std::string why_not_;
};

/// The base bound to buffers of its own.
struct BoundBase {
  BoundBase(Backend& backend, const Chain& base, const Shape& shape)
      : arena(backend, make_inputs(shape, 1, Fill::kNormal)) {
    Handoff partials{.kind = HandoffKind::kO};
    for (const Candidate& candidate : base) {
      const Handoff left = candidate.variant->produces(shape.problem, candidate.configuration);
      if (left.kind == HandoffKind::kPartials) partials = left;
      const Geometry geometry = candidate.variant->geometry(shape.problem, candidate.configuration,
                                                            backend.device_class());
      launches += static_cast<int>(geometry.launches.size());
      programs.push_back(backend.bind(candidate, shape.problem, arena.buffers(partials, false),
                                      arena.workspace(key(candidate), geometry.workspace)));
    }
  }
  std::vector<Program*> all() const {
    std::vector<Program*> pointers;
    for (const auto& program : programs) pointers.push_back(program.get());
    return pointers;
  }

  Arena arena;
  int launches = 0;
  std::vector<std::unique_ptr<Program>> programs;
};

TEST_F(Device, SaysWhatItIs) {
  const DeviceClass& device = backend_->device_class();
  EXPECT_FALSE(device.host);
  EXPECT_GE(device.cc, 75);
  EXPECT_EQ(device.isa, cuda_architecture(device.cc));
  EXPECT_GT(device.sm_count, 0);
  EXPECT_GT(device.memory_bytes, int64_t{1} << 30);
  EXPECT_GT(device.l2_bytes, 0);
  EXPECT_GE(device.smem_per_block_bytes, 48 << 10);
  EXPECT_EQ(backend_->device_instance().kind, "cuda");
  EXPECT_NE(backend_->protocol().find("fill=normal"), std::string::npos) << "never zeros";
  EXPECT_TRUE(backend_->device_instance().uuid.starts_with("GPU-") ||
              backend_->device_instance().uuid.starts_with("MIG-"));
}

TEST_F(Device, MemoryKeepsWhatIsPutThere) {
  constexpr int64_t kBytes = 1'000'003;
  std::vector<uint8_t> pattern(kBytes), back(kBytes);
  std::iota(pattern.begin(), pattern.end(), uint8_t{0});
  auto* a = static_cast<uint8_t*>(backend_->allocate(kBytes));
  auto* b = static_cast<uint8_t*>(backend_->allocate(kBytes));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 256, 0U);
  backend_->upload(a, pattern.data(), kBytes);
  backend_->copy(b, a, kBytes);
  backend_->download(back.data(), b, kBytes);
  EXPECT_EQ(back, pattern);
  // Many rows at once, from elsewhere and of one byte.
  std::vector<Put> puts;
  for (int64_t row = 0; row < 3000; ++row) {
    puts.push_back({.target = b + row * 300, .source = a + row * 300 + 1, .bytes = 128});
    puts.push_back({.target = b + row * 300 + 128, .bytes = 100, .byte = 0x11});
  }
  backend_->put(puts);
  backend_->download(back.data(), b, kBytes);
  for (int64_t row = 0; row < 3000; ++row) {
    const auto at = back.begin() + row * 300;
    ASSERT_TRUE(std::equal(at, at + 128, pattern.begin() + row * 300 + 1)) << row;
    ASSERT_EQ(std::count(at + 128, at + 228, 0x11), 100) << row;
    ASSERT_TRUE(std::equal(at + 228, at + 300, pattern.begin() + row * 300 + 228)) << row;
  }
  backend_->copy(b, a, kBytes);
  backend_->fill(b, 0x5A, 7);
  backend_->download(back.data(), b, kBytes);
  EXPECT_EQ(std::count(back.begin(), back.begin() + 7, 0x5A), 7);
  EXPECT_TRUE(std::equal(back.begin() + 7, back.end(), pattern.begin() + 7));
  backend_->release(a);
  backend_->release(b);
}

TEST_F(Device, TheFirstDifferenceIsFoundToTheByte) {
  constexpr int64_t kBytes = 5'000'011;
  auto* a = static_cast<uint8_t*>(backend_->allocate(kBytes));
  auto* b = static_cast<uint8_t*>(backend_->allocate(kBytes));
  backend_->fill(a, 0, kBytes);
  backend_->fill(b, 0, kBytes);
  const auto first_difference = [&](const void* got, const void* expected, int64_t bytes) {
    const Compared one{got, expected, bytes};
    const auto found = backend_->first_difference({&one, 1});
    return found ? found->offset : -1;
  };
  EXPECT_EQ(first_difference(a, b, kBytes), -1);
  EXPECT_EQ(first_difference(a, b, 0), -1);
  // From the last to the first: each is nearer than all that stand already.
  for (const int64_t at : {kBytes - 1, int64_t{4'000'005}, int64_t{16}, int64_t{15}, int64_t{0}}) {
    backend_->fill(b + at, 1, 1);
    EXPECT_EQ(first_difference(a, b, kBytes), at);
    EXPECT_EQ(first_difference(a, b, at), -1);
  }
  EXPECT_EQ(first_difference(a + 1, b + 1, kBytes - 1), 14);
  // Of several, the first that differs; one of them is compared with a byte over and over.
  const std::vector<Compared> all{{.got = a, .bytes = kBytes, .byte = 0},
                                  {.got = b + 1, .bytes = 14, .byte = 0},
                                  {.got = a + 3, .expected = b + 3, .bytes = kBytes - 3}};
  const auto found = backend_->first_difference(all);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->index, 2U);
  EXPECT_EQ(found->offset, 12);
  backend_->release(a);
  backend_->release(b);
}

TEST_F(Device, TooMuchMemoryIsAnOutcomeWithBothNumbers) {
  const int64_t bytes = backend_->device_class().memory_bytes + (int64_t{1} << 30);
  try {
    backend_->allocate(bytes);
    FAIL() << "more memory than the device has";
  } catch (const TrialError& error) {
    EXPECT_EQ(error.outcome, Outcome::kOom);
    EXPECT_NE(std::string(error.what()).find(std::to_string(bytes)), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("free"), std::string::npos);
  }
  backend_->release(backend_->allocate(1));
  backend_->synchronize();
}

TEST_F(Device, GraphsGiveWhatLaunchesOneByOneGive) {
  BoundBase bound(*backend_, base_, shape());
  for (Program* program : bound.all()) {
    for (int launch = 0; launch < program->launches(); ++launch) program->launch(launch);
  }
  backend_->synchronize();
  const std::vector<uint8_t> expected = bound.arena.download("out");
  EXPECT_NE(expected, std::vector<uint8_t>(expected.size(), kPoisonByte));
  for (const bool pdl : {false, true}) {
    const auto graph = backend_->capture(bound.all(), pdl, bound.all().size());
    ASSERT_TRUE(graph);
    EXPECT_EQ(graph->launches(), 1);
    EXPECT_EQ(graph->kernels().size(), static_cast<size_t>(bound.launches));
    for (int i = 0; i < 100; ++i) {
      bound.arena.poison("out");
      graph->launch(0);
      ASSERT_EQ(bound.arena.download("out"), expected) << "pdl " << pdl << ", replay " << i;
    }
  }
}

TEST_F(Device, ASampleTakesTimeAndEverySamplerSeesTheKernels) {
  for (const profiler::Timer timer : {profiler::Timer::kEvents, profiler::Timer::kCupti}) {
    CudaOptions options = options_;
    options.timer = timer;
    std::unique_ptr<Backend> backend;
    try {
      backend = make_cuda_backend(options);
    } catch (const TargetError& error) {
      EXPECT_EQ(error.kind, TargetError::Kind::kTimer) << error.what();
      continue;  // no CUPTI here, or another tool has it
    }
    BoundBase bound(*backend, base_, shape());
    const auto graph = backend->capture(bound.all(), false, bound.all().size());
    graph->launch(0);
    backend->synchronize();
    for (int i = 0; i < 3; ++i) {
      const profiler::Sample sample = backend->sampler().take(
          {[&] { backend->flush_caches(); }, [&] { graph->launch(0); }, graph->kernels()});
      EXPECT_EQ(sample.rejected, "");
      EXPECT_GT(sample.span_ns, 0);
    }
    EXPECT_NE(backend->protocol().find(profiler::name(timer)), std::string::npos);
  }
}

// Two modules of one body, each loaded right before its first sample: whichever comes first, what
// loading takes is in neither's median.
TEST_F(Device, TwoModulesOfOneBodyReadTheSameInEitherOrder) {
  fakes::TemporaryFolder second;
  std::filesystem::copy(folder_->path(), second.path(), std::filesystem::copy_options::recursive);
  const auto median_ns = [&](const std::filesystem::path& cache) {
    CudaOptions options = options_;
    options.timer = profiler::Timer::kCupti;
    options.cache = cache;
    const auto backend = make_cuda_backend(options);
    BoundBase bound(*backend, base_, shape());
    const auto graph = backend->capture(bound.all(), false, bound.all().size());
    std::vector<double> ns;
    for (int i = 0; i < 15; ++i) {
      const profiler::Sample sample = backend->sampler().take(
          {[&] { backend->flush_caches(); }, [&] { graph->launch(0); }, graph->kernels()});
      EXPECT_EQ(sample.rejected, "");
      ns.push_back(sample.span_ns);
    }
    return profiler::median(ns);
  };
  try {
    const double a_first = median_ns(folder_->path()), b_second = median_ns(second.path());
    const double b_first = median_ns(second.path()), a_second = median_ns(folder_->path());
    EXPECT_NEAR(a_first, b_second, 0.05 * a_first);
    EXPECT_NEAR(b_first, a_second, 0.05 * b_first);
  } catch (const TargetError& error) {
    ASSERT_EQ(error.kind, TargetError::Kind::kTimer) << error.what();
    GTEST_SKIP() << error.what();  // no CUPTI here, or another tool has it
  }
}

TEST_F(Device, ACandidateWithoutCubinSaysWhereItWasSought) {
  fakes::TemporaryFolder empty;
  CudaOptions options = options_;
  options.cache = empty.path();
  const auto backend = make_cuda_backend(options);
  try {
    BoundBase bound(*backend, base_, shape());
    FAIL() << "bound without machine code";
  } catch (const TrialError& error) {
    EXPECT_EQ(error.outcome, Outcome::kCompileFailed);
    EXPECT_NE(std::string(error.what()).find(empty.path().string()), std::string::npos);
  }
}

TEST_F(Device, ADeviceThatIsNotThereSaysHowManyAre) {
  try {
    make_cuda_backend({.device = 1000});
    FAIL() << "a thousand devices";
  } catch (const TargetError& error) {
    EXPECT_EQ(error.kind, TargetError::Kind::kDevice);
    EXPECT_EQ(error.code, 101);  // cudaErrorInvalidDevice
    EXPECT_NE(std::string(error.what()).find("use cuda:0"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace muse::tuner
