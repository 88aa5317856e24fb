// SPDX-License-Identifier: Apache-2.0
// Containment on a GPU: candidates that go wrong between good ones cost themselves alone.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <optional>
#include <thread>

#include "db/store.h"
#include "tests/fakes/command.h"
#include "tests/fakes/misbehaving/variants/gate/fake_fault.cuh"
#include "tuner/backend.h"

namespace muse {
namespace {

using fakes::CommandResult;
using fakes::write_file;
using gate_fake_fault::Fault;

constexpr double kStepNs = 32;   ///< of both timers of an H200
constexpr double kLimitS = 120;  ///< that of a hang of ours, not of the sweep

std::string config(const std::string& faults) {
  return "schema: 1\n"
         "base: [prepare/fused, attention/mma, combine/separate, gate/separate]\n"
         "defaults: {pool_bytes: 1MiB}\n"
         "shapes: [{batch: 2, q_len: 1, window: 16, rope_theta: 10000, context: 48}]\n"
         "variants:\n"
         "  include: [gate/separate, gate/fake_fault]\n"
         "  tunables: {gate/fake_fault: {fault: [" +
         faults +
         "]}}\n"
         "measure: {max_rounds: 48, half_width_pct: 5}\n";
}

struct Found {
  std::string state, reason;
  std::optional<double> median_ns;
};

class Faults : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      tuner::make_cuda_backend({.timer = profiler::Timer::kEvents});
    } catch (const tuner::TargetError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  std::vector<std::string> words(const std::string& file,
                                 const std::string& database = "a.db") const {
    return {MUSE_TUNE_FAKES, "sweep",  file,      "--target",    "cuda:0",     "--stage", "gate",
            "--db",          database, "--cache", cache_.path(), "--deadline", "1s",      "--timer",
            "auto",          "--json", "--quiet", "--any-build"};
  }
  /// By candidate key.
  std::map<std::string, Found> found(const std::string& database = "a.db") const {
    const db::Store store = db::Store::open(folder_ / database, db::Open::kRead);
    std::map<std::string, Found> trials;
    for (const auto& t : store.run_trials(store.last_run()->id)) {
      if (t.candidate.pipeline) continue;
      trials[t.candidate.key] = {t.trial.state, t.trial.reason, t.median_ns};
    }
    return trials;
  }
  fakes::TemporaryFolder folder_, cache_;
};

std::string name_of(Fault fault) { return "gate/fake_fault:fault=" + std::to_string(fault); }

TEST_F(Faults, EachIsNamedAndCostsNobodyElse) {
  write_file(folder_ / "clean.yaml", config("0"));
  const CommandResult clean = fakes::run_command(words("clean.yaml", "clean.db"),
                                                 {.folder = folder_.path(), .limit_s = kLimitS});
  ASSERT_EQ(clean.exit_code, 0) << clean.err;
  const auto unharmed = found("clean.db");
  write_file(folder_ / "faults.yaml", config("0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"));
  const CommandResult result =
      fakes::run_command(words("faults.yaml"), {.folder = folder_.path(), .limit_s = kLimitS});
  ASSERT_EQ(result.exit_code, 5) << result.err;
  const auto trials = found();

  for (const std::string good :
       {"gate/separate:threads=128", "gate/fake_fault:fault=0", "gate/fake_fault:fault=8"}) {
    ASSERT_TRUE(trials.contains(good)) << good;
    EXPECT_TRUE(trials.at(good).state == "ok" || trials.at(good).state == "degraded")
        << good << ": " << trials.at(good).state << ": " << trials.at(good).reason;
    ASSERT_TRUE(trials.at(good).median_ns) << good;
  }
  for (const std::string both : {"gate/separate:threads=128", "gate/fake_fault:fault=0"}) {
    ASSERT_TRUE(unharmed.contains(both) && unharmed.at(both).median_ns) << both;
    // Of a kernel of two microseconds 5 % are three steps of the clock.
    const double clean_ns = *unharmed.at(both).median_ns;
    EXPECT_NEAR(*trials.at(both).median_ns, clean_ns, std::max(0.05 * clean_ns, 4 * kStepNs))
        << both << ": its time does not tell of its neighbours' faults";
  }
  const std::multimap<Fault, std::pair<std::string, std::string>> expected{
      {Fault::kIllegalAddress, {"crashed", "cudaErrorIllegalAddress"}},
      {Fault::kMisalignedAddress, {"crashed", "cudaErrorMisalignedAddress"}},
      {Fault::kTrap, {"crashed", "CUDA error"}},
      {Fault::kAssert, {"crashed", "cudaErrorAssert"}},
      {Fault::kSharedOverrun, {"crashed", "CUDA error"}},
      {Fault::kSpin, {"timeout", "no progress"}},
      {Fault::kLate, {"crashed", "cudaErrorIllegalAddress"}},
      {Fault::kTooManyThreads, {"launch_failed", "2048"}},
      {Fault::kTooManyThreads, {"launch_failed", "cudaError"}},
      {Fault::kGridTooHigh, {"launch_failed", "70000"}},
      {Fault::kGridTooHigh, {"launch_failed", "cudaError"}},
      {Fault::kTooMuchShared, {"launch_failed", "1048576"}},
      {Fault::kTooMuchShared, {"launch_failed", "cudaError"}},
      {Fault::kOutOfMemory, {"oom", "free"}},
  };
  for (const auto& [fault, what] : expected) {
    const std::string name = name_of(fault);
    ASSERT_TRUE(trials.contains(name)) << name;
    const Found& trial = trials.at(name);
    EXPECT_EQ(trial.state, what.first) << name << ": " << trial.reason;
    EXPECT_NE(trial.reason.find(what.second), std::string::npos) << name << ": " << trial.reason;
    EXPECT_FALSE(trial.median_ns) << name;
  }
  EXPECT_LT(result.seconds, 60) << "hangs are cut off and workers replaced in seconds";
}

TEST_F(Faults, AStopDuringAHangEndsInSeconds) {
  write_file(folder_ / "hang.yaml", config("6"));
  std::vector<std::string> patient = words("hang.yaml");
  for (std::string& word : patient) {
    if (word == "1s") word = "300s";
  }
  fakes::RunningCommand running(patient, {.folder = folder_.path(), .limit_s = kLimitS});
  // It hangs once the trial is under way and no more rows come.
  const std::filesystem::path database = folder_ / "a.db";
  const auto is_hanging = [&] {
    if (!std::filesystem::exists(database)) return false;
    try {
      const auto trials = found();
      const auto at = trials.find(name_of(Fault::kSpin));
      return at != trials.end() && at->second.state == "running";
    } catch (const std::exception&) {
      return false;  // just being made
    }
  };
  for (int i = 0; i < 1000 && !is_hanging(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  ASSERT_TRUE(is_hanging());
  const auto start = std::chrono::steady_clock::now();
  kill(running.pid(), SIGINT);
  EXPECT_EQ(running.wait().exit_code, 130);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(12));
}

}  // namespace
}  // namespace muse
