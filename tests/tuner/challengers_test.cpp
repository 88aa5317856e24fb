// SPDX-License-Identifier: Apache-2.0
// Pipelines that race where their spans did not bring them up: winners of siblings, answers of
// earlier tables.
#include "tuner/challengers.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/tuner/mocked_sweep.h"
#include "tuner/dispatch_rows.h"
#include "tuner/step_races.h"
#include "tuner/stored_selection.h"

namespace muse::tuner {
namespace {

using fakes::Script;
using fakes::Turn;

Chain chain(const std::string& text) { return *Registry::global().parse_chain(text); }

const Chain kA = chain("prepare/scalar + attention/scalar + combine/scalar + gate/scalar");
const Chain kB = chain("prepare/scalar + attention/scalar + combine/scalar + gate/simd");

Shape shape(int64_t batch, int64_t context) {
  Shape shape;
  shape.problem.batch = batch;
  shape.lengths.context = context;
  return shape;
}

constexpr auto kCold = profiler::Regime::kCold;

/// A shape where the first of these won and the others came close.
CloseRace race(const std::vector<Chain>& chains) { return {chains.front(), chains}; }

TEST(Siblings, AWinnerOfAnotherBatchOrContextRacesHereToo) {
  Siblings siblings;
  siblings.add(shape(8, 4096), kCold, race({kB}));
  siblings.add(shape(8, 32768), kCold, race({kA}));
  siblings.add(shape(1, 65536), kCold, race({kB}));
  siblings.add(shape(1, 65536), kCold, {});
  for (const Shape& here : {shape(8, 4096), shape(128, 512)}) {
    EXPECT_EQ(siblings.chains(here, kCold), (std::vector<Chain>{kA, kB})) << "each once, by key";
  }
}

TEST(Siblings, AnotherStructureQLenOrRegimeIsNoSibling) {
  Siblings siblings;
  siblings.add(shape(8, 4096), kCold, race({kA}));
  EXPECT_TRUE(siblings.chains(shape(8, 4096), profiler::Regime::kWarm).empty());
  using Change = void (*)(Problem&);
  for (const Change change : std::initializer_list<Change>{
           [](Problem& p) { p.q_len = 2; }, [](Problem& p) { p.num_q_heads = 32; },
           [](Problem& p) { p.num_kv_heads = 4; }, [](Problem& p) { p.head_dim = 128; },
           [](Problem& p) { p.page_size = 16; }, [](Problem& p) { p.window = 2048; },
           [](Problem& p) { p.rope_theta = 1e4; }, [](Problem& p) { p.kv_scale = 0.5; }}) {
    Shape other = shape(8, 4096);
    change(other.problem);
    EXPECT_TRUE(siblings.chains(other, kCold).empty()) << key(other);
  }
}

TEST(Siblings, WindowsOfAnySizeAndLargePagesAreOfOneStructure) {
  Shape one = shape(8, 4096), other = shape(4, 4096);
  one.problem.window = 2048;
  other.problem.window = 512;
  one.problem.page_size = 64;
  other.problem.page_size = 128;
  Siblings siblings;
  siblings.add(one, kCold, race({kA}));
  EXPECT_EQ(siblings.chains(other, kCold), std::vector<Chain>{kA});
}

/// kB behind another prepare.
const Chain kLikeB =
    chain("prepare/simd:threads=1 + attention/scalar + combine/scalar + gate/simd");
const Chain kAlsoLikeB =
    chain("prepare/simd:threads=2 + attention/scalar + combine/scalar + gate/simd");

TEST(Siblings, OfThoseThatDifferInTheirPrepareAloneTheOneThatWasCloseMostOftenRaces) {
  Siblings siblings;
  siblings.add(shape(1, 4096), kCold, race({kA, kAlsoLikeB, kLikeB}));
  siblings.add(shape(2, 4096), kCold, race({kA, kB, kAlsoLikeB}));
  EXPECT_EQ(siblings.chains(shape(8, 4096), kCold), (std::vector<Chain>{kA, kAlsoLikeB}));
  siblings.add(shape(4, 4096), kCold, race({kA, kLikeB}));
  EXPECT_EQ(siblings.chains(shape(8, 4096), kCold), (std::vector<Chain>{kA, kLikeB}))
      << "as often as the other one: by key";
}

TEST(Siblings, EveryWinnerRacesAsItIsWhateverStandsForIt) {
  Siblings siblings;
  siblings.add(shape(1, 4096), kCold, race({kB, kLikeB}));
  siblings.add(shape(2, 4096), kCold, race({kA, kLikeB}));
  EXPECT_EQ(siblings.chains(shape(8, 4096), kCold), (std::vector<Chain>{kA, kB, kLikeB}));
}

TEST(Siblings, CloseIsWithinEightPercentOfTheWinner) {
  const Chain other = chain("prepare/scalar + attention/simd + combine/scalar + gate/scalar");
  Settled settled;
  settled.winner.chain = key(kB);
  settled.winner.selection.median_ns = 1000;
  settled.best = {{kLikeB, 999, true}, {kB, 1000, false}, {other, 1079, false}};
  const CloseRace close = close_race(settled);
  EXPECT_EQ(close.winner, kB);
  EXPECT_EQ(close.close, (std::vector<Chain>{kLikeB, kB, other}));
  settled.best[2].median_ns = 1081;
  EXPECT_EQ(close_race(settled).close, (std::vector<Chain>{kLikeB, kB}));
  EXPECT_TRUE(close_race({}).winner.empty()) << "nothing valid";
  EXPECT_TRUE(close_race({}).close.empty());
}

TEST(Siblings, OfManyThatCameCloseTheFastestTwelveAreWorthItWhateverTheirPrepare) {
  Settled settled;
  std::vector<Chain> tiles;
  for (const char* splits : {"1", "4"}) {
    for (const char* values :
         {"threads=1,tile_kv=32", "threads=1,tile_kv=64", "threads=1,tile_kv=128",
          "threads=2,tile_kv=32", "threads=2,tile_kv=64", "threads=2,tile_kv=128",
          "threads=4,tile_kv=32", "threads=4,tile_kv=64", "threads=4,tile_kv=128"}) {
      const std::string behind = std::string(" + attention/simd:partial_bits=32,splits=") + splits +
                                 "," + values + " + combine/scalar + gate/scalar";
      tiles.push_back(chain("prepare/scalar" + behind));
      settled.best.push_back({tiles.back(), 1000, false});
      settled.best.push_back({chain("prepare/simd:threads=1" + behind), 1000, false});
    }
  }
  settled.winner.chain = key(tiles.back());
  settled.winner.selection.median_ns = 1000;
  const std::vector<Chain> close = close_race(settled).close;
  ASSERT_EQ(close.size(), 24U) << "twelve in two forms each";
  EXPECT_EQ(std::count(close.begin(), close.end(), tiles.back()), 1) << "the winner is among them";
  EXPECT_EQ(std::count(close.begin(), close.end(), tiles[11]), 0) << "slower than eleven others";
}

Incumbent incumbent() {
  Incumbent incumbent{.guard = dispatch::Guard::kTuned};
  DispatchTable& table = incumbent.table;
  table.base = key(kA);
  table.rules = dispatch_rules({{"batch", "log2"}, {"context", "log2"}}, 1.6);
  table.rows = {{.shape = shape(8, 4096), .pipeline = key(kB), .median_ns = 1}};
  table.captured = {{.shape = shape(8, 4096), .pipeline = key(kA), .median_ns = 1}};
  return incumbent;
}

TEST(Challengers, ATableAnswersByBothOfItsTables) {
  const Incumbent table = incumbent();
  EXPECT_EQ(answers(table, shape(8, 4096)), (std::vector{key(kA), key(kB)}));
  EXPECT_EQ(answers(table, shape(8, 6000)), (std::vector{key(kA), key(kB)})) << "near";
}

TEST(Challengers, ABaseByDefaultIsNoAnswer) {
  Incumbent table = incumbent();
  Shape windowed = shape(8, 4096);
  windowed.problem.window = 2048;
  EXPECT_TRUE(answers(table, windowed).empty());
  table.guard = dispatch::Guard::kForeign;
  EXPECT_TRUE(answers(table, shape(8, 4096)).empty());
}

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

// --- answers that do not race ------------------------------------------------------------------

std::vector<LeftOut> left_out_by(const std::string& variants, const Filter& filter = {}) {
  const auto spec = parse_spec(
      "schema: 1\nshapes:\n  - {batch: [8, 16], q_len: 1, window: 0, rope_theta: 0, context: 4096, "
      "pool_bytes: 1MiB}\nvariants: " +
          variants + "\n",
      "c.yaml", Registry::global());
  DeviceClass host;
  host.host = true;
  const auto plan = make_plan(spec.value(), Registry::global(), host, filter, {});
  return left_out(incumbent(), plan.value(), *spec);
}

TEST(LeftOut, NamesEachAnswerOnceWithItsCandidatesThatTheConfigExcludes) {
  const std::string simd = key(kB.back());
  const std::string both = "{include: ['*/scalar', gate/simd]";
  for (const std::string& variants :
       {std::string("{include: ['*/scalar']}"), both + ", tunables: {gate/simd: {threads: [2]}}}",
        both + ", constraints: [\"threads < 1\"]}"}) {
    const std::vector<LeftOut> found = left_out_by(variants);
    ASSERT_EQ(found.size(), 1U) << variants;
    EXPECT_EQ(found[0].pipeline, key(kB));
    EXPECT_EQ(found[0].candidates, std::vector{simd}) << "the base's are never excluded";
  }
  EXPECT_TRUE(left_out_by("{include: ['*/scalar', gate/simd]}").empty());
}

TEST(LeftOut, AFilterExcludesTooButNotTheBase) {
  const std::string all = "{include: ['*/scalar', gate/simd]}";
  const std::vector<LeftOut> by_name = left_out_by(all, {.variant_glob = "*/scalar"});
  ASSERT_EQ(by_name.size(), 1U);
  EXPECT_EQ(by_name[0].pipeline, key(kB));
  const std::vector<LeftOut> by_stage = left_out_by(all, {.stage = Stage::kGate});
  ASSERT_EQ(by_stage.size(), 1U) << "the base races all the same";
  EXPECT_EQ(by_stage[0].candidates.size(), 3U) << "what is behind the gate is kept";
}

}  // namespace
}  // namespace muse::tuner
