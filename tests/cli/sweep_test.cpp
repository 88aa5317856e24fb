// SPDX-License-Identifier: Apache-2.0
// Whole sweeps: resume, reuse, kills, candidates that misbehave.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <thread>

#include "db/store.h"
#include "tests/fakes/command.h"
#include "tests/fakes/sanitized.h"

namespace muse {
namespace {

using fakes::CommandResult;
using fakes::read_file;
using fakes::TemporaryFolder;
using fakes::write_file;
using nlohmann::json;

std::string config(const std::string& variants, const std::string& more = "") {
  return "schema: 1\ndefaults: {pool_bytes: 1MiB}\n"
         "shapes:\n"
         "  - {batch: 2, q_len: 1, window: 16, rope_theta: 10000, context: 48}\n"
         "  - {batch: 1, q_len: 2, window: 0, rope_theta: 0, context: 64}\n"
         "variants: " +
         variants +
         "\n"
         "pipelines: {top_k: 64}\n"
         "measure: {max_rounds: 8, half_width_pct: 20}\n" +
         more;
}

// Few candidates, and top_k keeps all: the set of trials depends on no timing.
const std::string kSmall =
    config("{include: ['*/scalar', 'gate/simd'], tunables: {'*': {threads: [1], splits: [1, 4]}}}");

// Rounds enough to be stopped in the middle of them, and none ends early.
std::string long_config() {
  std::string text = std::regex_replace(kSmall, std::regex("max_rounds: 8"), "max_rounds: 96");
  return std::regex_replace(text, std::regex("half_width_pct: 20"), "half_width_pct: 0.1");
}

class Sweep : public ::testing::Test {
 protected:
  Sweep() { write_file(folder_ / "small.yaml", kSmall); }
  fakes::CommandOptions options() const { return {.folder = folder_.path(), .limit_s = 120}; }
  CommandResult sweep(const std::string& file, const std::string& database,
                      std::vector<std::string> more = {}, const char* tool = MUSE_TUNE) {
    std::vector<std::string> words{tool,   "sweep",  file,     "--target",   "host",
                                   "--db", database, "--json", "--any-build"};
    words.insert(words.end(), more.begin(), more.end());
    return fakes::run_command(words, options());
  }
  db::Store open(const std::string& database) const {
    return db::Store::open(folder_ / database, db::Open::kRead);
  }
  // What a run found, without times: candidate, problem, hand-off and state of each trial. Whether
  // it is degraded depends on what else the machine does.
  std::set<std::string> trials(const std::string& database) const {
    const db::Store store = open(database);
    std::set<std::string> found;
    for (const auto& t : store.run_trials(store.last_run()->id)) {
      const std::string state = t.trial.state == "degraded" ? "ok" : t.trial.state;
      EXPECT_TRUE(found
                      .insert(t.candidate.key + " | " + t.problem.key + " | " +
                              t.trial.key.handoff_in + " | " + state)
                      .second)
          << "doubled: " << t.candidate.key;
    }
    return found;
  }
  TemporaryFolder folder_;
};

TEST_F(Sweep, RepeatedMeasuresNothingAndDecidesTheSame) {
  const CommandResult first = sweep("small.yaml", "a.db");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const CommandResult second = sweep("small.yaml", "a.db");
  ASSERT_EQ(second.exit_code, 0) << second.err;
  const json one = json::parse(first.out), two = json::parse(second.out);
  EXPECT_GT(one["measured"], 0);
  EXPECT_EQ(two["measured"], 0);
  EXPECT_EQ(two["rounds"], 0);
  EXPECT_EQ(two["winners"], one["winners"]);
  EXPECT_EQ(two["outcomes"], one["outcomes"]);
}

TEST_F(Sweep, StoresEveryRoundWithEverySample) {
  ASSERT_EQ(sweep("small.yaml", "a.db").exit_code, 0);
  const db::Store store = open("a.db");
  EXPECT_EQ(store.integrity(), "");
  const db::RunRow run = *store.last_run();
  EXPECT_EQ(run.status, "complete");
  int rounds = 0;
  for (const db::RaceRow& race : store.races(run.id)) {
    EXPECT_EQ(race.status, "complete");
    for (const db::RoundRow& round : store.rounds(race.id)) {
      ++rounds;
      size_t samples = 0;
      for (const db::SampleRow& sample : round.samples) samples += sample.ns.size();
      EXPECT_EQ(samples, round.order.size());
      EXPECT_GT(round.sentinel_first_ns, 0);
      EXPECT_GT(round.sentinel_last_ns, 0);
      EXPECT_EQ(round.order.front(), round.order.back());
    }
  }
  EXPECT_GT(rounds, 8);
  for (const auto& t : store.run_trials(run.id)) {
    if (t.trial.state != "ok") continue;
    EXPECT_TRUE(t.median_ns) << t.candidate.key;
    EXPECT_FALSE(store.validations(t.trial.id).empty()) << t.candidate.key;
  }
}

TEST_F(Sweep, ACandidateMoreRacesAgainstTheTieSetAndOneLessCostsNothing) {
  const std::string less = config("{include: ['*/scalar'], tunables: {'*': {splits: [4]}}}");
  const std::string more =
      config("{include: ['*/scalar', 'gate/simd'], tunables: {'*': {threads: [1], splits: [4]}}}");
  write_file(folder_ / "less.yaml", less);
  write_file(folder_ / "more.yaml", more);
  ASSERT_EQ(sweep("less.yaml", "a.db").exit_code, 0);
  const json added = json::parse(sweep("more.yaml", "a.db").out);
  EXPECT_GT(added["measured"], 0);
  const db::Store store = open("a.db");
  for (const db::RaceRow& race : store.races(store.last_run()->id)) {
    EXPECT_TRUE(race.span == "gate" || race.span == "prepare..gate") << race.span;
  }
  const json removed = json::parse(sweep("less.yaml", "a.db").out);
  EXPECT_EQ(removed["measured"], 0);
  EXPECT_EQ(removed["rounds"], 0);
}

TEST_F(Sweep, WhereSiblingsAloneRaceItTakesOneRaceAndEveryCommandTakesIt) {
  std::string text = kSmall;
  text.insert(text.find("variants: "),
              "  - {batch: 3, q_len: 2, window: 0, rope_theta: 0, context: 64, race: siblings}\n");
  write_file(folder_ / "serving.yaml", text);
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin(), MUSE_TUNE);
    const CommandResult result = fakes::run_command(words, options());
    EXPECT_EQ(result.exit_code, 0) << words[1] << ": " << result.err;
    return result.out;
  };
  ASSERT_EQ(sweep("serving.yaml", "a.db").exit_code, 0);
  std::map<std::string, int> races;
  for (const db::RaceRow& race : open("a.db").races(1)) {
    if (open("a.db").problem(race.problem_id).key.starts_with("b3_")) ++races[race.span];
  }
  EXPECT_EQ(races, (std::map<std::string, int>{{"prepare..gate", 1}}));
  EXPECT_EQ(json::parse(sweep("serving.yaml", "a.db").out)["measured"], 0);
  const std::string plan = run({"plan", "serving.yaml", "--target", "host", "--db", "a.db"});
  EXPECT_NE(plan.find(" only the base and what was good on its siblings race here\n"),
            std::string::npos);
  EXPECT_NE(plan.find("\nrace: siblings on 1 of them: pipelines that were good on the others\n"),
            std::string::npos);
  run({"emit", "--db", "a.db", "--out", "table"});
  const json table = json::parse(read_file(folder_ / "table" / "muse_dispatch.json"));
  for (const json& row : table["entries"]) {
    EXPECT_EQ(row.contains("raced"), row["key"]["batch"] == 3) << row;
  }
  EXPECT_EQ(table["entries"].size(), 3U);
  run({"replay", "a.db"});
  EXPECT_NE(run({"explain", "--db", "a.db", "--shape", "b3_*"}).find("chosen"), std::string::npos);
  EXPECT_NE(run({"report", "--db", "a.db", "--format", "md"}).find("b3_l2_"), std::string::npos);
  const json judged = json::parse(run({"validate", "serving.yaml", "--target", "host", "--json",
                                       "--quiet", "--shape", "b3_*", "--variant", "gate/simd"}));
  int ok = 0;
  for (const json& one : judged["trials"]) ok += one["outcome"] == "ok" ? 1 : 0;
  EXPECT_GT(ok, 0) << "every candidate may be judged there";
}

TEST_F(Sweep, ARaceAmongFewDecidesNothingForAll) {
  // gate/simd is several times faster than gate/scalar, so that the winner is no matter of noise.
  const CommandResult first = sweep("small.yaml", "a.db");
  const auto gate_winners = [](const CommandResult& result) {
    std::vector<std::string> winners;
    const json parsed = json::parse(result.out);
    for (const json& w : parsed["winners"]) {
      if (w["span"] == "gate") winners.push_back(w["winner"]);
    }
    return winners;
  };
  EXPECT_EQ(gate_winners(first), std::vector<std::string>(2, "gate/simd:threads=1"));
  const CommandResult few = sweep("small.yaml", "a.db", {"--variant", "*/scalar"});
  EXPECT_EQ(gate_winners(few), std::vector<std::string>(2, "gate/scalar"));
  const CommandResult again = sweep("small.yaml", "a.db");
  EXPECT_EQ(json::parse(again.out)["rounds"], 0);
  EXPECT_EQ(json::parse(again.out)["winners"], json::parse(first.out)["winners"]);
}

TEST_F(Sweep, AStageAloneIsFedByTheBaseAndWhatIsWrittenOfItWarns) {
  const CommandResult result = sweep("small.yaml", "a.db", {"--stage", "combine"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json parsed = json::parse(result.out);
  int combines = 0;
  for (const json& winner : parsed["winners"]) combines += winner["span"] == "combine" ? 1 : 0;
  EXPECT_EQ(combines, 2) << "one a shape";
  for (const std::string command : {"emit", "report"}) {
    const CommandResult written =
        fakes::run_command({MUSE_TUNE, command, "--db", "a.db"}, options());
    EXPECT_EQ(written.exit_code, 0) << written.err;
    EXPECT_NE(written.err.find("run 1 looked at a part only"), std::string::npos) << written.err;
  }
  EXPECT_TRUE(std::filesystem::exists(folder_ / "report.html"));
  const std::string header = read_file(folder_ / "muse_dispatch" / "muse_dispatch.h");
  const CommandResult again = fakes::run_command({MUSE_TUNE, "emit", "--db", "a.db"}, options());
  EXPECT_EQ(again.exit_code, 2) << "a table is there, and this run is merely the last one";
  EXPECT_NE(again.err.find("--run 1 replaces it all the same"), std::string::npos) << again.err;
  EXPECT_EQ(read_file(folder_ / "muse_dispatch" / "muse_dispatch.h"), header);
  const CommandResult named =
      fakes::run_command({MUSE_TUNE, "emit", "--db", "a.db", "--run", "1"}, options());
  EXPECT_EQ(named.exit_code, 0) << named.err;
  ASSERT_EQ(sweep("small.yaml", "a.db").exit_code, 0);
  const CommandResult whole = fakes::run_command({MUSE_TUNE, "report", "--db", "a.db"}, options());
  EXPECT_EQ(whole.err.find("looked at a part only"), std::string::npos) << whole.err;
}

TEST_F(Sweep, AnotherBaseIsRacedBeforeItIsComparedWith) {
  ASSERT_EQ(sweep("small.yaml", "a.db").exit_code, 0);
  write_file(folder_ / "base.yaml",
             kSmall +
                 "base: [prepare/scalar, 'attention/scalar:splits=4', combine/scalar, "
                 "'gate/simd:threads=1']\n");
  const CommandResult other = sweep("base.yaml", "a.db");
  ASSERT_EQ(other.exit_code, 0) << other.err;
  const json parsed = json::parse(other.out);
  for (const json& winner : parsed["winners"]) EXPECT_GT(winner["base_median_ns"], 0) << winner;
}

TEST_F(Sweep, IsCutOffByABudgetAndGoesOn) {
  const CommandResult cut = sweep("small.yaml", "a.db", {"--budget", "1ms"});
  EXPECT_EQ(cut.exit_code, 5) << cut.err;
  const CommandResult emit = fakes::run_command({MUSE_TUNE, "emit", "--db", "a.db"}, options());
  EXPECT_EQ(emit.exit_code, 5) << emit.err;
  EXPECT_NE(emit.err.find("run 1 is incomplete: its budget ended"), std::string::npos) << emit.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "muse_dispatch"));
  const CommandResult rest = sweep("small.yaml", "a.db");
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(open("a.db").last_run()->status, "complete");
}

TEST_F(Sweep, BudgetsThatEndWithinRacesLoseNoRoundAndStartNoRaceTwice) {
  write_file(folder_ / "long.yaml", long_config());
  size_t rounds = 0;
  int cuts = 0;
  CommandResult result;
  for (; cuts < 100; ++cuts) {
    result = sweep("long.yaml", "a.db", {"--budget", std::to_string(20 + 20 * cuts) + "ms"});
    if (result.exit_code == 0) break;
    ASSERT_EQ(result.exit_code, 5) << result.err;
    const db::Store store = open("a.db");
    EXPECT_EQ(store.last_run()->status, "incomplete");
    size_t stored = 0, running = 0;
    for (const db::RaceRow& race : store.races(1)) {
      stored += store.rounds(race.id).size();
      running += race.status == "running";
    }
    EXPECT_LE(running, 1u) << "it goes on with the one that was cut off";
    EXPECT_GE(stored, rounds);
    rounds = stored;
  }
  EXPECT_GT(cuts, 0);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const db::Store store = open("a.db");
  EXPECT_EQ(store.runs().size(), 1u);
  EXPECT_EQ(store.last_run()->status, "complete");
  std::set<std::string> decided;
  for (const db::RaceRow& race : store.races(1)) {
    EXPECT_EQ(race.status, "complete");
    EXPECT_TRUE(
        decided.insert(std::to_string(race.problem_id) + race.span + race.handoff_in).second)
        << race.span << " was raced twice";
  }
}

TEST_F(Sweep, AGuidedSearchIsRepeatedWithoutMeasuring) {
  write_file(
      folder_ / "guided.yaml",
      config("{include: ['*/scalar', attention/simd], tunables: {'attention/simd': {threads: "
             "[1]}}}",
             "search: {kind: guided, share_pct: 20}\n"));
  const CommandResult first = sweep("guided.yaml", "a.db");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_NE(first.err.find("attention: guided search measured "), std::string::npos) << first.err;
  const CommandResult second = sweep("guided.yaml", "a.db");
  ASSERT_EQ(second.exit_code, 0) << second.err;
  const json one = json::parse(first.out), two = json::parse(second.out);
  EXPECT_EQ(two["measured"], 0);
  EXPECT_EQ(two["rounds"], 0);
  EXPECT_EQ(two["winners"], one["winners"]);
  EXPECT_EQ(two["searched"], one["searched"]);
  int left_out = 0;
  for (const json& span : one["searched"]) {
    EXPECT_LE(span["seen"], span["of"]);
    left_out += span["of"].get<int>() - span["seen"].get<int>();
  }
  EXPECT_GT(left_out, 0);
  int pending = 0;
  const db::Store store = open("a.db");
  for (const auto& t : store.run_trials(2)) pending += t.trial.state == "pending";
  EXPECT_EQ(pending, left_out);
}

TEST_F(Sweep, EndsInOrderOnASignalAndGoesOn) {
  write_file(folder_ / "long.yaml", long_config());
  ASSERT_EQ(sweep("long.yaml", "whole.db").exit_code, 0);
  for (const auto& [signal, code] : {std::pair(SIGINT, 130), std::pair(SIGTERM, 75)}) {
    const std::string database = "signal" + std::to_string(signal) + ".db";
    fakes::RunningCommand running(
        {MUSE_TUNE, "sweep", "long.yaml", "--target", "host", "--db", database, "--any-build"},
        options());
    // As soon as there is something to lose.
    while (!std::filesystem::exists(folder_ / database)) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(running.pid(), signal);
    const CommandResult stopped = running.wait();
    EXPECT_EQ(stopped.exit_code, code) << stopped.err;
    EXPECT_EQ(open(database).last_run()->status, "interrupted");
    const CommandResult status =
        fakes::run_command({MUSE_TUNE, "status", "--db", database, "--json"}, options());
    EXPECT_FALSE(json::parse(status.out)["states"].contains("running")) << status.out;
    const CommandResult rest = sweep("long.yaml", database);
    EXPECT_EQ(rest.exit_code, 0) << rest.err;
    EXPECT_TRUE(json::parse(rest.out)["resumed"]);
    EXPECT_EQ(trials(database), trials("whole.db"));
    const db::Store store = open(database);
    const db::Store whole = open("whole.db");
    EXPECT_EQ(store.selections(1).size(), whole.selections(1).size()) << "each decided once";
    for (const auto& t : store.run_trials(1)) EXPECT_FALSE(t.reused) << t.candidate.key;
  }
}

TEST_F(Sweep, GoesOnWithoutItsWorkerAndSaysSo) {
  write_file(folder_ / "long.yaml", long_config());
  fakes::RunningCommand running({MUSE_TUNE, "sweep", "long.yaml", "--target", "host", "--db",
                                 "a.db", "--json", "--any-build"},
                                options());
  // The worker comes before the run that it works for.
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto in_time = [&] { return std::chrono::steady_clock::now() < late; };
  while (!std::filesystem::exists(folder_ / "a.db") && in_time()) std::this_thread::yield();
  const std::string tasks = "/proc/" + std::to_string(running.pid()) + "/task/";
  pid_t worker = 0;
  while (worker == 0 && in_time()) {
    std::ifstream(tasks + std::to_string(running.pid()) + "/children") >> worker;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // whenever it comes
  ASSERT_GT(worker, 0);
  kill(worker, SIGKILL);
  const CommandResult result = running.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("worker ended by signal 9 (SIGKILL)"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("; a new one goes on\n"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(", 1 worker replaced\n"), std::string::npos) << result.err;
  EXPECT_EQ(json::parse(result.out)["workers_replaced"], 1);
}

TEST_F(Sweep, LosesNothingToKills) {
  // Rounds enough to be killed in the middle of them.
  write_file(folder_ / "long.yaml", long_config());
  const CommandResult whole = sweep("long.yaml", "whole.db");
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  std::mt19937 random(7);
  int64_t rounds = 0;
  int kills = 0;
  for (; kills < 12; ++kills) {
    fakes::RunningCommand running(
        {MUSE_TUNE, "sweep", "long.yaml", "--target", "host", "--db", "killed.db", "--any-build"},
        options());
    const auto moment = static_cast<int64_t>(1e3 * whole.seconds) / 10 + 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(static_cast<int64_t>(random()) % moment));
    kill(running.pid(), SIGKILL);
    if (running.wait().exit_code == 0) break;  // it was done before
    if (!std::filesystem::exists(folder_ / "killed.db")) continue;
    db::Store store = db::Store::open(folder_ / "killed.db", db::Open::kWrite);  // rolls back
    EXPECT_EQ(store.integrity(), "");
    const auto stored = static_cast<int64_t>(store.table("round").rows.size());
    EXPECT_GE(stored, rounds) << "a stored round is gone";
    rounds = stored;
    if (rounds == 0) continue;
    const CommandResult status =
        fakes::run_command({MUSE_TUNE, "status", "--db", "killed.db", "--json"}, options());
    EXPECT_EQ(json::parse(status.out)["runs"].back()["status"], "killed") << "nobody is left";
  }
  EXPECT_GE(kills, 3);
  EXPECT_GT(rounds, 0);
  const CommandResult rest = sweep("long.yaml", "killed.db");
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(trials("killed.db"), trials("whole.db"));
  if (kills == 12) {
    EXPECT_EQ(open("killed.db").runs().size(), 1u) << "one run, resumed, not many";
  }
}

#ifdef MUSE_TUNE_FAKES
TEST_F(Sweep, ContainsWhatMisbehavesAndNamesIt) {
  write_file(folder_ / "fakes.yaml",
             config("{include: ['*/scalar', gate/fake_segv, gate/fake_exit0, gate/fake_throw, "
                    "gate/fake_throw_int, gate/fake_wrong, gate/fake_half], "
                    "tunables: {'*': {splits: [4], after: [0]}}}"));
  // No candidate hangs here, but a sanitizer's report of a crash takes its time.
  const std::string deadline = fakes::kSanitized ? "10s" : "500ms";
  const CommandResult result =
      sweep("fakes.yaml", "a.db", {"--deadline", deadline}, MUSE_TUNE_FAKES);
  EXPECT_EQ(result.exit_code, 5) << result.err;
  const db::Store store = open("a.db");
  std::map<std::string, std::set<std::string>> states;
  for (const auto& t : store.run_trials(store.last_run()->id)) {
    if (t.candidate.span == "gate") states[t.candidate.variant].insert(t.trial.state);
    if (t.trial.state != "ok") {
      EXPECT_FALSE(t.median_ns) << t.candidate.key;
      EXPECT_NE(t.trial.reason, "") << t.candidate.key;
    }
  }
  EXPECT_EQ(states["gate/scalar"], std::set<std::string>{"ok"});
  EXPECT_EQ(states["gate/fake_segv"], std::set<std::string>{"crashed"});
  EXPECT_EQ(states["gate/fake_exit0"], std::set<std::string>{"crashed"});
  EXPECT_EQ(states["gate/fake_throw"], std::set<std::string>{"launch_failed"});
  EXPECT_EQ(states["gate/fake_throw_int"], std::set<std::string>{"launch_failed"});
  EXPECT_EQ(states["gate/fake_wrong"], std::set<std::string>{"incorrect"});
  EXPECT_EQ(states["gate/fake_half"], std::set<std::string>{"incorrect"});
  const json again =
      json::parse(sweep("fakes.yaml", "a.db", {"--deadline", deadline}, MUSE_TUNE_FAKES).out);
  EXPECT_EQ(again["measured"], 0) << "what failed is not run again";
}

TEST_F(Sweep, WhereNothingIsValidNoHeaderIsTouched) {
  write_file(
      folder_ / "none.yaml",
      config("{include: [prepare/scalar, attention/scalar, combine/scalar, gate/fake_throw, "
             "gate/fake_throw_int, gate/fake_wrong], tunables: {'*': {splits: [4], after: [0]}}}",
             "base: [prepare/scalar, attention/scalar, combine/scalar, gate/fake_throw]\n"));
  std::filesystem::create_directory(folder_ / "muse_dispatch");
  const std::string good = "// SPDX-License-Identifier: Apache-2.0\n// Generated: good\n";
  write_file(folder_ / "muse_dispatch" / "muse_dispatch.h", good);
  const CommandResult result = sweep("none.yaml", "a.db", {}, MUSE_TUNE_FAKES);
  EXPECT_EQ(result.exit_code, 4) << result.err;
  const CommandResult emit =
      fakes::run_command({MUSE_TUNE_FAKES, "emit", "--db", "a.db"}, options());
  EXPECT_EQ(emit.exit_code, 4) << emit.err;
  EXPECT_EQ(read_file(folder_ / "muse_dispatch" / "muse_dispatch.h"), good);
}
#endif

}  // namespace
}  // namespace muse
