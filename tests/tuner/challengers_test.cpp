// SPDX-License-Identifier: Apache-2.0
// Which pipelines race where their spans did not bring them up: what was good on siblings, answers
// of earlier tables.
#include "tuner/challengers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tuner/step_races.h"
#include "variants/registry.h"

namespace muse::tuner {
namespace {

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
      << "as often as the other one, and as often ahead: by key";
  siblings.add(shape(16, 4096), kCold, race({kA, kAlsoLikeB, kLikeB}));
  EXPECT_EQ(siblings.chains(shape(8, 4096), kCold), (std::vector<Chain>{kA, kAlsoLikeB}))
      << "more often ahead";
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
