// SPDX-License-Identifier: Apache-2.0
// Which card a run takes where CUDA_VISIBLE_DEVICES names cards by UUID, wrongly, or none.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "db/store.h"
#include "tests/fakes/command.h"
#include "tuner/backend.h"

namespace muse {
namespace {

using fakes::CommandResult;

constexpr double kLimitS = 240;  ///< that of a hang of ours

class VisibleDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      instance_ = tuner::make_cuda_backend({.timer = profiler::Timer::kEvents})->device_instance();
    } catch (const tuner::TargetError& error) {
      GTEST_SKIP() << error.what();
    }
    fakes::write_file(folder_ / "gate.yaml",
                      "schema: 1\n"
                      "defaults: {pool_bytes: 64MiB}\n"
                      "shapes: [{batch: 4, q_len: 1, window: 0, rope_theta: 0, context: 64}]\n"
                      "variants: {include: [gate/separate, gate/scalar]}\n");
  }
  CommandResult tune(const std::string& visible, std::vector<std::string> words) const {
    words.insert(words.begin(), MUSE_TUNE);
    return fakes::run_command(words, {.folder = folder_.path(),
                                      .environment = {"CUDA_VISIBLE_DEVICES=" + visible},
                                      .limit_s = kLimitS});
  }

  fakes::TemporaryFolder folder_;
  profiler::DeviceInstance instance_;
};

TEST_F(VisibleDevices, AUuidNamesTheCardOfARun) {
  const CommandResult run = tune(
      instance_.uuid, {"sweep", "gate.yaml", "--target", "cuda:0", "--stage", "gate", "--db",
                       "a.db", "--cache", "cubins", "--timer", "auto", "--quiet", "--any-build"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const db::Store store = db::Store::open(folder_ / "a.db", db::Open::kRead);
  const db::DeviceRow device = store.device(store.last_run()->device_id);
  EXPECT_EQ(device.uuid, instance_.uuid);
  EXPECT_GT(device.sm_count, 0);
}

TEST_F(VisibleDevices, AWrongNameIsNoCardAndAutoSaysWhyItTakesTheHost) {
  for (const std::string wrong : {"GPU-00000000-0000-0000-0000-000000000000",
                                  "MIG-00000000-0000-0000-0000-000000000000", "a card", ""}) {
    const CommandResult refused = tune(wrong, {"plan", "gate.yaml", "--target", "cuda:0"});
    EXPECT_EQ(refused.exit_code, 3) << wrong << ": " << refused.err;
    EXPECT_NE(refused.err.find("--target host"), std::string::npos) << refused.err;
    const CommandResult plan = tune(wrong, {"plan", "gate.yaml", "--target", "auto"});
    EXPECT_EQ(plan.exit_code, 0) << wrong << ": " << plan.err;
    EXPECT_NE(plan.err.find("for want of a GPU"), std::string::npos) << plan.err;
  }
}

}  // namespace
}  // namespace muse
