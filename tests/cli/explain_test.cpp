// SPDX-License-Identifier: Apache-2.0
// explain and replay on the database of a real sweep.
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "db/store.h"
#include "tests/fakes/command.h"

namespace muse {
namespace {

using fakes::CommandResult;
using fakes::read_file;
using fakes::TemporaryFolder;
using fakes::write_file;
using nlohmann::json;

constexpr const char* kConfig = R"(schema: 1
defaults: {pool_bytes: 1MiB}
shapes:
  - {batch: [1, 2], q_len: 1, window: 16, rope_theta: 10000, context: 48}
variants: {include: ['*/scalar', 'gate/simd'], tunables: {'*': {threads: [1], splits: [1, 4]}}}
measure: {max_rounds: 8, half_width_pct: 20}
)";

/// One sweep for all tests; each has a copy of its database.
class SweptOnce : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    swept_ = std::make_unique<TemporaryFolder>();
    write_file(*swept_ / "a.yaml", kConfig);
    const CommandResult result = fakes::run_command(
        {MUSE_TUNE, "sweep", "a.yaml", "--target", "host", "--any-build", "--quiet"},
        {.folder = swept_->path(), .limit_s = 120});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  static void TearDownTestSuite() { swept_.reset(); }
  SweptOnce() { std::filesystem::copy_file(*swept_ / "muse-tune.db", folder_ / "muse-tune.db"); }

  CommandResult tune(std::vector<std::string> words) const {
    words.insert(words.begin(), MUSE_TUNE);
    return fakes::run_command(words, {.folder = folder_.path(), .limit_s = 60});
  }
  db::Store open() const { return db::Store::open(folder_ / "muse-tune.db", db::Open::kWrite); }
  template <class Change>
  void change_first_selection(Change change) const {
    db::Store store = open();
    db::SelectionRow row = store.selections(1).at(0);
    change(row);
    store.upsert(row);
  }

  static std::unique_ptr<TemporaryFolder> swept_;
  TemporaryFolder folder_;
};

std::unique_ptr<TemporaryFolder> SweptOnce::swept_;

using Replay = SweptOnce;
using Explain = SweptOnce;

TEST_F(Replay, DecidesTheSameWithoutADevice) {
  const std::string bytes = read_file(folder_ / "muse-tune.db");
  const CommandResult result = tune({"replay", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const json parsed = json::parse(result.out);
  EXPECT_EQ(parsed["schema"], "muse.replay");
  EXPECT_EQ(parsed["counts"]["ok"], open().selections(1).size());
  for (const json& s : parsed["selections"]) EXPECT_EQ(s["result"], "ok") << s;
  EXPECT_EQ(tune({"replay"}).exit_code, 0);
  EXPECT_EQ(tune({"replay", "muse-tune.db"}).exit_code, 0);
  EXPECT_EQ(tune({"replay", "muse-tune.db#1"}).exit_code, 0);
  std::filesystem::copy_file(folder_ / "muse-tune.db", folder_ / "odd#name");
  EXPECT_EQ(tune({"replay", "odd#name"}).exit_code, 0) << "a file of that whole name";
  EXPECT_EQ(read_file(folder_ / "muse-tune.db"), bytes);
}

TEST_F(Replay, FindsASelectionThatItsSamplesDoNotGive) {
  change_first_selection([](db::SelectionRow& row) { row.median_ns *= 1.01; });
  const CommandResult result = tune({"replay"});
  EXPECT_EQ(result.exit_code, 4) << result.out << result.err;
  EXPECT_NE(result.out.find("differ"), std::string::npos) << result.out;
}

TEST_F(Replay, SaysWhatCannotBeReplayed) {
  change_first_selection([](db::SelectionRow& row) { row.tie_set = "?"; });
  const CommandResult result = tune({"replay"});
  EXPECT_EQ(result.exit_code, 7) << result.out << result.err;
  EXPECT_NE(result.out.find("not replayable: its tie set"), std::string::npos) << result.out;
}

TEST_F(Replay, RefusesWhatIsNoRun) {
  for (const auto& [words, code] :
       std::vector<std::pair<std::vector<std::string>, int>>{{{"muse-tune.db#9"}, 2},
                                                             {{"muse-tune.db#x"}, 2},
                                                             {{"muse-tune.db#0"}, 2},
                                                             {{"muse-tune.db#1", "--run", "2"}, 2},
                                                             {{"a.db", "--db", "b.db"}, 2},
                                                             {{"--run", "9"}, 2},
                                                             {{"none.db"}, 3}}) {
    std::vector<std::string> all{"replay"};
    all.insert(all.end(), words.begin(), words.end());
    const CommandResult result = tune(all);
    EXPECT_EQ(result.exit_code, code) << words[0] << ": " << result.err;
    EXPECT_NE(result.err, "") << words[0];
  }
}

TEST_F(Explain, HasOneBlockForEachDecisionAndALineForEachTrial) {
  const CommandResult result = tune({"explain", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json parsed = json::parse(result.out);
  EXPECT_EQ(parsed["schema"], "muse.explain");
  const db::Store store = open();
  size_t trials = 0, decided = 0;
  for (const json& group : parsed["groups"]) {
    for (const json& t : group["trials"]) trials += !t["state"].is_null();
    const json& selection = group["selection"];
    if (selection.is_null()) continue;
    ++decided;
    EXPECT_EQ(selection["not_replayable"], "") << selection;
    EXPECT_EQ(selection["differences"], json::array()) << selection;
    EXPECT_EQ(group["trials"][0]["fate"], "chosen") << group["trials"][0];
    EXPECT_EQ(group["trials"][0]["candidate"], selection["winner"]);
    for (const json& t : group["trials"]) {
      EXPECT_NE(t["why"], "") << t;
      EXPECT_EQ(t["median_ns"].is_null(), t["state"] != "ok" && t["state"] != "degraded") << t;
      EXPECT_TRUE(!t["state"].is_null() || t["stage_sum_rank"] > 0) << t;
    }
  }
  EXPECT_EQ(trials, store.run_trials(1).size());
  EXPECT_EQ(decided, store.selections(1).size());

  const CommandResult text = tune({"explain"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  for (const auto& t : store.run_trials(1)) {
    EXPECT_NE(text.out.find(t.candidate.key), std::string::npos) << t.candidate.key;
  }
  EXPECT_NE(text.out.find("  winner gate/simd:threads=1: "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("chosen: "), std::string::npos) << text.out;
}

TEST_F(Explain, LooksAtWhatItIsAskedFor) {
  const auto candidates = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all{"explain", "--json"};
    all.insert(all.end(), words.begin(), words.end());
    const CommandResult result = tune(all);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const json parsed = json::parse(result.out);
    std::multiset<std::string> found;
    for (const json& group : parsed["groups"]) {
      for (const json& t : group["trials"]) found.insert(t["candidate"]);
    }
    return found;
  };
  EXPECT_EQ(candidates({"gate/*", "--shape", "b2_*"}),
            (std::multiset<std::string>{"gate/scalar", "gate/simd:threads=1"}));
  EXPECT_EQ(candidates({"--span", "gate"}), candidates({"gate/*"}));
  EXPECT_EQ(candidates({"gate/simd*", "--span", "gate", "--shape", "b2_*"}).size(), 1u);
  EXPECT_TRUE(candidates({"gate/*", "--span", "prepare"}).empty());
}

TEST_F(Explain, NamesWhatIsNotThere) {
  for (const auto& [words, near] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"gate/scalr"}, "did you mean 'gate/scalar'?"},
           {{"--span", "gat"}, "did you mean 'gate'?"},
           {{"nope/*"}, "run 1 has none; `muse-tune status` lists the runs, `muse-tune list "},
           {{"--shape", "b7*"}, "has none"},
           {{"--run", "5"}, "no run 5"}}) {
    std::vector<std::string> all{"explain"};
    all.insert(all.end(), words.begin(), words.end());
    const CommandResult result = tune(all);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_NE(result.err.find(near), std::string::npos) << result.err;
  }
}

TEST_F(Explain, CutsALongListUnlessAllIsAskedFor) {
  {
    db::Store store = open();
    const auto like = store.run_trials(1).front();
    store.transaction([&] {
      for (int i = 0; i < 25; ++i) {
        db::CandidateRow candidate = like.candidate;
        candidate.key += "_" + std::to_string(100 + i);
        db::TrialKey key = like.trial.key;
        key.candidate_id = store.upsert(candidate);
        const db::TrialRow row = store.trial(key, 1, false);
        store.set_trial(row.id, "pending", "not seen by the search", 0, "");
      }
    });
  }
  const CommandResult cut = tune({"explain"});
  EXPECT_NE(cut.out.find(" more; --all lists them"), std::string::npos) << cut.out;
  EXPECT_EQ(cut.out.find("_124"), std::string::npos);
  const CommandResult all = tune({"explain", "--all"});
  EXPECT_NE(all.out.find("_124"), std::string::npos);
  EXPECT_NE(all.out.find("not tried: not seen by the search"), std::string::npos) << all.out;
}

}  // namespace
}  // namespace muse
