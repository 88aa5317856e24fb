// SPDX-License-Identifier: Apache-2.0
// Sweeps of siblings: what was good on one shape races on all of its structure, and on shapes that
// have `race: siblings` nothing else does.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/tuner/mocked_sweep.h"
#include "tuner/challengers.h"
#include "tuner/dispatch_file.h"
#include "tuner/dispatch_losses.h"
#include "tuner/dispatch_rows.h"
#include "tuner/stored_selection.h"

namespace muse::tuner {
namespace {

using fakes::MockMeasurer;
using fakes::Script;
using fakes::Turn;

/// Shapes of one structure, each with an attention of its own that is best there.
class SiblingSweep : public MockedSweep {
 protected:
  SiblingSweep() {
    settings_.config =
        "variants: {include: [prepare/fused, attention/mma, combine/gated], tunables: "
        "{attention/mma: {tile_kv: [64], warps: [4], heads_per_cta: [1], partial_bf16: [0], "
        "cluster: [1], ticket: [0], gate: [0], splits: [4, 8, 32, 64]}, prepare/fused: {threads: "
        "[128]}, combine/gated: {threads: [128], lanes: [32], splits_per_step: [4]}}}\n"
        "pipelines: {top_k: 1, pdl: [off]}\n";
    settings_.shapes =
        "  - {batch: [2, 8], q_len: 1, window: 0, rope_theta: 0, context: [4096, 32768], "
        "pool_bytes: 1MiB}\n";
    settings_.filter = {};
  }
  static std::string best_at(const std::string& shape) {
    const bool is_long = shape.find("_t32768_") != std::string::npos;
    if (shape.starts_with("b2_")) return is_long ? "splits=64" : "splits=8,";
    return is_long ? "splits=32" : "splits=4,";
  }
  static Script script() {
    Script script;
    script.ns = [](const Turn& turn) {
      double ns = turn.chain.find("attention/") == std::string::npos ? 5'000 : 20'000;
      if (turn.chain.find(best_at(turn.shape)) != std::string::npos) ns *= 0.8;
      return ns;
    };
    return script;
  }
  /// Shapes in which a pipeline with this attention was timed.
  std::set<std::string> timed_at(const std::string& attention) const {
    std::set<std::string> shapes;
    const db::Store store = open();
    for (const auto& one : store.run_trials(store.last_run()->id)) {
      if (one.candidate.span == "prepare..gate" && one.median_ns &&
          one.candidate.key.find(attention) != std::string::npos) {
        shapes.insert(one.problem.key);
      }
    }
    return shapes;
  }
  /// What the sweep says it counted is what the database has.
  void expect_counted_once(const Swept& swept) const {
    std::map<Outcome, int> outcomes;
    const db::Store store = open();
    int reused = 0;
    for (const auto& one : store.run_trials(swept.run)) {
      ++outcomes[*parse_outcome(one.trial.state)];
      reused += one.reused ? 1 : 0;
    }
    EXPECT_EQ(swept.result.outcomes, outcomes);
    EXPECT_EQ(swept.result.reused, reused);
  }
  Settings settings_;
};

TEST_F(SiblingSweep, EachWinnerIsTimedOnEveryShapeOfItsStructure) {
  settings_.shapes +=
      "  - {batch: 2, q_len: 2, window: 0, rope_theta: 0, context: 4096, pool_bytes: 1MiB}\n";
  const Swept swept = sweep(script(), settings_);
  for (const char* one : {"splits=4,", "splits=32", "splits=64"}) {
    EXPECT_EQ(timed_at(one).size(), 4U) << one;
  }
  EXPECT_EQ(timed_at("splits=8,").size(), 5U) << "best of two query tokens, too";
  std::map<std::string, std::string> chosen;
  for (const Winner& winner : swept.result.winners) {
    if (winner.span == "prepare..gate") chosen[winner.shape] = winner.chain;
  }
  ASSERT_EQ(chosen.size(), 5U) << "one decision for each shape, however often it raced";
  for (const auto& [shape, winner] : chosen) {
    EXPECT_NE(winner.find(best_at(shape)), std::string::npos) << shape << ": " << winner;
  }
  const db::Store store = open();
  const MeasuredRun measured = measured_run(store, *store.last_run(), "cold");
  DispatchTable table;
  table.base = store.last_run()->base;
  fill_rows(table, measured.shapes, std::nullopt);
  ASSERT_EQ(table.captured.size(), 3U);
  EXPECT_EQ(table.captured[0].over.size(), 2U);
}

TEST_F(SiblingSweep, AWinnerOfASiblingThatIsFasterHereIsChosenHere) {
  Script script = this->script();
  const auto truth = script.ns;
  // Alone the attention looks slow at batch 8, as part of a whole step it is the best there.
  script.ns = [truth](const Turn& turn) {
    const bool whole = turn.chain.find(" + ") != std::string::npos;
    const bool there =
        turn.shape.starts_with("b8_") && turn.chain.find("splits=64") != turn.chain.npos;
    return truth(turn) * (whole && there ? 0.5 : 1);
  };
  const Swept swept = sweep(script, settings_);
  for (const Winner& winner : swept.result.winners) {
    if (winner.span != "prepare..gate" || !winner.shape.starts_with("b8_")) continue;
    EXPECT_NE(winner.chain.find("splits=64"), std::string::npos) << winner.shape;
  }
  const db::Store store = open();
  const StoredSelections selections(store, *store.last_run());
  for (const db::SelectionRow& row : store.selections(swept.run)) {
    const auto replayed = selections.replay(row);
    ASSERT_TRUE(replayed) << replayed.error();
    EXPECT_TRUE(replayed->differences.empty()) << replayed->differences[0];
  }
}

TEST_F(SiblingSweep, WhatAShapeCannotRunIsLeftOutThere) {
  settings_.config =
      "variants: {include: [prepare/fused, attention/register_dealt, attention/mma, combine/gated, "
      "combine/dealt], tunables: {attention/register_dealt: {tokens: [16], depth: [2], warps: [4], "
      "waves: [1], splits: [128], gate: [0]}, attention/mma: {tile_kv: [64], warps: [4], "
      "heads_per_cta: [1], partial_bf16: [0], cluster: [1], ticket: [0], gate: [0], splits: "
      "[16]}}}\npipelines: {top_k: 1, pdl: [off]}\n";
  settings_.shapes =
      "  - {batch: [2, 2048], q_len: 1, window: 0, rope_theta: 0, context: 4096, pool_bytes: "
      "1MiB}\n";
  Script script;
  script.ns = [](const Turn& turn) {
    return turn.chain.find("register_dealt") != std::string::npos ? 10'000 : 20'000;
  };
  const Swept swept = sweep(script, settings_);
  EXPECT_EQ(exit_code(swept.result), ExitCode::kOk);
  const std::set<std::string> shapes = timed_at("register_dealt");
  ASSERT_EQ(shapes.size(), 1U);
  EXPECT_TRUE(shapes.begin()->starts_with("b2_"));
}

TEST_F(SiblingSweep, ABaseThatWinsElsewhereIsNotRacedOnceMore) {
  Script script;
  script.ns = [](const Turn& turn) {
    const bool is_long = turn.shape.find("_t32768_") != std::string::npos;
    const bool is_base = turn.chain.find("splits=16") != std::string::npos;
    return is_base == is_long ? 16'000 : 20'000;
  };
  settings_.config.replace(settings_.config.find("[4, 8, 32, 64]"), 14, "[8]");
  const Swept swept = sweep(script, settings_);
  expect_counted_once(swept);
  const db::Store store = open();
  int races = 0;
  for (const db::RaceRow& race : store.races(swept.run)) races += race.span == "prepare..gate";
  EXPECT_EQ(races, 6) << "where the base did not win it has raced all the same";
}

TEST_F(SiblingSweep, CountsEveryTrialOnce) {
  const Swept swept = sweep(script(), settings_);
  expect_counted_once(swept);
  EXPECT_EQ(swept.result.measured, swept.result.outcomes.at(Outcome::kOk));
  const Swept second = sweep(script(), settings_);
  expect_counted_once(second);
  EXPECT_EQ(second.result.reused, swept.result.measured);
}

TEST_F(SiblingSweep, AWinnerOfASiblingThatIsWrongHereIsCountedAsThat) {
  Script script = this->script();
  script.revalidate = [](const RevalidateRequest& request) -> Script::Verdict {
    const bool fails = request.shape.starts_with("b8_") &&
                       request.entrant.chain.find("splits=64") != std::string::npos;
    return fails ? fakes::failed(Outcome::kIncorrect, "wrong on other data") : fakes::passed();
  };
  const auto truth = script.ns;
  script.ns = [truth](const Turn& turn) {
    const bool whole = turn.chain.find(" + ") != std::string::npos;
    return truth(turn) * (whole && turn.chain.find("splits=64") != turn.chain.npos ? 0.5 : 1);
  };
  const Swept swept = sweep(script, settings_);
  expect_counted_once(swept);
  EXPECT_EQ(swept.result.outcomes.at(Outcome::kIncorrect), 2);
  EXPECT_EQ(exit_code(swept.result), ExitCode::kIncomplete);
}

TEST_F(SiblingSweep, ASecondSweepOfTheSameMeasuresNothing) {
  const Swept first = sweep(script(), settings_);
  const Swept second = sweep(script(), settings_);
  EXPECT_NE(first.run, second.run);
  EXPECT_EQ(second.result.measured, 0);
  EXPECT_EQ(second.result.rounds, 0);
}

// The second race has samples of its own, by which another of the tie set may lead: what the first
// one decided still says what the siblings race.
TEST_F(SiblingSweep, ASecondSweepOfNearTiesMeasuresNothingToo) {
  settings_.config.replace(settings_.config.find("lanes: [32]"), 11, "lanes: [8, 32]");
  settings_.shapes =
      "  - {batch: [1, 2, 4, 8, 16, 32], q_len: 1, window: 0, rope_theta: 0, context: [4096, "
      "32768], pool_bytes: 1MiB}\n";
  settings_.config += "measure: {max_rounds: 48}\n";
  Script script{.noise = 0.01};
  script.ns = [](const Turn& turn) {  // up to 3 % apart, in another order on every shape
    const std::string id = hash_hex(turn.shape + turn.chain).substr(0, 8);
    return 20'000 * (1 + 0.03 * static_cast<double>(std::stoul(id, nullptr, 16)) / 0xffffffffU);
  };
  const Swept first = sweep(script, settings_);
  int races = 0;
  for (const db::RaceRow& race : open().races(first.run)) races += race.span == "prepare..gate";
  EXPECT_GT(races, 12) << "a second one on many shapes";
  const Swept second = sweep(script, settings_);
  EXPECT_EQ(second.result.rounds, 0);
  EXPECT_EQ(second.result.measured, 0);
  for (size_t i = 0; i < first.result.winners.size(); ++i) {
    EXPECT_EQ(second.result.winners.at(i).chain, first.result.winners[i].chain);
  }
}

TEST_F(SiblingSweep, WhatAnEarlierTableAnswersRacesThoughNoSpanBringsItUp) {
  settings_.shapes =
      "  - {batch: 2, q_len: 1, window: 0, rope_theta: 0, context: 4096, pool_bytes: 1MiB}\n";
  sweep(script(), settings_);
  EXPECT_TRUE(timed_at("splits=64").empty());
  const db::Store store = open();
  const MeasuredRun measured = measured_run(store, *store.last_run(), "cold");
  Incumbent incumbent{.guard = dispatch::Guard::kTuned};
  incumbent.table.base = store.last_run()->base;
  incumbent.table.rules = dispatch_rules({{"batch", "log2"}, {"context", "log2"}}, 1.6);
  fill_rows(incumbent.table, measured.shapes, std::nullopt);
  std::string& pick = incumbent.table.rows.at(0).pipeline;
  pick.replace(pick.find("splits=8"), 8, "splits=64");
  settings_.options.incumbents = {incumbent};
  settings_.command = "sweep --incumbent table";
  sweep(script(), settings_);
  EXPECT_EQ(timed_at("splits=64").size(), 1U);
}

// --- race: siblings ------------------------------------------------------------------------------

std::string errors_of(const std::string& shapes) {
  const auto spec = parse_spec("schema: 1\nshapes:\n" + shapes, "c.yaml", Registry::global());
  std::string text;
  if (spec) return "loaded";
  for (const Diagnostic& diagnostic : spec.error()) text += diagnostic.text() + "\n";
  return text;
}

TEST(RaceAmongSiblings, IsAKeyOfAnEntryAndConcernsEachOfItsShapes) {
  const auto spec = parse_spec(
      "schema: 1\nshapes:\n"
      "  - {batch: [1, 8], q_len: 1, context: 512, race: all}\n"
      "  - {batch: [2, 4], q_len: 1, context: [512, 1024], weight: 2, race: siblings}\n"
      "  - {batch: 1, q_len: 2, context: 512}\n",
      "c.yaml", Registry::global());
  ASSERT_TRUE(spec) << spec.error().front().text();
  std::vector<RaceAmong> races;
  for (const ShapeEntry& entry : spec->shapes) races.push_back(entry.race);
  using enum RaceAmong;
  EXPECT_EQ(races, (std::vector{kAll, kAll, kSiblings, kSiblings, kSiblings, kSiblings, kAll}));
  EXPECT_EQ(spec->shapes[2].weight, 2);
}

TEST(RaceAmongSiblings, WhatIsWrongIsToldWithItsPlace) {
  const std::string all = "  - {batch: 1, q_len: 1, context: 512}\n";
  EXPECT_EQ(errors_of(all + "  - {batch: 2, q_len: 1, context: 512, race: sibling}\n"),
            "c.yaml:4:46: unknown race 'sibling'; did you mean 'siblings'?\n");
  EXPECT_EQ(errors_of(all + "  - {batch: 2, q_len: 1, context: 512, race: [all]}\n"),
            "c.yaml:4:46: race: expected a scalar, got a list\n");
  EXPECT_EQ(errors_of(all + "defaults: {race: all}\n").find("c.yaml:4:12: unknown key 'race'"), 0U);
}

TEST(RaceAmongSiblings, WithoutASiblingWhereAllRaceItIsAnErrorForEachEntryAndKindOnce) {
  const auto lacks = [](const std::string& place, const std::string& shape) {
    return place + ": race: siblings, but no shape with race: all has the structure and q_len of " +
           shape + "; add one, or leave race out here\n";
  };
  const std::string all = "  - {batch: 1, q_len: 1, context: 512}\n";
  const std::string tail = "_h16x2_d64_ps1_w0_rope0_kv1_t512_uniform_random_s1";
  EXPECT_EQ(
      errors_of(all + "  - {batch: [2, 4], q_len: [1, 2, 4], context: 512, race: siblings}\n"),
      lacks("c.yaml:4:59", "b2_l2" + tail) + lacks("c.yaml:4:59", "b2_l4" + tail));
  EXPECT_EQ(errors_of("  - {batch: 2, q_len: 1, context: 512, race: siblings}\n" + all), "loaded")
      << "wherever it stands";
  EXPECT_EQ(errors_of("  - {batch: 2, q_len: 1, context: 512, race: siblings}\n"
                      "  - {batch: 0, q_len: 1, context: 512}\n"),
            "c.yaml:4:13: batch: '0' is out of range; allowed: 1 to 4096\n")
      << "what would be its sibling is told first";
}

/// Two shapes where all race, and two that lie between them in batch.
class SiblingsAlone : public SiblingSweep {
 protected:
  SiblingsAlone() {
    settings_.shapes =
        "  - {batch: [4, 6], q_len: 1, context: 4096, pool_bytes: 1MiB, race: siblings}\n"
        "  - {batch: [2, 8], q_len: 1, context: 4096, pool_bytes: 1MiB}\n";
  }
  static bool is_alone(const std::string& shape) {
    return shape.starts_with("b4_") || shape.starts_with("b6_");
  }
  /// Whole pipelines by shape; the other spans' trials under "".
  std::map<std::string, std::set<std::string>> pipelines(const std::string& database = "a.db") {
    std::map<std::string, std::set<std::string>> found;
    const db::Store store = open(database);
    for (const auto& one : store.run_trials(store.last_run()->id)) {
      const bool whole = one.candidate.span == "prepare..gate";
      if (whole || is_alone(one.problem.key)) {
        found[whole ? one.problem.key.substr(0, 2) : ""].insert(one.candidate.key);
      }
    }
    return found;
  }
  int races_of(const std::string& batch, const std::string& database = "a.db") const {
    const db::Store store = open(database);
    int races = 0;
    for (const db::RaceRow& race : store.races(store.last_run()->id)) {
      races += store.problem(race.problem_id).key.starts_with(batch) ? 1 : 0;
    }
    return races;
  }
};

TEST_F(SiblingsAlone, TheBaseAndWhatWasGoodOnThemRaceThereAndNothingElse) {
  const Swept swept = sweep(script(), settings_);
  EXPECT_EQ(exit_code(swept.result), ExitCode::kOk);
  auto found = pipelines();
  EXPECT_TRUE(found[""].empty()) << "no span is looked at: " << *found[""].begin();
  EXPECT_EQ(found["b4"], found["b6"]);
  ASSERT_EQ(found["b4"].size(), 3U) << "the base and the winners of two shapes";
  const db::Store store = open();
  EXPECT_TRUE(found["b4"].contains(store.last_run()->base));
  for (const std::string& one : found["b4"]) {
    EXPECT_TRUE(found["b2"].contains(one) && found["b8"].contains(one)) << one;
  }
  EXPECT_EQ(races_of("b4_"), 1);
  std::map<std::string, std::string> chosen;
  for (const Winner& winner : swept.result.winners) {
    if (winner.span == "prepare..gate") chosen[winner.shape] = winner.chain;
  }
  EXPECT_EQ(chosen.size(), 4U);
  for (const auto& [shape, winner] : chosen) {
    EXPECT_NE(winner.find(best_at(shape)), std::string::npos) << shape << ": " << winner;
  }
  expect_counted_once(swept);
  const StoredSelections selections(store, *store.last_run());
  for (const db::SelectionRow& row : store.selections(swept.run)) {
    const auto replayed = selections.replay(row);
    ASSERT_TRUE(replayed) << replayed.error();
    EXPECT_TRUE(replayed->differences.empty()) << replayed->differences[0];
  }
}

TEST_F(SiblingsAlone, ASecondSweepMeasuresNothingAndOneMoreShapeItsOwnRaceAlone) {
  const Swept first = sweep(script(), settings_);
  const Swept second = sweep(script(), settings_);
  EXPECT_NE(first.run, second.run);
  EXPECT_EQ(second.result.rounds, 0);
  EXPECT_EQ(second.result.measured, 0);
  EXPECT_EQ(second.result.reused, first.result.measured);
  settings_.shapes.replace(settings_.shapes.find("[4, 6]"), 6, "[4, 6, 7]");
  MockMeasurer more(script());
  EXPECT_EQ(sweep(more, settings_).result.measured, 3);
  EXPECT_EQ(more.validations, 3);
  EXPECT_EQ(races_of("b7_"), 1);
  EXPECT_EQ(races_of("b4_"), 0);
}

TEST_F(SiblingsAlone, StoppedAnywhereItGoesOnAndMeasuresNothingTwice) {
  MockMeasurer whole(script());
  const Swept expected = sweep(whole, settings_);
  const auto found = pipelines();
  settings_.database = "b.db";
  for (int at = 0; at < whole.requests; ++at) {
    std::filesystem::remove(folder_ / "b.db");
    MockMeasurer cut(script());
    cut.stop_at = at;
    cut.answers_before_it_stops = true;
    const Swept first = sweep(cut, settings_);
    ASSERT_EQ(exit_code(first.result), ExitCode::kTerminated) << at;
    orphan("b.db");
    cut.stop = 0;
    const Swept rest = sweep(cut, settings_);
    EXPECT_TRUE(rest.resumed) << at;
    EXPECT_EQ(exit_code(rest.result), ExitCode::kOk) << at;
    EXPECT_EQ(pipelines("b.db"), found) << "stopped at request " << at;
    EXPECT_EQ(races_of("b4_", "b.db"), 1) << at;
    EXPECT_EQ(first.result.rounds + rest.result.rounds, expected.result.rounds) << at;
    ASSERT_EQ(rest.result.winners.size(), expected.result.winners.size()) << at;
    for (size_t i = 0; i < rest.result.winners.size(); ++i) {
      EXPECT_EQ(rest.result.winners[i].chain, expected.result.winners[i].chain) << at;
    }
  }
}

TEST_F(SiblingsAlone, WhereASiblingIsUndecidedTheyWait) {
  settings_.options.budget = std::chrono::duration<double>(0);
  const Swept cut = sweep(script(), settings_);
  EXPECT_TRUE(cut.result.out_of_budget);
  EXPECT_TRUE(pipelines()["b4"].empty());
}

TEST_F(SiblingsAlone, WhatAnEarlierTableAnswersThereRacesToo) {
  Incumbent incumbent{.guard = dispatch::Guard::kTuned};
  sweep(script(), settings_);
  const db::Store store = open();
  incumbent.table.base = store.last_run()->base;
  incumbent.table.rules = dispatch_rules({{"batch", "exact"}, {"context", "exact"}}, 0);
  const MeasuredRun measured = measured_run(store, *store.last_run(), "cold");
  fill_rows(incumbent.table, measured.shapes, std::nullopt);
  std::erase_if(incumbent.table.rows,
                [](const DispatchRow& row) { return row.shape.problem.batch != 4; });
  incumbent.table.captured.clear();
  std::string& pick = incumbent.table.rows.at(0).pipeline;
  pick.replace(pick.find("splits=4,"), 9, "splits=64,");
  settings_.options.incumbents = {incumbent};
  settings_.command = "sweep --incumbent table";
  sweep(script(), settings_);
  auto found = pipelines();
  EXPECT_EQ(found["b4"].size(), 4U);
  EXPECT_TRUE(found["b4"].contains(pick));
  EXPECT_EQ(found["b6"].size(), 3U) << "there alone";
}

TEST_F(SiblingsAlone, WhatAShapeCannotRunIsLeftOutThere) {
  settings_.config =
      "variants: {include: [prepare/fused, attention/register_dealt, attention/mma, combine/gated, "
      "combine/dealt], tunables: {attention/register_dealt: {tokens: [16], depth: [2], warps: [4], "
      "waves: [1], splits: [128], gate: [0]}, attention/mma: {tile_kv: [64], warps: [4], "
      "heads_per_cta: [1], partial_bf16: [0], cluster: [1], ticket: [0], gate: [0], splits: "
      "[16]}}}\npipelines: {top_k: 1, pdl: [off]}\n";
  settings_.shapes =
      "  - {batch: 2, q_len: 1, context: 4096, pool_bytes: 1MiB}\n"
      "  - {batch: [4, 2048], q_len: 1, context: 4096, pool_bytes: 1MiB, race: siblings}\n";
  Script script;
  script.ns = [](const Turn& turn) {
    return turn.chain.find("register_dealt") != std::string::npos ? 10'000 : 20'000;
  };
  EXPECT_EQ(exit_code(sweep(script, settings_).result), ExitCode::kOk);
  const std::set<std::string> shapes = timed_at("register_dealt");
  ASSERT_EQ(shapes.size(), 2U);
  EXPECT_TRUE(shapes.begin()->starts_with("b2_"));
  EXPECT_TRUE(shapes.rbegin()->starts_with("b4_"));
}

TEST_F(SiblingsAlone, PlanSkipsEachCandidateAndNothingIsCompiledForThemAlone) {
  const Spec config = spec(settings_);
  const Plan made = plan(settings_, config);
  int skipped = 0;
  for (const PlanItem& item : made.items) {
    const bool alone = is_alone(key(made.shapes[item.shape].shape));
    EXPECT_EQ(item.action, alone ? Action::kSkip : Action::kMeasure);
    EXPECT_EQ(item.reason, alone ? kAmongSiblings : kNew);
    EXPECT_TRUE(may_run(item));
    skipped += alone ? 1 : 0;
  }
  EXPECT_GT(skipped, 0);
  settings_.shapes = "  - {batch: [2, 8], q_len: 1, context: 4096, pool_bytes: 1MiB}\n";
  EXPECT_EQ(measured_candidates(made), measured_candidates(plan(settings_, spec(settings_))));
}

TEST_F(SiblingsAlone, AnEmittedRowSaysThatSiblingsAloneRacedForIt) {
  sweep(script(), settings_);
  const db::Store store = open();
  const MeasuredRun measured = measured_run(store, *store.last_run(), "cold");
  DispatchTable table;
  table.base = store.last_run()->base;
  table.rules = dispatch_rules({{"batch", "log2"}, {"context", "log2"}}, 1.6);
  fill_rows(table, measured.shapes, std::nullopt);
  fill_losses(table, measured.shapes, true);
  tell_races(table, spec(settings_));
  const std::string text = dispatch_json(table, "hash");
  const nlohmann::json document = nlohmann::json::parse(text);
  ASSERT_EQ(document["entries"].size(), 4U);
  for (const nlohmann::json& row : document["entries"]) {
    EXPECT_EQ(row.value("raced", ""), is_alone(row["shape"]) ? "siblings" : "") << row["shape"];
  }
  const auto read = parse_dispatch_json(text);
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(dispatch_json(read->table, "hash"), text);
  nlohmann::json other = document;
  other["entries"][1]["raced"] = "all";
  EXPECT_EQ(parse_dispatch_json(other.dump()).error(),
            "entries[1].raced: a row raced among siblings, or does not say so");
}

}  // namespace
}  // namespace muse::tuner
