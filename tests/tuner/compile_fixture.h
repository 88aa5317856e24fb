// SPDX-License-Identifier: Apache-2.0
// The fixture of what compiles with a stub compiler into a cache of its own.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>

#include "tests/fakes/command.h"
#include "tuner/compile.h"

namespace muse::tuner {

inline constexpr char kStub[] = "nvrtc 99.7";
inline constexpr char kStubFolder[] = MUSE_BINARY_DIR "/stubs/nvrtc";

/// Compiles with the stub; its candidates bear the name of an embedded stem.
class CompileTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("MUSE_LIBRARY_PATH", kStubFolder, 1);
    variant_.name = "gate/separate";
    variant_.target.kind = TargetKind::kCuda;
    variant_.entries = {"first", "second"};
  }
  void TearDown() override {
    for (const char* name :
         {"MUSE_LIBRARY_PATH", "MUSE_STUB_NVRTC", "MUSE_STUB_NVRTC_ONLY", "MUSE_STUB_NVRTC_ONCE"}) {
      unsetenv(name);
    }
  }

  static void misbehave(const char* how, const char* only = nullptr) {
    setenv("MUSE_STUB_NVRTC", how, 1);
    if (only != nullptr) setenv("MUSE_STUB_NVRTC_ONLY", only, 1);
  }

  Candidate candidate(int64_t threads) const { return {&variant_, {{"threads", threads}}}; }
  std::string key_of(int64_t threads) const { return key(candidate(threads)); }
  CompileOptions options() const {
    return {.architecture = "sm_90a",
            .cache = cache_.path(),
            .jobs = 2,
            .deadline = std::chrono::seconds(20),
            .executable = MUSE_TUNE};
  }
  std::map<std::string, CompileResult> compile(const CompileOptions& options) const {
    return compile_all({candidate(32), candidate(64), candidate(128), candidate(256)}, kStub,
                       options);
  }
  /// All but the one of 64 threads are fine.
  void expect_others_fine(const std::map<std::string, CompileResult>& results) const {
    ASSERT_EQ(results.size(), 4u);
    for (const int64_t threads : {32, 128, 256}) {
      EXPECT_EQ(results.at(key_of(threads)).outcome, Outcome::kOk)
          << results.at(key_of(threads)).reason;
    }
  }

  Variant variant_;
  fakes::TemporaryFolder cache_;
};

}  // namespace muse::tuner
