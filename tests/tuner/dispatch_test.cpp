// SPDX-License-Identifier: Apache-2.0
// Dispatch without compiling what was emitted: unseen shapes, foreign devices, which pipelines a
// table names, and what fewer of them cost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "tests/fakes/command.h"
#include "tests/tuner/stored_sweep.h"
#include "tuner/dispatch_index.h"
#include "tuner/dispatch_rows.h"
#include "tuner/records.h"
#include "tuner/regret.h"

namespace muse::tuner {
namespace {

using dispatch::Choice;
using dispatch::Guard;
using dispatch::Key;
using dispatch::Match;
using dispatch::Pipeline;
using dispatch::Why;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Key key_of(int64_t batch, int64_t context, int64_t window = 0) {
  Key key;
  key.batch = batch;
  key.context = context;
  key.window = window;
  return key;
}

/// Batches 1, 2, 4 and 8 at context 4096, each with a pipeline of its own: 1 to 4.
class Unseen : public testing::Test {
 protected:
  Unseen() {
    std::vector<dispatch::Row> rows;
    for (int i = 0; i < 4; ++i) {
      dispatch::Row row{};
      row.key = key_of(int64_t{1} << i, 4096);
      row.pipeline = static_cast<Pipeline>(i + 1);
      row.status = row.shape = row.date = "";
      rows.push_back(row);
    }
    index_ = index_rows(rows, true);
  }
  template <class Feasible = dispatch::Anything>
  Choice find(const Key& key, const Feasible& feasible = {}) const {
    return dispatch::find(index_.table(), rules_, key, Guard::kTuned, feasible);
  }
  static int number(const Choice& choice) { return static_cast<int>(choice.pipeline); }

  DispatchIndex index_;
  dispatch::Rules rules_ = dispatch_rules({{"batch", "log2"}, {"context", "log2"}}, 1.6);
};

TEST_F(Unseen, ExactIsTunedAndBetweenKeysTheNearerByRatio) {
  for (int i = 0; i < 4; ++i) {
    const Choice exact = find(key_of(int64_t{1} << i, 4096));
    EXPECT_EQ(exact.match, Match::kExact);
    EXPECT_EQ(number(exact), i + 1);
    EXPECT_EQ(exact.distance, 0);
  }
  const Choice three = find(key_of(3, 4096));  // 4 / 3 is less than 3 / 2
  EXPECT_EQ(three.match, Match::kNear);
  EXPECT_EQ(number(three), 3);
  EXPECT_NEAR(three.distance, std::log2(4.0 / 3), 1e-4);
  EXPECT_EQ(number(find(key_of(9, 4096))), 4);
  // Axes add up.
  const Choice both = find(key_of(9, 8192));
  EXPECT_EQ(number(both), 4);
  EXPECT_NEAR(both.distance, std::log2(9.0 / 8) + 1, 1e-4);
}

TEST_F(Unseen, FarAwayIsTheBaseAndSaysSo) {
  const std::pair<Key, double> cases[] = {{key_of(4096, 4096), 9},
                                          {key_of(25, 4096), std::log2(25.0 / 8)},
                                          {key_of(8, 16384), 2},
                                          {key_of(32, 1024), 4}};
  for (const auto& [key, distance] : cases) {
    const Choice far = find(key);
    EXPECT_NEAR(far.distance, distance, 1e-4);
    EXPECT_EQ(far.match, Match::kBase);
    EXPECT_EQ(far.why, Why::kTooFar);
    EXPECT_EQ(far.pipeline, dispatch::kBase);
    EXPECT_EQ(far.row, nullptr);
  }
  Key drafts = key_of(8, 4096);
  drafts.q_len = 2;
  EXPECT_EQ(find(drafts).why, Why::kTooFar);
  EXPECT_EQ(find(drafts).distance, 0) << "it is to be equal";
  EXPECT_EQ(find(key_of(8, 4096, 2048)).why, Why::kOtherStructure);
  Key paged = key_of(8, 4096);
  paged.page_size = 64;
  EXPECT_EQ(find(paged).why, Why::kOtherStructure);
}

TEST_F(Unseen, SizesThatAreNoneAreRefused) {
  for (const int64_t size : {int64_t{0}, int64_t{-1}, INT64_MAX, INT64_MIN, int64_t{1} << 31}) {
    for (const Key& key : {key_of(size, 4096), key_of(8, size)}) {
      EXPECT_EQ(find(key).match, Match::kInvalid) << size;
      EXPECT_EQ(find(key).pipeline, dispatch::kBase);
    }
  }
  Key heads = key_of(8, 4096);
  heads.num_kv_heads = 3;
  EXPECT_EQ(find(heads).match, Match::kInvalid) << "heads that do not divide";
  Key drafts = key_of(8, 4);
  drafts.q_len = 5;
  EXPECT_EQ(find(drafts).match, Match::kInvalid) << "the context counts the new tokens";
}

TEST_F(Unseen, WhatTheCallerCannotRunIsPassedOverForTheNextBest) {
  const auto without = [&](std::initializer_list<int> refused) {
    return find(key_of(8, 4096), [=](Pipeline p) noexcept {
      return std::find(refused.begin(), refused.end(), static_cast<int>(p)) == refused.end();
    });
  };
  EXPECT_EQ(number(without({})), 4);
  const Choice next = without({4});
  EXPECT_EQ(number(next), 3);
  EXPECT_EQ(next.match, Match::kNear);
  const Choice none = without({4, 3});  // 2 is two doublings away, beyond the limit
  EXPECT_EQ(none.match, Match::kBase);
  EXPECT_EQ(none.why, Why::kInfeasible);
}

TEST(DispatchIndex, WindowsOfOneClassLendEachOtherRowsButNoExactMatch) {
  dispatch::Row row{};
  row.key = key_of(8, 1024, 1024);
  row.pipeline = static_cast<Pipeline>(1);
  const DispatchIndex index = index_rows({row}, true);
  const dispatch::Rules rules = dispatch_rules({{"batch", "log2"}, {"context", "log2"}}, 1.6);
  const auto find = [&](const Key& key) {
    return dispatch::find(index.table(), rules, key, Guard::kTuned, dispatch::Anything{});
  };
  EXPECT_EQ(find(key_of(8, 500000, 1024)).match, Match::kExact) << "no query sees further";
  const Choice wider = find(key_of(8, 500000, 2048));
  EXPECT_EQ(wider.match, Match::kNear);
  EXPECT_NEAR(wider.distance, 1, 1e-4);
  EXPECT_EQ(find(key_of(8, 1024, 2048)).match, Match::kNear) << "as much context, another window";
}

TEST(DispatchIndex, OfEquallyNearRowsTheSamePageSizeThenTheSameWindowThenTheSmallerOne) {
  std::vector<dispatch::Row> rows;
  for (const int64_t page_size : {64, 128}) {
    for (const int64_t window : {4096, 8192}) {
      dispatch::Row row{};
      row.key = key_of(8, 1024, window);
      row.key.page_size = page_size;
      row.pipeline = static_cast<Pipeline>(rows.size());
      rows.push_back(row);
    }
  }
  const DispatchIndex index = index_rows(rows, true);
  const dispatch::Rules rules = dispatch_rules({{"batch", "log2"}, {"context", "log2"}}, 1.6);
  const auto find = [&](int64_t page_size, int64_t window) {
    Key key = key_of(8, 1000, window);
    key.page_size = page_size;
    const Choice choice =
        dispatch::find(index.table(), rules, key, Guard::kTuned, dispatch::Anything{});
    EXPECT_EQ(choice.match, Match::kNear);
    return static_cast<int>(choice.pipeline);
  };
  EXPECT_EQ(find(128, 8192), 3);
  EXPECT_EQ(find(128, 2048), 2);
  EXPECT_EQ(find(256, 8192), 1);
  EXPECT_EQ(find(256, 2048), 0);
}

TEST(DispatchIndex, RefusesRowsUnderNoKey) {
  dispatch::Row row{};
  row.key = key_of(0, 4096);
  EXPECT_THROW(index_rows({row}, true), std::invalid_argument);
  row.key = key_of(1, 4096, 2048);
  EXPECT_THROW(index_rows({row}, true), std::invalid_argument) << "context beyond the window";
}

// --- which device ----------------------------------------------------------------------------

constexpr dispatch::Device kH200{"NVIDIA H200", "sm_90a",     false, 90,
                                 132,           150754820096, 13000, 13000};

template <class Change>
Guard here(const Change& change) {
  dispatch::Device device = kH200;
  change(device);
  return dispatch::guard(kH200, device);
}

TEST(Guards, HaveOneTierForEachDifference) {
  using D = dispatch::Device;
  EXPECT_EQ(here([](D&) {}), Guard::kTuned);
  EXPECT_EQ(here([](D& d) { d.driver_version = 13010; }), Guard::kOtherDriver);
  EXPECT_EQ(here([](D& d) { d.compiler_version = 12090; }), Guard::kOtherCompiler);
  EXPECT_EQ(here([](D& d) { d.compiler_version = 12090, d.driver_version = 1; }),
            Guard::kOtherCompiler)
      << "the weaker of two";
  EXPECT_EQ(here([](D& d) { d.memory_bytes -= 1 << 28; }), Guard::kTuned)
      << "drivers keep different amounts back";
  EXPECT_EQ(here([](D& d) { d.model = "NVIDIA H100", d.memory_bytes = 85899345920; }),
            Guard::kNearDevice);
  EXPECT_EQ(here([](D& d) { d.sm_count = 126; }), Guard::kNearDevice);
  EXPECT_EQ(here([](D& d) { d.sm_count = 114; }), Guard::kForeign);
}

TEST(Guards, AnotherCardALabelAloneAndFieldsThatAreMissing) {
  using D = dispatch::Device;
  EXPECT_EQ(here([](D& d) { d.cc = 100, d.isa = "sm_100a"; }), Guard::kForeign);
  EXPECT_EQ(here([](D& d) { d.cc = 89; }), Guard::kForeign);
  EXPECT_EQ(here([](D& d) { d.model = "NVIDIA H200 NVL"; }), Guard::kNearDevice)
      << "same capability and SM count under another label: a neighbour";
  for (const auto& blank : {+[](D& d) { d.model = nullptr; }, +[](D& d) { d.model = ""; },
                            +[](D& d) { d.isa = nullptr; }, +[](D& d) { d.isa = ""; },
                            +[](D& d) { d.sm_count = 0; }, +[](D& d) { d.cc = 0; }}) {
    EXPECT_EQ(here(blank), Guard::kForeign);
    dispatch::Device device = kH200;
    blank(device);
    EXPECT_EQ(dispatch::guard(device, device), Guard::kForeign) << "unknown equals nothing";
  }
  EXPECT_EQ(here([](D& d) { d.memory_bytes = INT64_MIN; }), Guard::kNearDevice);
  EXPECT_EQ(here([](D& d) { d.sm_count = INT32_MIN; }), Guard::kForeign);
}

TEST(Guards, ASliceOfACardDoesNotUseTheRowsOfAWholeOne) {
  EXPECT_EQ(here([](dispatch::Device& d) {
              d.model = "NVIDIA H200 MIG 3g.71gb", d.sm_count = 60, d.memory_bytes /= 2;
            }),
            Guard::kForeign);
}

TEST_F(Unseen, AForeignDeviceGetsTheBaseAndANeighbourIsTold) {
  const auto on = [&](Guard tier) {
    return dispatch::find(index_.table(), rules_, key_of(8, 4096), tier, dispatch::Anything{});
  };
  EXPECT_EQ(on(Guard::kForeign).match, Match::kBase);
  EXPECT_EQ(on(Guard::kForeign).why, Why::kForeignDevice);
  EXPECT_EQ(on(Guard::kNearDevice).match, Match::kOtherDevice);
  EXPECT_EQ(number(on(Guard::kNearDevice)), 4);
  EXPECT_EQ(on(Guard::kOtherDriver).match, Match::kExact);
  EXPECT_EQ(on(Guard::kOtherDriver).guard, Guard::kOtherDriver);
}

// --- regret ----------------------------------------------------------------------------------

TEST(LeastWorstRegret, TakesWhatIsNowhereFarBehind) {
  EXPECT_EQ(least_worst_regret({{10, 30}, {12, 22}, {20, 20}}), 1u);
  EXPECT_EQ(least_worst_regret({{10, kInfinity}, {12, 22}}), 1u);
  EXPECT_EQ(least_worst_regret({{10, 30}, {12, 22}, {20, 20}}, {0, 2}), 0u);
  EXPECT_EQ(least_worst_regret({{10, kInfinity}, {12, kInfinity}}), 0u)
      << "what nobody was measured on decides nothing";
}

TEST(Regret, IsAgainstTheBestOfEachShape) {
  const Times times{{10, 30, 7}, {12, 20, 7}};
  EXPECT_DOUBLE_EQ(regret(times, {0}).worst, 0.5);
  EXPECT_NEAR(regret(times, {0}).mean, std::cbrt(1.5) - 1, 1e-12);
  EXPECT_DOUBLE_EQ(regret(times, {0, 1}).worst, 0);
  EXPECT_DOUBLE_EQ(regret(times, {0, 1}).mean, 0);
}

/// Every pipeline is the best somewhere, or nearly; some are not measured everywhere.
Times random_times(std::mt19937_64& random, size_t candidates, size_t shapes) {
  Times times(candidates, std::vector<double>(shapes));
  for (size_t c = 0; c < candidates; ++c) {
    for (double& time : times[c]) {
      time = 100 + static_cast<double>(random() % 60);
      if (c > 0 && random() % 5 == 0) time = kInfinity;
    }
  }
  return times;
}

bool within(const Regret& r, const SubsetLimits& limits) {
  return r.worst <= limits.worst && r.mean <= limits.mean;
}

/// The least number of candidates, the first among them, that keep the limits; 0 = not even all do.
size_t fewest(const Times& times, const SubsetLimits& limits) {
  size_t least = 0;
  for (uint32_t set = 1; set < 1u << times.size(); set += 2) {
    std::vector<size_t> chosen;
    for (size_t c = 0; c < times.size(); ++c) {
      if (set >> c & 1) chosen.push_back(c);
    }
    if ((least == 0 || chosen.size() < least) && within(regret(times, chosen), limits)) {
      least = chosen.size();
    }
  }
  return least;
}

TEST(FewCandidates, KeepTheLimitsWithNearlyAlwaysTheFewestThatCan) {
  std::mt19937_64 random(3);
  int cases = 0, more = 0;
  for (int i = 0; i < 600; ++i) {
    const Times times = random_times(random, 9, 3 + random() % 8);
    SubsetLimits limits;
    if (i % 3 != 0) limits.worst = 0.02 * static_cast<double>(random() % 12);
    if (i % 3 != 1) limits.mean = 0.01 * static_cast<double>(random() % 10);
    const std::vector<size_t> chosen = few_candidates(times, 0, limits);
    const size_t best = fewest(times, limits);
    ASSERT_GT(best, 0u) << "all of them have no regret";
    ASSERT_TRUE(within(regret(times, chosen), limits)) << i;
    ASSERT_EQ(chosen.front(), 0u);
    ASSERT_GE(chosen.size(), best);
    ASSERT_LE(chosen.size(), best + 1) << i;
    ++cases;
    more += chosen.size() > best ? 1 : 0;
  }
  EXPECT_LE(more * 20, cases) << "one too many in more than 5 %";
}

TEST(FewCandidates, AFixedNumberIsNearlyTheBestOfThatSize) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 300; ++i) {
    const Times times = random_times(random, 9, 8);
    SubsetLimits limits;
    limits.variants = 1 + random() % 5;
    const std::vector<size_t> chosen = few_candidates(times, 0, limits);
    ASSERT_LE(chosen.size(), limits.variants);
    double least = kInfinity;
    for (uint32_t set = 1; set < 1u << 9; set += 2) {
      std::vector<size_t> other;
      for (size_t c = 0; c < 9; ++c) {
        if (set >> c & 1) other.push_back(c);
      }
      if (other.size() <= limits.variants) least = std::min(least, regret(times, other).mean);
    }
    ASSERT_LE(regret(times, chosen).mean, least + 0.01) << i;
  }
}

// --- rows ------------------------------------------------------------------------------------

const std::vector<MeasuredShape> kMeasured{
    measured(shape(1, 1000), "short",
             {{"base", 200}, {"short", 100}, {"both", 104}, {"long", 150}}),
    measured(shape(1, 9000), "long", {{"base", 900}, {"short", 800}, {"both", 520}, {"long", 500}}),
    measured(shape(2, 1000), "short", {{"base", 200}, {"short", 100}, {"both", 100.2}}),
};

DispatchTable filled(const std::optional<std::vector<std::string>>& among) {
  DispatchTable table;
  table.base = "base";
  fill_rows(table, kMeasured, among);
  return table;
}

TEST(DispatchRows, OneChoiceForEveryContextLosesLeastAtWorst) {
  const DispatchTable table = filled(std::nullopt);
  ASSERT_EQ(table.rows.size(), 3u);
  EXPECT_EQ(table.rows[0].pipeline, "short");
  EXPECT_EQ(table.regret.worst, 0);
  ASSERT_EQ(table.captured.size(), 2u);
  const DispatchRow& both = table.captured[0];
  EXPECT_EQ(both.pipeline, "both");
  EXPECT_EQ(both.shape, shape(1, 1000)) << "where most is lost: 4 % of 100 and of 500";
  EXPECT_NEAR(both.regret_pct, 4, 1e-9);
  EXPECT_EQ(both.low_ns, 103);
  ASSERT_EQ(both.over.size(), 2u);
  EXPECT_EQ(table.captured[1].pipeline, "short");
  EXPECT_NEAR(table.captured_regret.worst, 0.04, 1e-9);
}

TEST(DispatchRows, RaggedLengthsDecideForEveryContextOnlyWhereThereAreNoOthers) {
  Shape ragged = shape(1, 9000);
  ragged.lengths.profile = Profile::kOutlier;
  ragged.lengths.rest = 1;
  std::vector<MeasuredShape> shapes{
      measured(shape(1, 1000), "short", {{"base", 200}, {"short", 100}}),
      measured(ragged, "long", {{"base", 900}, {"long", 500}})};
  const auto captured = [&] {
    DispatchTable table;
    table.base = "base";
    fill_rows(table, shapes, std::nullopt);
    return table.captured.front();
  };
  EXPECT_EQ(captured().pipeline, "short");
  EXPECT_EQ(captured().over.size(), 1u);
  shapes.erase(shapes.begin());
  EXPECT_EQ(captured().pipeline, "long");
}

TEST(DispatchRows, NoiseAddsNoPipelineToWhatShapesChoseThemselves) {
  std::vector<MeasuredShape> shapes{
      measured(shape(1, 1000), "own", {{"base", 200}, {"own", 100}, {"a", 99.8}})};
  DispatchTable table;
  table.base = "base";
  fill_rows(table, shapes, std::nullopt);
  EXPECT_EQ(table.captured[0].pipeline, "own");
}

TEST(DispatchRows, FewerPipelinesServeWhatTheyWereMeasuredOn) {
  SubsetLimits limits;
  limits.worst = 0.05;
  const Fewer fewer = fewer_pipelines(kMeasured, "base", limits);
  EXPECT_EQ(fewer.pipelines, (std::vector<std::string>{"base", "both"}));
  EXPECT_NEAR(fewer.regret.worst, 0.04, 1e-9);
  const DispatchTable table = filled(fewer.pipelines);
  for (const DispatchRow& row : table.rows) {
    EXPECT_EQ(row.pipeline, "both");
    EXPECT_EQ(row.status, "limited");
  }
  EXPECT_NEAR(table.regret.worst, 0.04, 1e-9);
  EXPECT_EQ(filled(std::vector<std::string>{"base"}).captured[0].pipeline, "base");
}

TEST(DispatchRows, RegretIsOfWhatALookupAnswersWith) {
  // Both are found under context 2048; the longer one decides.
  std::vector<MeasuredShape> shapes{
      measured(shape(1, 4096, 2048), "a", {{"base", 300}, {"a", 100}, {"b", 110}}),
      measured(shape(1, 9000, 2048), "b", {{"base", 300}, {"a", 130}, {"b", 100}})};
  DispatchTable table;
  table.base = "base";
  fill_rows(table, shapes, std::nullopt);
  EXPECT_NEAR(table.regret.worst, 0.1, 1e-9);
}

// --- out of a database -------------------------------------------------------------------------

class StoredRun : public testing::Test, protected StoredSweep {};

TEST_F(StoredRun, GivesMediansAndIntervalsOfEveryPipeline) {
  const db::Id fast = trial(kFast, "a+b+c"), base = trial(kBase, "a+b+d+c");
  race({fast, base});
  select(fast);
  const MeasuredRun run = measured_run(store_, run_, "cold");
  ASSERT_EQ(run.shapes.size(), 1u);
  const MeasuredShape& one = run.shapes.front();
  EXPECT_EQ(one.chosen.pipeline, kFast);
  EXPECT_EQ(one.chosen.tie_set, std::vector<std::string>{kFast});
  ASSERT_EQ(one.times.size(), 2u);
  EXPECT_EQ(one.times.at(kFast).median_ns, 1003.5);
  EXPECT_EQ(one.times.at(kBase).median_ns, 2004) << "of the seven rounds that it has";
  EXPECT_GE(one.times.at(kBase).low_ns, 2001);
  EXPECT_LE(one.times.at(kBase).high_ns, 2007) << "not of the rejected round";
  EXPECT_LT(one.times.at(kBase).low_ns, one.times.at(kBase).high_ns);
  EXPECT_EQ(run.code_hashes.at(kBase), "a+b+d+c");
  EXPECT_EQ(run.toolkit, "GNU 12");
  EXPECT_TRUE(measured_run(store_, run_, "warm").shapes.empty());
}

TEST_F(StoredRun, TimesOfOtherRacesAreBesideTheChoiceByTheBase) {
  const db::Id fast = trial(kFast, "a+b+c"), base = trial(kBase, "a+b+d+c");
  const db::Id other =
      trial("prepare/scalar + attention/simd:splits=1,tile_kv=64 + gate/scalar", "e");
  race({fast, base, other});
  race({other, base}, 1.25);  // the clock has fallen; of the two it takes half as long
  select(fast, base);
  const MeasuredShape one = measured_run(store_, run_, "cold").shapes.front();
  EXPECT_EQ(one.times.at(kFast).median_ns, 1003.5);
  EXPECT_NEAR(one.times.at(kBase).median_ns, 2004, 1e-9);
  const auto& time = one.times.rbegin()->second;
  EXPECT_NEAR(time.median_ns, 1003.5, 1) << "not 1254 ns";
  EXPECT_NEAR(time.low_ns, 1001, 1);
  EXPECT_NEAR(time.high_ns, 1006, 1);
}

TEST_F(StoredRun, TimesOfTheRaceThatDecidedAreBesideTheChoiceByTheRoundsOfBoth) {
  const db::Id fast = trial(kFast, "a+b+c"), base = trial(kBase, "a+b+d+c");
  const db::Id other =
      trial("prepare/scalar + attention/simd:splits=1,tile_kv=64 + gate/scalar", "e");
  // All twice as slow as what decided, but the base, which says nothing of that.
  const db::Id race = this->race({fast, base, other}, 2);
  select(fast, base, 4008, race);
  const MeasuredShape one = measured_run(store_, run_, "cold").shapes.front();
  EXPECT_NEAR(one.times.rbegin()->second.median_ns, 3003.5, 1) << "three times as long, not six";
  EXPECT_NEAR(one.times.at(kBase).median_ns, 4008, 1e-9);
}

TEST_F(StoredRun, TimesAreAsMeasuredWhereTheBaseFailedInTheDecidingRace) {
  const db::Id fast = trial(kFast, "a+b+c"), base = trial(kBase, "a+b+d+c");
  race({fast, base});
  select(fast, base, 0);
  const MeasuredShape one = measured_run(store_, run_, "cold").shapes.front();
  EXPECT_EQ(one.times.at(kFast).median_ns, 1003.5);
  EXPECT_EQ(one.times.at(kBase).median_ns, 2004) << "not 0";
}

TEST_F(StoredRun, ATableIsOfTheSourcesThatWereMeasuredAndSaysWhereTheyChanged) {
  const auto hash = [](const std::string& chain) {
    std::string hashes = code_hash(Registry::global().parse_chain(chain).value());
    return hashes.replace(hashes.rfind('+') + 1, std::string::npos, std::string(32, 'e'));
  };
  const db::Id fast = trial(kFast, hash(kFast));
  race({fast, trial(kBase, hash(kBase))});
  select(fast);
  const fakes::CommandResult emit =
      fakes::run_command({MUSE_TUNE, "emit", "--db", (folder_ / "a.db").string(), "--out",
                          (folder_ / "out").string()});
  EXPECT_EQ(emit.exit_code, 0) << emit.err;
  EXPECT_NE(emit.err.find("other sources or another compiler than run 1 measured: gate/scalar;"),
            std::string::npos)
      << emit.err;
  const std::string header = fakes::read_file(folder_ / "out" / "muse_dispatch.h");
  EXPECT_NE(header.find("{\"gate/scalar\", 1, \"" + std::string(32, 'e') + "\"}"),
            std::string::npos);
}

}  // namespace
}  // namespace muse::tuner
