// SPDX-License-Identifier: Apache-2.0
// muse-tune check as a user meets it: a table of this machine, and tables that it refuses.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/fakes/command.h"

namespace muse {
namespace {

using fakes::CommandResult;
using nlohmann::json;

constexpr const char* kConfig =
    "schema: 1\ndefaults: {pool_bytes: 1MiB}\n"
    "shapes:\n"
    "  - {batch: 2, q_len: 1, window: 16, rope_theta: 10000, context: 48}\n"
    "  - {batch: 1, q_len: 2, window: 0, rope_theta: 0, context: 64}\n"
    "variants: {include: ['*/scalar', 'gate/simd'], tunables: {'*': {threads: [1], splits: [1]}}}\n"
    "measure: {max_rounds: 8, half_width_pct: 20}\n";

constexpr const char* kUnseen =
    "schema: 1\ndefaults: {pool_bytes: 1MiB}\n"
    "shapes:\n"
    "  - {batch: 3, q_len: 1, window: 16, rope_theta: 10000, context: 40}\n"
    "  - {batch: 1, q_len: 8, window: 0, rope_theta: 0, context: 64}\n";

class Check : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new fakes::TemporaryFolder();
    fakes::write_file(*folder_ / "a.yaml", kConfig);
    fakes::write_file(*folder_ / "unseen.yaml", kUnseen);
    const CommandResult swept = run({"sweep", "a.yaml", "--target", "host", "--any-build"});
    ASSERT_EQ(swept.exit_code, 0) << swept.err;
    const CommandResult emitted = run({"emit", "--out", "table"});
    ASSERT_EQ(emitted.exit_code, 0) << emitted.err;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static CommandResult run(std::vector<std::string> words) {
    words.insert(words.begin(), MUSE_TUNE);
    return fakes::run_command(words, {.folder = folder_->path(), .limit_s = 200});
  }
  static CommandResult check(const std::string& folder, std::vector<std::string> more = {}) {
    std::vector<std::string> words{"check", folder, "--any-build", "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  /// A copy of the table with another JSON.
  static std::string edited(const std::string& name, const std::function<void(json&)>& edit) {
    const auto from = *folder_ / "table", to = *folder_ / name;
    std::filesystem::remove_all(to);
    std::filesystem::copy(from, to);
    json document = json::parse(fakes::read_file(to / "muse_dispatch.json"));
    edit(document);
    fakes::write_file(to / "muse_dispatch.json", document.dump());
    return name;
  }
  static void expect_refused(const CommandResult& result, int code, const std::string& text) {
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_NE(result.err.find(text), std::string::npos) << text << " not in: " << result.err;
    EXPECT_EQ(result.out, "");
  }
  static fakes::TemporaryFolder* folder_;
};

fakes::TemporaryFolder* Check::folder_ = nullptr;

// What a shared machine makes of the times is not asserted: only that it is one of the verdicts,
// and that the exit code is that verdict's.
TEST_F(Check, JudgesEveryRowOfATableOfThisMachine) {
  const CommandResult result = check("table", {"--json", "--budget", "10m"});
  const json document = json::parse(result.out);
  EXPECT_EQ(document["schema"], "muse.check");
  EXPECT_EQ(document["shapes"], 2);
  EXPECT_EQ(document["shapes_asked"], 2);
  EXPECT_FALSE(document["out_of_budget"]);
  ASSERT_EQ(document["entries"].size(), 4u) << "two rows, two choices for every context";
  for (const json& entry : document["entries"]) {
    EXPECT_NE(entry["verdict"], "wrong") << entry.dump();
    EXPECT_GT(entry["median_ns"], 0);
    EXPECT_GE(entry["regret_pct"], 0);
    EXPECT_NE(entry["best"], "");
  }
  for (const json& pipeline : document["pipelines"]) {
    EXPECT_TRUE(pipeline["outcome"] == "ok" || pipeline["outcome"] == "degraded") << pipeline;
  }
  const std::map<std::string, int> codes{{"tuned", 0}, {"drifted", 4}, {"noisy", 6}};
  ASSERT_TRUE(codes.contains(document["verdict"])) << document["verdict"];
  EXPECT_EQ(result.exit_code, codes.at(document["verdict"]));
}

TEST_F(Check, LooksUnseenShapesUpAndMeasuresThem) {
  const CommandResult result =
      check("table", {"--json", "--shapes", "unseen.yaml", "--budget", "10m"});
  const json document = json::parse(result.out);
  ASSERT_EQ(document["unseen"].size(), 4u) << "two shapes, two tables";
  EXPECT_EQ(document["unseen"][0]["match"], "near");
  EXPECT_NEAR(document["unseen"][0]["distance"], 1.0, 0.5);
  EXPECT_EQ(document["unseen"][2]["match"], "base") << "no row has that q_len";
  for (const json& answer : document["unseen"]) {
    EXPECT_GT(answer["median_ns"], 0) << answer.dump();
    EXPECT_GE(answer["regret_pct"], 0);
  }
}

TEST_F(Check, TellsPeopleWhatItFound) {
  const CommandResult result = check("table", {"--budget", "10m"});
  EXPECT_NE(result.out.find("verdict"), std::string::npos);
  EXPECT_NE(result.out.find("(any context)"), std::string::npos);
  EXPECT_NE(result.err.find("2 of 2 shapes looked at: "), std::string::npos) << result.err;
}

TEST_F(Check, WithTooLittleTimeSaysSo) {
  const CommandResult result = check("table", {"--budget", "1ms"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_NE(result.err.find("the budget of 1ms ended before one shape was done"), std::string::npos)
      << result.err;
}

TEST_F(Check, LeavesTheFolderAsItIs) {
  const auto names = [] {
    std::set<std::string> all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_->path())) {
      all.insert(entry.path().string());
    }
    return all;
  };
  const std::set<std::string> before = names();
  check("table", {"--budget", "10m"});
  EXPECT_EQ(names(), before);
}

TEST_F(Check, RefusesWhatIsNoTable) {
  expect_refused(check("nowhere"), 3, "nowhere/muse_dispatch.json: No such file");
  expect_refused(check("nowhere"), 3, "muse-tune emit --out nowhere");
  const std::string damaged = edited("damaged", [](json&) {});
  fakes::write_file(*folder_ / "damaged" / "muse_dispatch.json", "{");
  expect_refused(check(damaged), 3, "damaged/muse_dispatch.json: no JSON at byte");
  expect_refused(check(edited("newer", [](json& d) { d["version"] = 9; })), 3, "version: ");
  expect_refused(check(edited("row", [](json& d) { d["entries"][0]["median_ns"] = -1; })), 3,
                 "entries[0].median_ns");
  const std::string other = edited("other", [](json&) {});
  fakes::write_file(*folder_ / "other" / "muse_dispatch.h", "// another one\n");
  expect_refused(check(other), 3, "it is not the header that muse_dispatch.json describes");
}

TEST_F(Check, RefusesTablesOfOtherDevicesAndOfOtherVariants) {
  expect_refused(check(edited("class", [](json& d) { d["device"]["isa"] = "z80"; })), 7,
                 "another device class");
  const std::string gpu = edited("gpu", [](json& d) {
    d["device"]["host"] = false;
    d["device"]["toolkit"] = "nvrtc 13.0";
    d["device"]["compiler_version"] = 13000;
  });
  expect_refused(check(gpu, {"--target", "host"}), 7, "the table is for a GPU");
  const std::string variant = edited("variant", [](json& d) {
    const std::string base = d["base"];
    d["base"] = d["pipelines"][0] = "attention/splitkv";
    for (const char* rows : {"entries", "captured"}) {
      for (json& row : d[rows]) {
        if (row["pipeline"] == base) row["pipeline"] = "attention/splitkv";
      }
    }
  });
  expect_refused(check(variant), 7, "this binary does not have");
}

TEST_F(Check, SaysWhereItsSourcesAreOthersThanThoseMeasured) {
  const std::string other =
      edited("sources", [](json& d) { d["variants"][0]["source_hash"] = "00"; });
  const CommandResult result = check(other, {"--budget", "1ms"});
  EXPECT_NE(result.err.find("warning: other sources"), std::string::npos) << result.err;
  EXPECT_EQ(check("table", {"--budget", "1ms"}).err.find("other sources"), std::string::npos);
}

TEST_F(Check, RefusesBadOptionsBeforeAnyWork) {
  expect_refused(check("table", {"--budget", ""}), 2, "--budget");
  expect_refused(check("table", {"--timer", "sundial"}), 2, "sundial");
  expect_refused(check("table", {"--target", "tpu"}), 2, "tpu");
  expect_refused(check("table", {"--shapes", "none.yaml"}), 2, "none.yaml");
  EXPECT_EQ(run({"check"}).exit_code, 2);
}

}  // namespace
}  // namespace muse
