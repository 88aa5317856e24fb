// SPDX-License-Identifier: Apache-2.0
// muse_attention.py on the library that an emitted folder builds: plain arrays everywhere, torch
// tensors where torch is importable.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/fakes/command.h"
#include "tests/fakes/sanitized.h"

namespace muse {
namespace {

namespace fs = std::filesystem;
using fakes::CommandResult;

constexpr const char* kConfig = R"(schema: 1
defaults: {pool_bytes: 1MiB}
shapes:
  - {batch: 2, q_len: [1, 2], window: 0, rope_theta: 0, context: 64}
variants: {include: ["*/scalar", "*/simd"], tunables: {"*": {threads: [1], splits: [1, 4]}}}
measure: {max_rounds: 8, half_width_pct: 20}
)";

bool is_there(const std::string& program) {
  return fakes::run_command({program, "--version"}).exit_code == 0;
}

class Python : public ::testing::Test {
 protected:
  void SetUp() override {
    if (fakes::kSanitized) GTEST_SKIP() << "the library needs its sanitizer's runtime";
    for (const char* program : {"cmake", "python3"}) {
      if (!is_there(program)) GTEST_SKIP() << program << " is not on the path";
    }
  }
  void run(const std::vector<std::string>& words) {
    const CommandResult result = fakes::run_command(words, {.folder = folder_.path()});
    ASSERT_EQ(result.exit_code, 0) << words[0] << " " << words[1] << "\n"
                                   << result.out << result.err;
  }
  /// libmuse_attention.so with a table of this CPU.
  void build_library() {
    fakes::write_file(folder_ / "tiny.yaml", kConfig);
    run({"cmake", "--install", MUSE_BINARY_DIR, "--component", "runtime", "--prefix",
         (folder_ / "prefix").string()});
    run({MUSE_TUNE, "sweep", "tiny.yaml", "--target", "host", "--any-build"});
    run({MUSE_TUNE, "emit", "--out", "table"});
    run({"cmake", "-S", "table", "-B", "b", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
         "-DCMAKE_PREFIX_PATH=" + (folder_ / "prefix").string()});
    run({"cmake", "--build", "b"});
  }
  CommandResult python(const std::string& test) const {
    const fs::path file = fs::path(MUSE_SOURCE_DIR) / "tests/python" / test;
    return fakes::run_command({"python3", "-B", file.string()},
                              {.folder = folder_.path(),
                               .environment = {"MUSE_ATTENTION_LIBRARY=" +
                                               (folder_ / "b" / "libmuse_attention.so").string()}});
  }
  fakes::TemporaryFolder folder_;
};

TEST_F(Python, PlainArraysAreServedWithoutTorch) {
  ASSERT_NO_FATAL_FAILURE(build_library());
  const CommandResult result = python("plain_test.py");
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(result.err.find("skipped"), std::string::npos) << result.err;
}

TEST_F(Python, TensorsOfTheCpuAreServed) {
  if (fakes::run_command({"python3", "-c", "import torch"}).exit_code != 0) {
    GTEST_SKIP() << "torch cannot be imported by python3 here";
  }
  ASSERT_NO_FATAL_FAILURE(build_library());
  const CommandResult result = python("torch_test.py");
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.err.find("skipped=1"), std::string::npos) << "graphs alone: " << result.err;
}

}  // namespace
}  // namespace muse
