// SPDX-License-Identifier: Apache-2.0
// doctor as a user meets it: on a machine without a GPU, and with libraries that are missing, old
// or in a bad state.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/fakes/command.h"
#include "tuner/build_info.h"

namespace muse {
namespace {

using fakes::CommandResult;
using fakes::TemporaryFolder;
using nlohmann::json;

class Doctor : public ::testing::Test {
 protected:
  CommandResult doctor(std::vector<std::string> words, std::vector<std::string> environment = {}) {
    words.insert(words.begin(), {MUSE_TUNE, "doctor"});
    environment.emplace_back("CUDA_VISIBLE_DEVICES=");  // the same on a machine with a GPU
    return fakes::run_command(
        words, {.folder = folder_.path(), .environment = environment, .limit_s = 120});
  }
  json report(std::vector<std::string> words, std::vector<std::string> environment = {},
              int exit_code = 0) {
    words.emplace_back("--json");
    const CommandResult result = doctor(std::move(words), std::move(environment));
    EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
    return json::parse(result.out);
  }
  /// With a GPU asked for, so that no check is left out; there is none, which is exit 3.
  json gpu_report(std::vector<std::string> environment) {
    return report({"--target", "cuda:0"}, std::move(environment), 3);
  }
  /// The named check of such a report with this stub library first on the path.
  json with_stub(const std::string& name, const std::string& library,
                 std::vector<std::string> environment = {}) {
    environment.push_back("LD_LIBRARY_PATH=" MUSE_BINARY_DIR "/stubs/" + library);
    return check(gpu_report(std::move(environment)), name);
  }
  static std::set<std::string> names(const json& report) {
    std::set<std::string> names;
    for (const json& check : report["checks"]) names.insert(check["name"]);
    return names;
  }
  static json check(const json& report, const std::string& name) {
    for (const json& check : report["checks"]) {
      if (check["name"] == name) return check;
    }
    ADD_FAILURE() << "no check " << name << " in " << report;
    return {};
  }
  static void expect(const json& check, const std::string& verdict,
                     const std::vector<std::string>& parts) {
    EXPECT_EQ(check["verdict"], verdict) << check;
    const std::string text =
        check["seen"].get<std::string>() + " | " + check["remedy"].get<std::string>();
    for (const std::string& part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " not in " << text;
    }
  }
  TemporaryFolder folder_;
};

TEST_F(Doctor, ReportsTheHostsChecksAsTheDocumentedJson) {
  const json whole = report({"--target", "host"});
  EXPECT_EQ(whole["schema"], "muse.doctor");
  EXPECT_EQ(whole["version"], 1);
  EXPECT_TRUE(whole["ceilings"].is_null());
  for (const json& check : whole["checks"]) {
    EXPECT_TRUE(check["verdict"] == "PASS" || check["verdict"] == "WARN") << check;
    EXPECT_NE(check["seen"], "");
    EXPECT_TRUE(check["verdict"] == "PASS" || check["remedy"] != "") << check;
  }
  expect(check(whole, "worker"), "PASS", {"starts and answers"});
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << "doctor wrote something";
}

TEST_F(Doctor, TellsAMachineWithoutAGpuFromAFault) {
  if (std::filesystem::exists("/dev/nvidiactl") && !tuner::has_cuda_target()) {
    GTEST_SKIP() << "a card, and a build that cannot use it: that is a fault";
  }
  const json whole = report({"--target", "auto"});
  if (names(whole).contains("driver")) {  // a card that is hidden
    expect(check(whole, "driver"), "PASS", {"the target is the host"});
  } else {
    expect(check(whole, "gpu"), "PASS", {"none here; CUDA checks left out"});
    for (const char* left_out : {"device files", "nvml", "cupti"}) {
      EXPECT_FALSE(names(whole).contains(left_out)) << left_out;
    }
    EXPECT_EQ(names(whole).contains("nvrtc"), tuner::has_cuda_target());
  }
  const CommandResult wanted = doctor({"--target", "cuda:0"});
  EXPECT_EQ(wanted.exit_code, 3) << wanted.out;
  EXPECT_NE(wanted.out.find("FAIL  driver"), std::string::npos) << wanted.out;
  EXPECT_NE(wanted.out.find("-> "), std::string::npos) << wanted.out;
}

TEST_F(Doctor, LeavesNothingOutWhereNvmlAloneKnowsOfACard) {
  if (std::filesystem::exists("/dev/nvidiactl") && !tuner::has_cuda_target()) {
    GTEST_SKIP() << "a card, and a build that cannot use it: that is a fault";
  }
  const json whole = report({}, {"LD_LIBRARY_PATH=" MUSE_BINARY_DIR "/stubs/nvml"});
  for (const char* kept : {"device files", "nvml", "driver", "gpu clocks"}) {
    EXPECT_TRUE(names(whole).contains(kept)) << kept;
  }
  EXPECT_FALSE(names(whole).contains("gpu"));
}

TEST_F(Doctor, RefusesWhatIsNoTarget) {
  for (const char* target : {"gpu", "cuda:", "cuda:-1", "cuda:12345", "cuda:1x"}) {
    const CommandResult result = doctor({"--target", target});
    EXPECT_EQ(result.exit_code, 2) << target;
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(Doctor, SaysHowToGetLibrariesThatAreMissing) {
  const json whole = gpu_report({"MUSE_LIBRARY_PATH=" + folder_.path().string()});
  expect(check(whole, "nvml"), "WARN", {"libnvidia-ml.so.1", "comes with the NVIDIA driver"});
  if (!tuner::has_cuda_target()) return;
  expect(check(whole, "cupti"), "WARN", {"libcupti.so.13", "LD_LIBRARY_PATH"});
  expect(check(whole, "nvrtc"), "WARN", {"libnvrtc"});
}

TEST_F(Doctor, ShowsTheClocksOfTheCard) {
  expect(with_stub("nvml", "nvml"), "PASS",
         {"driver 999.11.22", "GPU-0a1b2c3d-0000-1111-2222-333344445555"});
  expect(with_stub("gpu clocks", "nvml"), "PASS",
         {"SM 1980 of 1980 MHz", "memory 3201 of 3201 MHz", "123 W", "held back by: none"});
}

TEST_F(Doctor, WarnsOfACardThatSlowsDown) {
  expect(with_stub("gpu clocks", "nvml", {"MUSE_STUB_NVML_REASONS=0x48"}), "WARN",
         {"SM 990 of 1980 MHz", "HW slowdown, HW thermal slowdown", "cooling"});
  expect(with_stub("gpu clocks", "nvml", {"MUSE_STUB_NVML_REASONS=4"}), "WARN",
         {"SW power cap", "power limit"});
}

TEST_F(Doctor, LivesWithAnNvmlThatDoesNotStartOrIsTooOld) {
  expect(with_stub("nvml", "nvml", {"MUSE_STUB_NVML_INIT=9"}), "WARN",
         {"error 9 Driver Not Loaded", "is the driver loaded"});
  expect(with_stub("nvml", "nvml_old"), "WARN", {"has no nvmlDeviceGetCurrentClocksEventReasons"});
}

TEST_F(Doctor, SaysWhyTracingCannotStart) {
  if (!tuner::has_cuda_target()) GTEST_SKIP() << "a build without CUDA traces nothing";
  expect(with_stub("cupti", "cupti"), "PASS", {"starts"});
  expect(with_stub("cupti", "cupti", {"MUSE_STUB_CUPTI_ENABLE=999"}), "WARN",
         {"cuptiActivityEnable: error 999 CUPTI_ERROR_UNKNOWN", "nvidia-smi"});
  expect(with_stub("cupti", "cupti", {"MUSE_STUB_CUPTI_SUBSCRIBE=39"}), "WARN",
         {"error 39 CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "Nosy Profiler already traces",
          "Nsight"});
  expect(with_stub("cupti", "cupti", {"MUSE_STUB_CUPTI_ENABLE=35"}), "WARN",
         {"error 35 CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", "NVreg_RestrictProfilingToAdminUsers=0"});
}

TEST_F(Doctor, RefusesATracingLibraryOfAnotherAge) {
  if (!tuner::has_cuda_target()) GTEST_SKIP() << "a build without CUDA traces nothing";
  expect(with_stub("cupti", "cupti_old"), "WARN",
         {"has no cuptiActivityGetNumDroppedRecords", "LD_LIBRARY_PATH"});
  expect(with_stub("cupti", "cupti", {"MUSE_STUB_CUPTI_VERSION=140000"}), "WARN",
         {"is CUPTI 14.0.0", "needs 13.x"});
}

}  // namespace
}  // namespace muse
