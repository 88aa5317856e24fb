// SPDX-License-Identifier: Apache-2.0
// Pipelines that race where their spans did not bring them up: winners of sibling shapes, answers
// of earlier tables.
#include "tuner/challengers.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/tuner/mocked_sweep.h"
#include "tuner/dispatch_rows.h"

namespace muse::tuner {
namespace {

using fakes::Script;
using fakes::Turn;

Chain chain(const std::string& text) { return *Registry::global().parse_chain(text); }

const Chain kA = chain("prepare/scalar + attention/scalar + combine/scalar + gate/scalar");
const Chain kB = chain("prepare/scalar + attention/scalar + combine/scalar + gate/simd");

DecidedStep step(int64_t batch, int64_t context, const Chain& winner) {
  DecidedStep step;
  step.shape.problem.batch = batch;
  step.shape.lengths.context = context;
  step.raced = {winner};
  step.winner = winner;
  return step;
}

TEST(Challengers, AWinnerOfAnotherContextRacesHereToo) {
  const auto extra = sibling_winners({step(8, 4096, kA), step(8, 32768, kB), step(8, 65536, kA)});
  EXPECT_EQ(extra[0], std::vector<Chain>{kB});
  EXPECT_EQ(extra[1], std::vector<Chain>{kA});
  EXPECT_EQ(extra[2], std::vector<Chain>{kB});
}

TEST(Challengers, AnotherBatchWindowOrRegimeIsNoSibling) {
  DecidedStep windowed = step(8, 32768, kB), warm = windowed;
  windowed.shape.problem.window = 2048;
  warm.regime = profiler::Regime::kWarm;
  for (const auto& extra :
       sibling_winners({step(8, 4096, kA), step(4, 4096, kB), windowed, warm})) {
    EXPECT_TRUE(extra.empty());
  }
}

TEST(Challengers, WhatHasRacedOrWasNotDecidedIsLeftOut) {
  DecidedStep knows = step(8, 4096, kA), nothing = step(8, 65536, {});
  knows.raced.push_back(kB);
  const auto extra = sibling_winners({knows, step(8, 32768, kB), nothing});
  EXPECT_TRUE(extra[0].empty());
  EXPECT_EQ(extra[1], std::vector<Chain>{kA});
  EXPECT_EQ(extra[2], (std::vector<Chain>{kA, kB}));
}

Incumbent incumbent() {
  Incumbent incumbent{.guard = dispatch::Guard::kTuned};
  DispatchTable& table = incumbent.table;
  table.base = key(kA);
  table.rules = dispatch_rules({{"batch", "log2"}, {"context", "log2"}}, 1.6);
  table.rows = {{.shape = step(8, 4096, kB).shape, .pipeline = key(kB), .median_ns = 1}};
  table.captured = {{.shape = step(8, 4096, kA).shape, .pipeline = key(kA), .median_ns = 1}};
  return incumbent;
}

TEST(Challengers, ATableAnswersByBothOfItsTables) {
  const Incumbent table = incumbent();
  EXPECT_EQ(answers(table, step(8, 4096, {}).shape), (std::vector{key(kA), key(kB)}));
  EXPECT_EQ(answers(table, step(8, 6000, {}).shape), (std::vector{key(kA), key(kB)})) << "near";
}

TEST(Challengers, ABaseByDefaultIsNoAnswer) {
  Incumbent table = incumbent();
  DecidedStep windowed = step(8, 4096, {});
  windowed.shape.problem.window = 2048;
  EXPECT_TRUE(answers(table, windowed.shape).empty());
  table.guard = dispatch::Guard::kForeign;
  EXPECT_TRUE(answers(table, step(8, 4096, {}).shape).empty());
}

/// Two contexts of one key, each with an attention of its own that is best there.
class Siblings : public MockedSweep {
 protected:
  Siblings() {
    settings_.config =
        "variants: {include: [prepare/fused, attention/mma, combine/gated], tunables: "
        "{attention/mma: {tile_kv: [64], warps: [4], heads_per_cta: [1], partial_bf16: [0], "
        "cluster: [1], ticket: [0], gate: [0], splits: [8, 32, 64]}, prepare/fused: {threads: "
        "[128]}, combine/gated: {threads: [128], lanes: [32], splits_per_step: [4]}}}\n"
        "pipelines: {top_k: 1, pdl: [off]}\n";
    settings_.shapes =
        "  - {batch: 2, q_len: 1, window: 0, rope_theta: 0, context: [4096, 32768], pool_bytes: "
        "1MiB}\n";
    settings_.filter = {};
  }
  static Script script() {
    Script script;
    script.ns = [](const Turn& turn) {
      const bool is_long = turn.shape.find("_t32768_") != std::string::npos;
      double ns = turn.chain.find("attention/") == std::string::npos ? 5'000 : 20'000;
      if (turn.chain.find(is_long ? "splits=64" : "splits=8,") != std::string::npos) ns *= 0.8;
      return ns;
    };
    return script;
  }
  /// Shapes in which a pipeline with this attention was timed.
  std::set<std::string> timed_at(const std::string& splits) const {
    std::set<std::string> shapes;
    const db::Store store = open();
    for (const auto& one : store.run_trials(store.last_run()->id)) {
      if (one.candidate.span == "prepare..gate" && one.median_ns &&
          one.candidate.key.find(splits) != std::string::npos) {
        shapes.insert(one.problem.key);
      }
    }
    return shapes;
  }
  Settings settings_;
};

TEST_F(Siblings, EachWinnerIsTimedAtEveryContextOfItsKey) {
  const Swept swept = sweep(script(), settings_);
  EXPECT_EQ(timed_at("splits=8,").size(), 2U);
  EXPECT_EQ(timed_at("splits=64").size(), 2U);
  std::map<std::string, std::string> chosen;
  for (const Winner& winner : swept.result.winners) {
    if (winner.span == "prepare..gate") chosen[winner.shape] = winner.chain;
  }
  ASSERT_EQ(chosen.size(), 2U) << "one decision for each shape, however often it raced";
  for (const auto& [shape, winner] : chosen) {
    const bool is_long = shape.find("_t32768_") != std::string::npos;
    EXPECT_NE(winner.find(is_long ? "splits=64" : "splits=8,"), std::string::npos) << winner;
  }
  const db::Store store = open();
  const MeasuredRun measured = measured_run(store, *store.last_run(), "cold");
  DispatchTable table;
  table.base = store.last_run()->base;
  fill_rows(table, measured.shapes, std::nullopt);
  ASSERT_EQ(table.captured.size(), 1U);
  EXPECT_EQ(table.captured[0].over.size(), 2U);
}

TEST_F(Siblings, CountsEveryTrialOnce) {
  const Swept swept = sweep(script(), settings_);
  int counted = 0;
  for (const auto& [outcome, count] : swept.result.outcomes) counted += count;
  const db::Store store = open();
  EXPECT_EQ(counted, static_cast<int>(store.run_trials(swept.run).size()));
  EXPECT_EQ(swept.result.measured, counted);
}

TEST_F(Siblings, ASecondSweepOfTheSameMeasuresNothing) {
  const Swept first = sweep(script(), settings_);
  const Swept second = sweep(script(), settings_);
  EXPECT_NE(first.run, second.run);
  EXPECT_EQ(second.result.measured, 0);
  EXPECT_EQ(second.result.rounds, 0);
}

TEST_F(Siblings, WhatAnEarlierTableAnswersRacesThoughNoSpanBringsItUp) {
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

}  // namespace
}  // namespace muse::tuner
