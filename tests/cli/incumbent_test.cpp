// SPDX-License-Identifier: Apache-2.0
// sweep --incumbent as a user meets it: what does not race is said, and what is unknown is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/fakes/command.h"

namespace muse {
namespace {

using fakes::CommandResult;
using nlohmann::json;

std::string config(const std::string& variants) {
  return "schema: 1\ndefaults: {pool_bytes: 1MiB}\n"
         "shapes:\n"
         "  - {batch: 2, q_len: 1, window: 16, rope_theta: 10000, context: 48}\n"
         "  - {batch: 1, q_len: 2, window: 0, rope_theta: 0, context: 64}\n"
         "variants: " +
         variants + "\nmeasure: {max_rounds: 8, half_width_pct: 20}\n";
}

/// A table whose every row names gate/simd:threads=1, and else what the base has.
class IncumbentFolder : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new fakes::TemporaryFolder();
    fakes::write_file(*folder_ / "scalar.yaml",
                      config("{include: ['*/scalar'], tunables: {'*': {splits: [1]}}}"));
    fakes::write_file(
        *folder_ / "all.yaml",
        config("{include: ['*/scalar', gate/simd], tunables: {'*': {threads: [1], splits: [1]}}}"));
    const CommandResult swept = sweep("all.yaml");
    ASSERT_EQ(swept.exit_code, 0) << swept.err;
    const CommandResult emitted = run({"emit", "--db", "all.yaml.db", "--out", "emitted"});
    ASSERT_EQ(emitted.exit_code, 0) << emitted.err;
    table("table", "gate/simd:threads=1");
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static CommandResult run(std::vector<std::string> words) {
    words.insert(words.begin(), MUSE_TUNE);
    return fakes::run_command(words, {.folder = folder_->path(), .limit_s = 200});
  }
  static CommandResult sweep(const std::string& file, std::vector<std::string> more = {}) {
    std::vector<std::string> words{"sweep", file,         "--target",    "host",
                                   "--db",  file + ".db", "--any-build", "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  /// A copy of the emitted folder whose rows end with this gate.
  static void table(const std::string& name, const std::string& gate) {
    std::filesystem::copy(*folder_ / "emitted", *folder_ / name);
    json document = json::parse(fakes::read_file(*folder_ / name / "muse_dispatch.json"));
    std::string pipeline = document.at("base");
    pipeline.replace(pipeline.find("gate/scalar"), std::string::npos, gate);
    for (const char* rows : {"entries", "captured"}) {
      for (json& row : document.at(rows)) {
        row["pipeline"] = pipeline;
        row["losses_pct"] = json::object();
      }
    }
    document["pipelines"] = {document.at("base"), pipeline};
    document["generalists"] = json::array();
    fakes::write_file(*folder_ / name / "muse_dispatch.json", document.dump());
  }
  static size_t count(const std::string& text, const std::string& part) {
    size_t found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
      ++found;
    }
    return found;
  }
  static fakes::TemporaryFolder* folder_;
};

fakes::TemporaryFolder* IncumbentFolder::folder_ = nullptr;

TEST_F(IncumbentFolder, WhatTheConfigLeavesOutIsSaidOnceBeforeWorkBegins) {
  const CommandResult result = sweep("scalar.yaml", {"--incumbent", "table", "--repeat", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count(result.err, "does not race"), 1u) << result.err;
  const size_t said = result.err.find("warning: --incumbent table: '");
  ASSERT_NE(said, std::string::npos) << result.err;
  EXPECT_LT(said, result.err.find("run 1 of ")) << result.err;
  EXPECT_NE(result.err.find("scalar.yaml leaves out gate/simd:threads=1\n"), std::string::npos)
      << result.err;
}

TEST_F(IncumbentFolder, WhatAFilterLeavesOutIsSaidToo) {
  const CommandResult result = sweep("all.yaml", {"--incumbent", "table", "--variant", "*/scalar"});
  EXPECT_NE(result.err.find("all.yaml with --stage or --variant leaves out gate/simd:threads=1\n"),
            std::string::npos)
      << result.err;
}

TEST_F(IncumbentFolder, WhereAllOfItRacesNothingIsSaid) {
  const CommandResult result = sweep("all.yaml", {"--incumbent", "table"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err.find("does not race"), std::string::npos) << result.err;
}

TEST_F(IncumbentFolder, ATableOfAVariantOrConfigurationThatThisBinaryDoesNotHaveIsRefused) {
  table("variant", "gate/vanished");
  table("configuration", "gate/simd:threads=1,colour=3");
  for (const char* name : {"variant", "configuration"}) {
    const CommandResult result = run({"sweep", "all.yaml", "--target", "host", "--db",
                                      "untouched.db", "--any-build", "--incumbent", name});
    EXPECT_EQ(result.exit_code, 7) << name << ": " << result.err;
    EXPECT_NE(result.err.find(std::string("--incumbent ") + name +
                              ": the table names a pipeline that this binary does not have: "),
              std::string::npos)
        << result.err;
    EXPECT_FALSE(std::filesystem::exists(*folder_ / "untouched.db")) << "before any work";
  }
}

}  // namespace
}  // namespace muse
