// SPDX-License-Identifier: Apache-2.0
// The command line as a user meets it: help, JSON, did-you-mean, bad input, exit codes.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "db/store.h"
#include "tests/fakes/command.h"

namespace muse {
namespace {

using fakes::CommandResult;
using fakes::read_file;
using fakes::TemporaryFolder;
using fakes::write_file;
using nlohmann::json;

constexpr const char* kTiny = R"(schema: 1
defaults: {pool_bytes: 1MiB}
shapes:
  - {batch: 2, q_len: 1, window: 0, rope_theta: 0, context: 64}
variants:
  include: ["*/scalar"]
measure: {max_rounds: 8, half_width_pct: 20}
)";

class Cli : public ::testing::Test {
 protected:
  CommandResult tune(std::vector<std::string> words) {
    // Any preset's build will do: no time is of interest here.
    if (!words.empty() && words[0] == "sweep") words.push_back("--any-build");
    words.insert(words.begin(), MUSE_TUNE);
    return fakes::run_command(words, {.folder = folder_.path(), .limit_s = 60});
  }
  // Every complaint is one line that starts so; nothing goes to standard output.
  void expect_refused(const std::vector<std::string>& words, int code, const std::string& part) {
    const CommandResult result = tune(words);
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_TRUE(result.err.starts_with("muse-tune: error: ")) << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << part << " not in " << result.err;
    EXPECT_EQ(result.out, "");
  }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
      names.insert(entry.path().filename());
    }
    return names;
  }
  TemporaryFolder folder_;
};

TEST_F(Cli, EveryCommandHasHelpAndJson) {
  const CommandResult help = tune({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const std::string command : {"init", "list", "plan", "sweep", "status", "validate", "emit",
                                    "report", "export", "version"}) {
    EXPECT_NE(help.out.find(command), std::string::npos) << command;
    const CommandResult own = tune({command, "--help"});
    EXPECT_EQ(own.exit_code, 0) << command;
    EXPECT_NE(own.out.find("--json"), std::string::npos) << command;
  }
  EXPECT_EQ(help.out.find("worker"), std::string::npos);
}

TEST_F(Cli, SuggestsTheNearestCommandAndOption) {
  expect_refused({"swep", "a.yaml"}, 2, "did you mean 'sweep'?");
  expect_refused({"plan", "a.yaml", "--shap", "x"}, 2, "did you mean '--shape'?");
  expect_refused({"plan", "a.yaml", "--stage", "atention"}, 2, "a.yaml");
  expect_refused({}, 2, "a command is needed");
  expect_refused({"plan"}, 2, "config");
}

TEST_F(Cli, SaysWhatTheBinaryIs) {
  const json version = json::parse(tune({"version", "--json"}).out);
  EXPECT_EQ(version["schema"], "muse.version");
  EXPECT_EQ(version["version"], 1);
  EXPECT_EQ(tune({"--version"}).exit_code, 0);
}

TEST_F(Cli, InitWritesAConfigThatPlans) {
  EXPECT_EQ(tune({"init", "mine.yaml", "--target", "host"}).exit_code, 0);
  const CommandResult plan = tune({"plan", "mine.yaml", "--target", "host", "--json"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_GT(json::parse(plan.out)["items"].size(), 0u);
  const std::string before = read_file(folder_ / "mine.yaml");
  expect_refused({"init", "mine.yaml", "--target", "host"}, 2, "exists already");
  EXPECT_EQ(read_file(folder_ / "mine.yaml"), before);
}

TEST_F(Cli, ListIsTheDocumentedJson) {
  write_file(folder_ / "tiny.yaml", kTiny);
  const json list = json::parse(tune({"list", "tiny.yaml", "--target", "host", "--json"}).out);
  EXPECT_EQ(list["schema"], "muse.list");
  std::set<std::string> names;
  for (const json& v : list["variants"]) {
    names.insert(v["name"]);
    EXPECT_EQ(v["supports"].size(), 1u);
    for (const char* field : {"target", "spans", "tunables", "space", "constraints"}) {
      EXPECT_TRUE(v.contains(field)) << field;
    }
  }
  EXPECT_TRUE(names.contains("attention/scalar"));
}

TEST_F(Cli, ListHasOneLineForEachReasonAndThePairsAsJson) {
  write_file(folder_ / "four.yaml", R"(schema: 1
shapes:
  - {batch: [1, 2, 3], q_len: 1, window: 0, rope_theta: 0, context: 64}
  - {batch: 1, q_len: 1, window: 128, rope_theta: 500000, context: 64}
)");
  const CommandResult text = tune({"list", "four.yaml", "--target", "host"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  const auto times = [&](const std::string& part) {
    int count = 0;
    for (size_t at = text.out.find(part); at != std::string::npos; at = text.out.find(part, at + 1))
      ++count;
    return count;
  };
  EXPECT_EQ(times("\nattention/mma: "), 1) << text.out;
  EXPECT_EQ(times("\nattention/mma: runs on a CUDA device only (all 4 shapes)\n"), 1) << text.out;
  EXPECT_EQ(times("\nprepare/on_the_fly: "), 2) << text.out;
  EXPECT_EQ(times(" (1 of 4 shapes: b1_"), 1) << text.out;
  EXPECT_EQ(times(" (3 of 4 shapes: b1_"), 1) << text.out;
  EXPECT_EQ(times(", ...)\n"), 1) << text.out;
  const json list = json::parse(tune({"list", "four.yaml", "--target", "host", "--json"}).out);
  for (const json& v : list["variants"]) EXPECT_EQ(v["supports"].size(), 4u);
}

TEST_F(Cli, PlanWritesNothingAndIsTheDocumentedJson) {
  write_file(folder_ / "tiny.yaml", kTiny);
  const auto before = files();
  const json plan = json::parse(tune({"plan", "tiny.yaml", "--target", "host", "--json"}).out);
  EXPECT_EQ(plan["schema"], "muse.plan");
  for (const json& item : plan["items"]) EXPECT_EQ(item["action"], "measure") << item;
  // A database that is yet to be made knows nothing.
  const json against_nothing =
      json::parse(tune({"plan", "tiny.yaml", "--target", "host", "--json", "--db", "new.db"}).out);
  EXPECT_EQ(against_nothing["items"], plan["items"]);
  EXPECT_EQ(files(), before);
}

TEST_F(Cli, RefusesBadConfigsWithFileLineAndColumnAndChangesNothing) {
  const std::string good = kTiny;
  const std::pair<std::string, std::string> bad[] = {
      {good + "measur: {}\n", "bad.yaml:8:1: "},
      {good + "measure: {}\n", "bad.yaml:8:1: "},
      {"schema: 1\nshapes:\n  - {batch: two, context: 64}\n", "bad.yaml:3:13: "},
      {"schema: 1\nshapes:\n  - {batch: -1, context: 64}\n", "bad.yaml:3:13: "},
      {"schema: 1\nshapes:\n  - {batch: 18446744073709551616, context: 64}\n", "bad.yaml:3:13: "},
      {"schema: 1\nshapes: []\n", "bad.yaml:2:9: "},
      {"schema: 1\nshapes:\n  - {context: 64}\nvariants: {include: [atention/*]}\n",
       "bad.yaml:4:22: "},
      {"", "bad.yaml"},
      {",", "bad.yaml:1:1: "},
      {good + "---\nschema: 1\n", "bad.yaml:8:"},
      {std::string(10 << 20, '#'), "bad.yaml"},
  };
  for (const auto& [text, where] : bad) {
    write_file(folder_ / "bad.yaml", text);
    const auto before = files();
    for (const char* command : {"plan", "sweep", "validate"}) {
      expect_refused({command, "bad.yaml", "--target", "host"}, 2, where);
    }
    EXPECT_EQ(files(), before);
  }
  expect_refused({"sweep", "none.yaml", "--target", "host"}, 2, "none.yaml");
  expect_refused({"sweep", ".", "--target", "host"}, 2, "folder");
}

TEST_F(Cli, RefusesFiltersThatKeepNothing) {
  write_file(folder_ / "tiny.yaml", kTiny);
  expect_refused({"plan", "tiny.yaml", "--target", "host", "--variant", "gait/*"}, 2, "gait/*");
  for (const char* command : {"plan", "sweep", "validate"}) {
    expect_refused({command, MUSE_SOURCE_DIR "/configs/quick.yaml", "--target", "host", "--variant",
                    "gate/separate"},
                   2, "target host; gate/separate is a CUDA variant: it needs a GPU, but ");
  }
  expect_refused({"plan", "tiny.yaml", "--target", "host", "--shape", "b99*"}, 2, "b99*");
  expect_refused({"plan", "tiny.yaml", "--target", "host", "--stage", "gat"}, 2,
                 "did you mean 'gate'?");
  expect_refused({"plan", "tiny.yaml", "--target", "gpu"}, 2, "auto, host or cuda:N");
  expect_refused({"sweep", "tiny.yaml", "--target", "host", "--timer", "cupti"}, 2, "no timer");
  expect_refused({"sweep", "tiny.yaml", "--target", "host", "--budget", "10"}, 2, "duration");
  expect_refused({"sweep", "tiny.yaml", "--target", "host", "--budget", ""}, 2, "not a duration");
  for (const char* huge : {"9999999999h", "10000000000000000000000000000000000000000h"}) {
    expect_refused({"sweep", "tiny.yaml", "--target", "host", "--budget", huge}, 2,
                   "longer than a year");
  }
  for (const char* seed : {"-1", "18446744073709551616", "1e3", "x"}) {
    expect_refused({"sweep", "tiny.yaml", "--target", "host", "--seed", seed}, 2, "not a seed");
  }
  const CommandResult escape =
      tune({"plan", "c\x1b[31m\nd.yaml", "--target", "host", "--shape", "zzz"});
  EXPECT_EQ(escape.exit_code, 2);
  EXPECT_EQ(escape.err.find('\x1b'), std::string::npos) << escape.err;
}

TEST_F(Cli, ACudaTargetOnAMachineWithoutOneIsExit3) {
  write_file(folder_ / "tiny.yaml", kTiny);
  const auto answers = [&] {
    const CommandResult init = tune({"init", "any.yaml", "--target", "cuda:0", "--force"});
    return init.exit_code == 0;
  };
  if (answers()) GTEST_SKIP() << "there is one";
  for (const std::string command : {"plan", "sweep", "validate"}) {
    expect_refused({command, "tiny.yaml", "--target", "cuda:0"}, 3, "--target host");
  }
  expect_refused({"init", "new.yaml", "--target", "cuda:0"}, 3, "--target host");
  for (const std::string wrong : {"cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:99999"}) {
    expect_refused({"plan", "tiny.yaml", "--target", wrong}, 2, "auto, host or cuda:N");
  }
}

TEST_F(Cli, VersionListsTheTargetsOfThisBuild) {
  const json version = json::parse(tune({"version", "--json"}).out);
  EXPECT_EQ(version["targets"][0], "host");
  if (version["targets"].size() > 1) {
    EXPECT_EQ(version["targets"], (json{"host", "cuda"}));
  }
  // Kernels are registered whatever the build: listing them needs no toolkit.
  std::set<std::string> targets;
  const json list = json::parse(tune({"list", "--json"}).out);
  for (const json& variant : list["variants"]) targets.insert(variant["target"]);
  EXPECT_EQ(targets, (std::set<std::string>{"cuda", "host"}));
}

TEST_F(Cli, AutoWithoutADeviceIsTheHostAndSaysWhy) {
  write_file(folder_ / "tiny.yaml", kTiny);
  // An empty list hides every card from the runtime; where there is no driver it changes nothing.
  const CommandResult plan = fakes::run_command(
      {MUSE_TUNE, "plan", "tiny.yaml", "--target", "auto"},
      {.folder = folder_.path(), .environment = {"CUDA_VISIBLE_DEVICES="}, .limit_s = 60});
  const bool cuda = json::parse(tune({"version", "--json"}).out)["targets"].size() > 1;
  if (plan.exit_code ==
      3) {  // a card that this build or its driver cannot use is passed over never
    EXPECT_NE(plan.err.find("--target host"), std::string::npos) << plan.err;
    return;
  }
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_EQ(plan.err.find("for want of a GPU") != std::string::npos, cuda) << plan.err;
  EXPECT_NE(plan.out.find("gate/scalar"), std::string::npos) << plan.out;
}

TEST_F(Cli, RefusesBadDatabasesAndLeavesThemAlone) {
  write_file(folder_ / "tiny.yaml", kTiny);
  const auto untouched = [&](const std::string& file, const std::string& bytes) {
    write_file(folder_ / file, bytes);
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{{"status"},
                                               {"report"},
                                               {"export"},
                                               {"emit"},
                                               {"plan", "tiny.yaml", "--target", "host"},
                                               {"sweep", "tiny.yaml", "--target", "host"}}) {
      std::vector<std::string> words = command;
      words.insert(words.end(), {"--db", file});
      expect_refused(words, 3, file);
      EXPECT_EQ(read_file(folder_ / file), bytes) << command[0];
    }
  };
  untouched("empty.db", "");
  untouched("text.db", "this is no database, though it is long enough to have a header " +
                           std::string(200, 'x'));
  std::filesystem::create_directory(folder_ / "folder.db");
  for (const char* command : {"status", "report", "export", "emit"}) {
    expect_refused({command, "--db", "missing.db"}, 3, "missing.db");
    expect_refused({command, "--db", "folder.db"}, 3, "folder");
  }
  expect_refused({"plan", "tiny.yaml", "--target", "host", "--db", "folder.db"}, 3, "folder");
  expect_refused({"sweep", "tiny.yaml", "--target", "host", "--db", "folder.db"}, 3, "folder");
  expect_refused({"sweep", "tiny.yaml", "--target", "host", "--db", "no/such/a.db"}, 3, "no/such");
}

class SweptCli : public Cli {
 protected:
  void SetUp() override {
    write_file(folder_ / "tiny.yaml", kTiny);
    const CommandResult sweep = tune({"sweep", "tiny.yaml", "--target", "host"});
    ASSERT_EQ(sweep.exit_code, 0) << sweep.err;
  }
};

TEST_F(SweptCli, ReadingCommandsChangeNothing) {
  const std::string before = read_file(folder_ / "muse-tune.db");
  const auto names = files();
  for (const char* command : {"status", "export"}) {
    const CommandResult result = tune({command, "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(json::accept(result.out)) << command;
  }
  EXPECT_EQ(tune({"report", "--format", "md"}).exit_code, 0);
  EXPECT_EQ(json::parse(tune({"report", "--json"}).out)["schema"], "muse.report");
  EXPECT_EQ(tune({"plan", "tiny.yaml", "--target", "host"}).exit_code, 0);
  EXPECT_EQ(read_file(folder_ / "muse-tune.db"), before);
  EXPECT_EQ(files(), names);
}

/// Words that run as somebody whom the rights of files bind.
std::vector<std::string> not_as_root(std::vector<std::string> words) {
  if (geteuid() != 0) return words;
  words.insert(words.begin(), {"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"});
  return words;
}

TEST_F(SweptCli, ADatabaseThatCannotBeWrittenServesAllThatReads) {
  namespace fs = std::filesystem;
  if (fakes::run_command(not_as_root({MUSE_TUNE, "version"})).exit_code != 0) {
    GTEST_SKIP() << "needs another user than root, or setpriv";
  }
  const TemporaryFolder open_place;
  fs::permissions(open_place.path(), fs::perms(0777));
  fs::permissions(folder_ / "muse-tune.db", fs::perms(0444));
  fs::permissions(folder_.path(), fs::perms(0555));
  const auto read = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all{MUSE_TUNE};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), {"--db", (folder_ / "muse-tune.db").string()});
    return fakes::run_command(not_as_root(all), {.folder = open_place.path(), .limit_s = 60});
  };
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"status"}, {"report"}, {"explain"}, {"export"}, {"replay"}}) {
    const CommandResult result = read(words);
    EXPECT_EQ(result.exit_code, 0) << words[0] << ": " << result.err;
  }
  const CommandResult emitted = read({"emit", "--out", "table", "--json"});
  EXPECT_EQ(emitted.exit_code, 0) << emitted.err;
  EXPECT_EQ(json::parse(emitted.out)["recorded"], false);
  EXPECT_NE(emitted.err.find("muse-tune.db or its folder is read-only"), std::string::npos)
      << emitted.err;
  const CommandResult checked =
      fakes::run_command(not_as_root({MUSE_TUNE, "check", "table", "--any-build", "--budget", "1s",
                                      "--target", "host"}),
                         {.folder = open_place.path(), .limit_s = 60});
  EXPECT_EQ(checked.err.find("read-only"), std::string::npos) << checked.err;
  EXPECT_NE(checked.exit_code, 3) << checked.err;
  fs::permissions(folder_.path(), fs::perms(0755));

  fs::permissions(folder_ / "muse-tune.db", fs::perms(0644));
  const json again = json::parse(tune({"emit", "--json"}).out);
  EXPECT_EQ(again["recorded"], true);
  EXPECT_EQ(again["hash"], json::parse(emitted.out)["hash"]) << "the same table either way";
}

TEST_F(SweptCli, PlanReusesWhatWasSwept) {
  const json plan = json::parse(tune({"plan", "tiny.yaml", "--target", "host", "--json"}).out);
  for (const json& item : plan["items"]) EXPECT_EQ(item["action"], "reuse") << item;
}

TEST_F(SweptCli, OutputThatCannotBeWrittenIsExit3AndLeavesTheOldFile) {
  expect_refused({"report", "--out", "none/deeper/report.html"}, 3, "none");
  expect_refused({"emit", "--out", "none/deeper"}, 3, "none");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "none"));
  ASSERT_EQ(tune({"emit", "--out", "made"}).exit_code, 0)
      << "a folder is made where its own is there";
  EXPECT_TRUE(std::filesystem::exists(folder_ / "made" / "muse_dispatch.h"));
  ASSERT_EQ(tune({"report", "--out", "drawn/report.html"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "drawn" / "report.html"));
  std::filesystem::create_directory(folder_ / "taken");
  expect_refused({"report", "--out", "taken"}, 3, "taken");
  ASSERT_EQ(tune({"emit"}).exit_code, 0);
  const std::string header = read_file(folder_ / "muse_dispatch" / "muse_dispatch.h");
  EXPECT_NE(header.find("MUSE_DISPATCH_H_"), std::string::npos);
  EXPECT_EQ(json::parse(read_file(folder_ / "muse_dispatch" / "muse_dispatch.json"))["schema"],
            "muse.dispatch");
  expect_refused({"emit", "--run", "99"}, 2, "no run 99");
  EXPECT_EQ(read_file(folder_ / "muse_dispatch" / "muse_dispatch.h"), header);
  const std::string database = read_file(folder_ / "muse-tune.db");
  expect_refused({"report", "--out", "muse-tune.db"}, 2, "the database's own file");
  expect_refused({"export", "--out", "./muse-tune.db"}, 2, "the database's own file");
  expect_refused({"report", "--out", "muse-tune.db.lock"}, 2, "the database's own file");
  EXPECT_EQ(read_file(folder_ / "muse-tune.db"), database);
  if (geteuid() == 0) return;  // root writes everywhere
  std::filesystem::create_directory(folder_ / "fixed");
  chmod((folder_ / "fixed").c_str(), 0500);
  expect_refused({"emit", "--out", "fixed"}, 3, "fixed");
}

TEST_F(SweptCli, EmitWritesAFolderOfItsOwnAndReplacesNobodysBuild) {
  const CommandResult emit = tune({"emit"});
  ASSERT_EQ(emit.exit_code, 0) << emit.err;
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "muse_dispatch")) {
    names.insert(entry.path().filename());
    EXPECT_NE(emit.out.find(entry.path().filename().string() + "\n"), std::string::npos);
  }
  EXPECT_EQ(names, (std::set<std::string>{"CMakeLists.txt", "muse_dispatch.h", "muse_dispatch.json",
                                          "muse_kernels.cu"}));
  EXPECT_EQ(tune({"emit"}).exit_code, 0) << "its own is written anew";
  std::filesystem::create_directory(folder_ / "mine");
  for (const char* name :
       {"CMakeLists.txt", "muse_dispatch.h", "muse_kernels.cu", "muse_dispatch.json"}) {
    for (const std::string text : {"project(mine)\n", ""}) {
      const std::filesystem::path folder = folder_ / "mine";
      std::filesystem::remove_all(folder);
      std::filesystem::create_directory(folder);
      write_file(folder / name, text);
      expect_refused({"emit", "--out", "mine"}, 2, std::string(name) + " was not written by emit");
      EXPECT_EQ(read_file(folder / name), text);
      EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
    }
  }
}

TEST_F(SweptCli, FewerPipelinesAreEmittedWhereThatIsAskedFor) {
  const json all = json::parse(tune({"emit", "--json"}).out);
  EXPECT_GT(all["pipelines"], 0);
  EXPECT_GT(all["captured_rows"], 0);
  EXPECT_GE(all["regret"]["worst_pct"], 0);
  const json none = json::parse(tune({"emit", "--json", "--max-regret", "0"}).out);
  EXPECT_EQ(none["regret"]["worst_pct"], 0) << none;
  const json base = json::parse(tune({"emit", "--json", "--max-variants", "1"}).out);
  EXPECT_EQ(base["pipelines"], 1) << base;
  const json evidence = json::parse(read_file(folder_ / "muse_dispatch" / "muse_dispatch.json"));
  for (const json& entry : evidence["entries"]) EXPECT_EQ(entry["pipeline"], base["base"]);
  EXPECT_EQ(evidence["header_hash"], base["hash"]);
  if (base["regret"]["worst_pct"] > 0) {
    const std::string before = read_file(folder_ / "muse_dispatch" / "muse_dispatch.h");
    expect_refused({"emit", "--max-variants", "1", "--max-regret", "0"}, 4, "--max-regret");
    EXPECT_EQ(read_file(folder_ / "muse_dispatch" / "muse_dispatch.h"), before);
  }
  expect_refused({"emit", "--max-variants", "0"}, 2, "--max-variants");
  expect_refused({"emit", "--max-regret", "-1"}, 2, "--max-regret");
  expect_refused({"emit", "--max-regret", "nan"}, 2, "--max-regret");
}

TEST_F(SweptCli, ADatabaseOfANewerVersionIsRefused) {
  std::string bytes = read_file(folder_ / "muse-tune.db");
  bytes[63] = 99;  // user_version, big endian at 60
  write_file(folder_ / "newer.db", bytes);
  expect_refused({"status", "--db", "newer.db"}, 3, "newer");
  expect_refused({"sweep", "tiny.yaml", "--target", "host", "--db", "newer.db"}, 3, "newer");
  EXPECT_EQ(read_file(folder_ / "newer.db"), bytes);
}

TEST_F(SweptCli, OutputWithoutATerminalHasNoEscapes) {
  const CommandResult result = tune({"sweep", "tiny.yaml", "--target", "host", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(json::accept(result.out));
  EXPECT_EQ((result.out + result.err).find_first_of("\r\x1b"), std::string::npos);
}

TEST_F(SweptCli, ExportsCsvThatASpreadsheetTakesAsData) {
  const CommandResult csv = tune({"export", "--format", "csv", "--table", "candidate"});
  EXPECT_EQ(csv.exit_code, 0);
  EXPECT_TRUE(csv.out.starts_with("id,key,")) << csv.out.substr(0, 80);
  expect_refused({"export", "--format", "csv"}, 2, "--table");
  expect_refused({"export", "--format", "csv", "--table", "candidat"}, 2,
                 "did you mean 'candidate'?");
}

TEST_F(SweptCli, AClosedPipeHidesNothing) {
  const CommandResult piped = fakes::run_command(
      {"bash", "-c", "set -o pipefail; \"$0\" export | head -c 1 >/dev/null", MUSE_TUNE},
      {.folder = folder_.path()});
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
}

}  // namespace
}  // namespace muse
