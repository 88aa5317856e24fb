// SPDX-License-Identifier: Apache-2.0
// The compile phase of a sweep, and every CUDA variant through the NVRTC that is there.
#include "tuner/kernels.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/fakes/command.h"
#include "tuner/ptxas_log.h"
#include "tuner/supervisor.h"
#include "tuner/sweep.h"
#include "variants/kernel_source.h"

namespace muse::tuner {
namespace {

using std::chrono::seconds;

constexpr char kConfig[] = R"(
schema: 1
shapes:
  - {batch: 1, q_len: 1, window: 0, context: 64, pool_bytes: 64KiB}
variants:
  include: ["*/scalar", "prepare/simd", "prepare/fused", "attention/mma", "combine/gated"]
  tunables: {"*": {threads: [1, 128]}}
measure: {max_rounds: 4}
pipelines: {top_k: 1}
)";

const Known kNothingKnown = [](const auto&...) { return std::optional<Outcome>(); };

/// A plan and a database for it, without any device.
class CompilePhase : public testing::Test {
 protected:
  void SetUp() override {
    setenv("MUSE_LIBRARY_PATH", MUSE_BINARY_DIR "/stubs/nvrtc", 1);
    const auto spec = parse_spec(kConfig, "test.yaml", Registry::global());
    ASSERT_TRUE(spec) << spec.error().front().text();
    spec_ = *spec;
  }
  void TearDown() override {
    for (const char* name : {"MUSE_LIBRARY_PATH", "MUSE_STUB_NVRTC", "MUSE_STUB_NVRTC_ONLY"}) {
      unsetenv(name);
    }
  }

  Plan plan_for(const DeviceClass& device) const {
    const auto plan = make_plan(spec_, Registry::global(), device, {}, kNothingKnown);
    EXPECT_TRUE(plan) << plan.error();
    return *plan;
  }
  CompileOptions options() const { return {.architecture = "sm_90a", .executable = MUSE_TUNE}; }

  fakes::TemporaryFolder folder_;
  Spec spec_;
  Toolchain toolchain_{.cache = folder_.path() / "cubins", .toolkit = "nvrtc 99.7"};
  db::Store store_ = db::Store::open(folder_ / "a.db", db::Open::kCreate);
  Hello hello_{.device_class = imagined_device(90), .toolkit = "nvrtc 99.7"};
};

TEST_F(CompilePhase, StoresAKernelRowForEachKernelAndNamesWhatFailed) {
  const Plan plan = plan_for(hello_.device_class);
  Records records(store_, spec_, hello_, {});
  setenv("MUSE_STUB_NVRTC", "fail", 1);
  setenv("MUSE_STUB_NVRTC_ONLY", "combine_gated", 1);
  const NotCompiledMap failed = prepare_kernels(plan, toolchain_, records, options());
  size_t combines = 0, kernels = 0;
  for (const Candidate& candidate : measured_candidates(plan)) {
    if (candidate.variant->name == "combine/gated") {
      ++combines;
      ASSERT_TRUE(failed.contains(key(candidate)));
      EXPECT_EQ(failed.at(key(candidate)).outcome, Outcome::kCompileFailed);
      EXPECT_NE(failed.at(key(candidate)).reason.find("the stub does not like it"),
                std::string::npos);
    } else {
      kernels += candidate.variant->entries.size();
    }
  }
  EXPECT_GT(combines, 0u);
  EXPECT_EQ(failed.size(), combines);
  const std::vector<db::KernelRow> rows = store_.kernels();
  EXPECT_EQ(rows.size(), kernels);
  for (const db::KernelRow& row : rows) {
    EXPECT_TRUE(row.name.starts_with("muse::")) << row.name;
    EXPECT_EQ(row.architecture, "sm_90a");
    EXPECT_EQ(row.registers, 40);
    EXPECT_EQ(row.spill_bytes, 20);
  }
}

TEST_F(CompilePhase, DoesNotTryAgainWhatItKnowsNotToCompile) {
  const Plan plan = plan_for(hello_.device_class);
  Records records(store_, spec_, hello_, {});
  const Candidate known = measured_candidates(plan).front();
  const RaceGroup group{.shape = plan.shapes.front().shape};
  db::TrialRow trial = records.trial({known}, group);
  records.set(trial, Outcome::kCompileTimeout, "not compiled within 60 s");
  const NotCompiledMap failed = prepare_kernels(plan, toolchain_, records, options());
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed.begin()->first, key(known));
  EXPECT_EQ(failed.begin()->second.outcome, Outcome::kCompileTimeout);
  EXPECT_EQ(failed.begin()->second.reason, "not compiled within 60 s");
  const CubinCache cache(toolchain_.cache);
  EXPECT_FALSE(cache.find(known, toolchain_.toolkit, "sm_90a"));
}

TEST_F(CompilePhase, LeavesASweepWithAReasonForEachCandidateWithoutKernels) {
  Supervisor supervisor({.executable = MUSE_TUNE});
  const auto hello = supervisor.hello();
  ASSERT_TRUE(hello) << hello.error().reason;
  const Plan plan = plan_for(hello->device_class);
  SweepOptions options;
  for (const PlanItem& item : plan.items) {
    if (item.candidate.variant->name != "prepare/simd") continue;
    options.not_compiled[key(item.candidate)] = {Outcome::kCompileFailed, "line 3: error"};
  }
  ASSERT_FALSE(options.not_compiled.empty());
  Records records(store_, spec_, *hello, {.timer = "host", .base = key(plan.base)});
  ProgressLine quiet(false);
  const SweepResult result = sweep(plan, spec_, records, supervisor, *hello, options, quiet);
  EXPECT_EQ(exit_code(result), ExitCode::kIncomplete);
  EXPECT_EQ(static_cast<size_t>(result.outcomes.at(Outcome::kCompileFailed)),
            options.not_compiled.size());
  size_t rows = 0;
  for (const auto& one : store_.run_trials(records.run())) {
    if (one.candidate.variant != "prepare/simd") continue;
    ++rows;
    EXPECT_EQ(one.trial.state, "compile_failed");
    EXPECT_EQ(one.trial.reason, "line 3: error");
  }
  EXPECT_EQ(rows, options.not_compiled.size());
}

/// With the NVRTC that is really there.
class RealNvrtc : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto toolkit = compiler_toolkit(MUSE_TUNE);
    if (!toolkit) GTEST_SKIP() << toolkit.error();
    toolkit_ = *toolkit;
  }
  std::map<std::string, CompileResult> compile(const std::vector<Candidate>& candidates,
                                               const std::string& architecture) const {
    return compile_all(candidates, toolkit_,
                       {.architecture = architecture,
                        .cache = cache_.path(),
                        .deadline = seconds(120),
                        .executable = MUSE_TUNE});
  }

  std::string toolkit_;
  fakes::TemporaryFolder cache_;
};

TEST_P(RealNvrtc, CompilesEveryDefaultConfigurationWithoutSpillsAndWarnings) {
  std::vector<Candidate> candidates;
  for (const Variant* variant : Registry::global().all()) {
    if (!accepts(variant->target, cc_of(GetParam()))) continue;
    candidates.push_back({variant, default_configuration(*variant)});
  }
  ASSERT_FALSE(candidates.empty());
  for (const auto& [text, result] : compile(candidates, GetParam())) {
    ASSERT_TRUE(result.compiled) << text << ": " << result.reason;
    EXPECT_EQ(warnings(result.compiled->log), "") << text;
    for (const CompiledKernel& kernel : result.compiled->kernels) {
      EXPECT_EQ(kernel.spill_bytes, 0) << text << " " << kernel.entry;
      EXPECT_GT(kernel.registers, 0) << text << " " << kernel.entry;
      EXPECT_GE(kernel.shared_bytes, 0) << text << " " << kernel.entry;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, RealNvrtc,
                         testing::Values("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
                         [](const auto& info) { return std::string(info.param); });

using RealNvrtcSample = RealNvrtc;
INSTANTIATE_TEST_SUITE_P(Architectures, RealNvrtcSample, testing::Values("sm_90a"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(RealNvrtcSample, CompilesConfigurationsTakenAtRandom) {
  constexpr size_t kEach = 3;
  std::vector<Candidate> candidates;
  uint64_t state = 1;
  for (const Variant* variant : Registry::global().all()) {
    if (!accepts(variant->target, cc_of(GetParam()))) continue;
    const std::vector<Configuration> configurations = space(*variant);
    for (size_t i = 0; i < kEach; ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      candidates.push_back({variant, configurations[(state >> 33) % configurations.size()]});
    }
  }
  for (const auto& [text, result] : compile(candidates, GetParam())) {
    EXPECT_TRUE(result.compiled) << text << ": " << result.reason;
  }
}

TEST_P(RealNvrtcSample, GivesTheSameBytesWhereverItRuns) {
  const Variant* variant = Registry::global().find("gate/separate");
  ASSERT_NE(variant, nullptr);
  const Candidate candidate{variant, default_configuration(*variant)};
  const auto first = compile({candidate}, GetParam()).at(key(candidate));
  ASSERT_TRUE(first.compiled) << first.reason;
  const fakes::TemporaryFolder other;
  const auto second =
      compile_all({candidate}, toolkit_,
                  {.architecture = GetParam(), .cache = other.path(), .executable = MUSE_TUNE});
  EXPECT_EQ(second.at(key(candidate)).compiled->cubin_hash, first.compiled->cubin_hash);
}

TEST_P(RealNvrtcSample, PutsAWrongKernelDownToItsLog) {
  Variant wrong;
  wrong.name = "gate/separate";
  wrong.target.kind = TargetKind::kCuda;
  wrong.entries = {"no_such_kernel"};
  const Candidate candidate{&wrong, {}};
  const auto result = compile({candidate}, GetParam()).at(key(candidate));
  EXPECT_EQ(result.outcome, Outcome::kCompileFailed);
  EXPECT_NE(result.reason.find("no_such_kernel"), std::string::npos) << result.reason;
}

}  // namespace
}  // namespace muse::tuner
