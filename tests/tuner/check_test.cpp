// SPDX-License-Identifier: Apache-2.0
// Checks of an emitted table: what is looked at, and verdicts on a device that follows a script.
#include "tuner/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tests/tuner/mocked_sweep.h"
#include "tuner/check_run.h"

namespace muse::tuner {
namespace {

Shape shape(int64_t batch, int64_t context, int64_t window = 0) {
  Shape result;
  result.problem = {.batch = batch, .q_len = 1, .window = window, .max_context = context};
  result.lengths.context = context;
  result.lengths.pool_bytes = int64_t{1} << 20;
  return result;
}

/// Its splits are what tells it from the base, which has 16.
Candidate mma(int64_t splits) {
  auto candidate = Registry::global().parse_candidate("attention/mma");
  if (!candidate) throw std::logic_error(candidate.error());
  candidate->configuration["splits"] = splits;
  return *candidate;
}
std::string attention(int64_t splits) { return key(mma(splits)); }

/// Its name as rows have it.
std::string pipeline(int64_t splits) {
  auto chain = Registry::global().parse_chain("prepare/fused + attention/mma + combine/gated");
  if (!chain) throw std::logic_error(chain.error());
  (*chain)[1] = mma(splits);
  return key(*chain);
}
std::string base() {
  return key(*Registry::global().parse_chain("prepare/fused + attention/mma + combine/gated"));
}

DispatchRow row(const Shape& shape, const std::string& pipeline, double median_ns,
                double base_ns = 0) {
  return {.shape = shape,
          .pipeline = pipeline,
          .median_ns = median_ns,
          .low_ns = median_ns * 0.99,
          .high_ns = median_ns * 1.01,
          .base_median_ns = base_ns,
          .status = "winner",
          .run = 1,
          .date = "2030-01-02T03:04:05Z"};
}

DispatchTable table_of(std::vector<DispatchRow> rows) {
  const Hello here = h200();
  DispatchTable table;
  table.base = base();
  table.regime = "cold";
  table.timer = "cupti";
  table.device = here.device_class;
  table.toolkit = here.toolkit;
  table.rules = dispatch_rules({{"batch", "log2"}, {"context", "log2"}}, 1.6);
  table.rows = std::move(rows);
  return table;
}

// --- what is looked at -------------------------------------------------------------------------

TEST(CheckOrder, BeginsInEachStructureWithWhatSavesMostAndTakesThemByTurns) {
  const std::vector<DispatchRow> rows{
      row(shape(1, 64), "a", 10, 12),     row(shape(2, 64), "a", 10, 40),
      row(shape(4, 64), "a", 10, 20),     row(shape(1, 64, 16), "a", 10, 90),
      row(shape(2, 64, 16), "a", 10, 11),
  };
  for (const uint64_t seed : {1, 2, 3}) {
    const std::vector<size_t> order = check_order(rows, seed);
    ASSERT_EQ(order.size(), rows.size());
    EXPECT_EQ(order[0], 3u) << "80 ns saved";
    EXPECT_EQ(order[1], 1u) << "30 ns saved, another structure";
    EXPECT_EQ(order[2], 4u);
    std::vector<size_t> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, (std::vector<size_t>{0, 1, 2, 3, 4})) << "each once";
  }
}

TEST(CheckOrder, FollowsFromTheSeedAndNotFromTheOrderOfTheRows) {
  std::vector<DispatchRow> rows;
  for (int64_t batch = 1; batch <= 64; ++batch) rows.push_back(row(shape(batch, 64), "a", 10));
  const auto batches = [&](const std::vector<DispatchRow>& all, uint64_t seed) {
    std::vector<int64_t> result;
    for (const size_t i : check_order(all, seed)) result.push_back(all[i].shape.problem.batch);
    return result;
  };
  const std::vector<int64_t> one = batches(rows, 1);
  EXPECT_NE(one, batches(rows, 2));
  std::reverse(rows.begin(), rows.end());
  EXPECT_EQ(one, batches(rows, 1));
}

TEST(CheckRivals, AreThePicksTheBaseAndThoseOfTheNearestRows) {
  DispatchTable table =
      table_of({row(shape(1, 64), "a", 10), row(shape(2, 64), "b", 10), row(shape(64, 64), "c", 10),
                row(shape(1, 64, 16), "d", 10)});
  using Names = std::vector<std::string>;
  EXPECT_EQ(check_rivals(table, shape(1, 64), {"a"}, 3), (Names{"a", table.base, "b"}));
  EXPECT_EQ(check_rivals(table, shape(1, 64), {"a"}, 9), (Names{"a", table.base, "b", "c", "d"}));
  EXPECT_EQ(check_rivals(table, shape(1, 64), {"a"}, 1), (Names{"a", table.base})) << "at least";
  EXPECT_EQ(check_rivals(table, shape(1, 64, 16), {"d"}, 3), (Names{"d", table.base, "a"}));
  table.rows[0].losses = {{"a", 0}, {"between", 100}};
  EXPECT_EQ(check_rivals(table, shape(1, 64), {"a"}, 9),
            (Names{"a", table.base, "b", "c", "d", "between"}))
      << "what no row has chosen comes last";
}

// --- whole checks ------------------------------------------------------------------------------

class Checked : public ::testing::Test {
 protected:
  CheckResult check(const DispatchTable& table, fakes::Script script,
                    const std::vector<Shape>& unseen = {}, CheckOptions options = {}) {
    fakes::MockMeasurer measurer(std::move(script));
    const Hello here = h200();
    const CheckRules rules{.step_ns = here.step_ns};
    db::Store store = db::Store::open(folder_ / "check.db", db::Open::kCreate);
    Records records(store, check_spec(table, rules), here,
                    {.command = "check", .timer = "cupti", .seed = 1, .base = table.base});
    ProgressLine silent(false);
    options.stop_signal = &measurer.stop;
    return tuner::check(table, dispatch::Guard::kTuned, unseen, rules, records, measurer, here,
                        options, silent);
  }
  /// Two candidates beside attention take 10 us each.
  static fakes::Script script(double eight, double thirty_two, double sixty_four) {
    return {.ns = times_of({{attention(8), eight},
                            {attention(16), 80'000},  // the base
                            {attention(32), thirty_two},
                            {attention(64), sixty_four}},
                           10'000)};
  }
  db::TempFolder folder_;
};

TEST_F(Checked, ATableOfThisDeviceIsTuned) {
  const DispatchTable table = table_of(
      {row(shape(2, 4096), pipeline(8), 40'000), row(shape(8, 4096), pipeline(64), 40'000)});
  fakes::Script here = script(0, 0, 0);
  here.ns = [](const fakes::Turn& turn) {
    const bool small = turn.shape.rfind("b2_", 0) == 0;
    const bool fits = turn.chain.find(attention(small ? 8 : 64)) != std::string::npos;
    return fits ? 40'000.0 : 60'000.0;
  };
  const CheckResult result = check(table, std::move(here));
  ASSERT_EQ(result.rows.size(), 2u);
  for (const CheckedRow& one : result.rows) {
    EXPECT_EQ(one.finding.verdict, CheckVerdict::kTuned) << one.finding.reason;
  }
  EXPECT_EQ(exit_code(result), ExitCode::kOk);
  EXPECT_FALSE(result.out_of_budget);
}

TEST_F(Checked, AnotherPipelineOfTheTableThatIsFasterNowMeansDrift) {
  const DispatchTable table = table_of(
      {row(shape(2, 4096), pipeline(8), 40'000), row(shape(8, 4096), pipeline(64), 36'000)});
  const CheckResult result = check(table, script(20'000, 30'000, 16'000));
  ASSERT_EQ(result.rows.size(), 2u);
  for (const CheckedRow& one : result.rows) {
    const bool stands = table.rows[one.row].pipeline == pipeline(64);
    EXPECT_EQ(one.finding.verdict, stands ? CheckVerdict::kTuned : CheckVerdict::kDrifted)
        << one.finding.reason;
    EXPECT_NEAR(*one.finding.regret, stands ? 0 : 40.0 / 36 - 1, 0.01);
  }
  EXPECT_EQ(exit_code(result), ExitCode::kGateFailed);
}

TEST_F(Checked, ARowMayLoseWhatItSaysItLosesAndTheMargin) {
  DispatchTable table = table_of(
      {row(shape(2, 4096), pipeline(8), 41'000), row(shape(8, 4096), pipeline(64), 40'000)});
  table.rows[0].status = "inconclusive";
  for (const auto& [known_pct, code] :
       {std::pair(0.0, ExitCode::kGateFailed), std::pair(2.5, ExitCode::kOk)}) {
    table.rows[0].regret_pct = known_pct;
    const CheckResult result = check(table, script(21'000, 60'000, 20'000));
    EXPECT_EQ(exit_code(result), code) << known_pct;
    std::filesystem::remove(folder_ / "check.db");
  }
}

TEST_F(Checked, ATimeThatIsAnotherOneThanRecordedMeansDriftUnlessTheTimerIsAnother) {
  const DispatchTable table = table_of({row(shape(2, 4096), pipeline(8), 30'000)});
  EXPECT_EQ(exit_code(check(table, script(20'000, 60'000, 60'000))), ExitCode::kGateFailed);
  std::filesystem::remove(folder_ / "check.db");
  EXPECT_EQ(exit_code(check(table, script(20'000, 60'000, 60'000), {}, {.compare_times = false})),
            ExitCode::kOk);
}

TEST_F(Checked, OnABusyHostATimeIsNotHeldAgainstTheRecord) {
  fakes::Script here = script(80'000, 90'000, 90'000);
  here.clock = [](int) {
    profiler::ClockReading clock = fakes::steady_clock_reading();
    clock.load = std::max(1.0, static_cast<double>(std::thread::hardware_concurrency())) + 2.5;
    return clock;
  };
  testing::internal::CaptureStderr();
  const CheckResult result = check(table_of({row(shape(2, 4096), pipeline(8), 40'000)}), here);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("times are no longer compared"),
            std::string::npos);
  ASSERT_EQ(result.rows.size(), 1u);
  EXPECT_EQ(result.rows[0].finding.verdict, CheckVerdict::kTuned) << result.rows[0].finding.reason;
}

TEST_F(Checked, APipelineThatFailsAGateIsWrongWhateverItsTime) {
  const DispatchTable table = table_of({row(shape(2, 4096), pipeline(8), 40'000)});
  fakes::Script here = script(20'000, 60'000, 60'000);
  here.validate = [](const ValidateRequest& request) -> fakes::Script::Verdict {
    if (request.chain != pipeline(8)) return fakes::passed();
    return fakes::failed(Outcome::kIncorrect, "attention: o[7] is 3, not 2");
  };
  const CheckResult result = check(table, std::move(here));
  ASSERT_EQ(result.rows.size(), 1u);
  EXPECT_EQ(result.rows[0].finding.verdict, CheckVerdict::kWrong);
  EXPECT_NE(result.rows[0].finding.reason.find("o[7] is 3"), std::string::npos);
  EXPECT_EQ(exit_code(result), ExitCode::kGateFailed);
}

TEST_F(Checked, AFaultOfAnotherPipelineOfTheTableCountsToo) {
  const DispatchTable table = table_of(
      {row(shape(2, 4096), pipeline(8), 40'000), row(shape(2, 8192), pipeline(64), 40'000)});
  fakes::Script here;
  here.ns = [](const fakes::Turn& turn) {
    const bool fits =
        turn.chain.find(attention(turn.shape.find("_t4096_") != std::string::npos ? 8 : 64)) !=
        std::string::npos;
    return fits ? 40'000.0 : 60'000.0;
  };
  here.validate = [](const ValidateRequest& request) -> fakes::Script::Verdict {
    const bool here_only =
        request.chain == pipeline(64) && request.shape.find("_t4096_") != std::string::npos;
    return here_only ? fakes::failed(Outcome::kIncorrect, "o") : fakes::passed();
  };
  const CheckResult result = check(table, std::move(here));
  for (const CheckedRow& one : result.rows) {
    EXPECT_EQ(one.finding.verdict, CheckVerdict::kTuned) << one.finding.reason;
  }
  EXPECT_EQ(*verdict(result), CheckVerdict::kWrong);
}

TEST_F(Checked, AChoiceForEveryContextMayLoseWhatItWasKnownToLose) {
  DispatchTable table = table_of(
      {row(shape(2, 4096), pipeline(8), 40'000), row(shape(2, 8192), pipeline(8), 40'000)});
  DispatchRow captured = row(shape(2, 4096), pipeline(32), 42'000);
  captured.over = {{key(shape(2, 4096)), 42'000, 5}, {key(shape(2, 8192)), 40'000, 0}};
  table.captured = {captured};
  const CheckResult result = check(table, script(20'000, 22'000, 60'000));
  int tuned = 0, drifted = 0;
  for (const CheckedRow& one : result.rows) {
    if (!one.captured) continue;
    ++(one.finding.verdict == CheckVerdict::kTuned ? tuned : drifted);
    EXPECT_EQ(one.finding.verdict == CheckVerdict::kTuned, one.shape == key(shape(2, 4096)))
        << one.finding.reason;
  }
  EXPECT_EQ(tuned, 1);
  EXPECT_EQ(drifted, 1);
}

TEST_F(Checked, UnseenShapesHaveAnAnswerItsMatchAndItsRegret) {
  const DispatchTable table = table_of(
      {row(shape(2, 4096), pipeline(8), 40'000), row(shape(32, 4096), pipeline(64), 36'000)});
  fakes::Script here;
  here.ns = [](const fakes::Turn& turn) {
    const bool two = turn.chain.find(attention(8)) != std::string::npos;
    const bool eight = turn.chain.find(attention(64)) != std::string::npos;
    if (turn.shape.rfind("b2_", 0) == 0) return two ? 40'000.0 : 60'000.0;
    if (turn.shape.rfind("b32_", 0) == 0) return eight ? 36'000.0 : 60'000.0;
    return eight ? 40'000.0 : two ? 44'000.0 : 60'000.0;
  };
  const CheckResult result = check(table, std::move(here), {shape(3, 4096), shape(1024, 4096)});
  ASSERT_EQ(result.unseen.size(), 2u);
  const CheckedAnswer& near = result.unseen[0].eager;
  EXPECT_EQ(near.match, dispatch::Match::kNear);
  EXPECT_NEAR(near.distance, 0.585, 0.001);
  EXPECT_EQ(near.pick, pipeline(8));
  EXPECT_NEAR(*near.finding.regret, 0.1, 0.01);
  EXPECT_EQ(result.unseen[1].eager.match, dispatch::Match::kBase);
  EXPECT_EQ(result.unseen[1].eager.pick, table.base);
  EXPECT_EQ(exit_code(result), ExitCode::kOk) << "what a near row loses is its regret";
}

TEST_F(Checked, WithoutAnyTimeNothingIsLookedAtAndThatIsNoVerdict) {
  const DispatchTable table = table_of({row(shape(2, 4096), pipeline(8), 40'000)});
  const CheckResult result = check(table, script(20'000, 60'000, 60'000), {},
                                   {.budget = std::chrono::duration<double>(0)});
  EXPECT_TRUE(result.out_of_budget);
  EXPECT_FALSE(verdict(result));
  EXPECT_EQ(exit_code(result), ExitCode::kIncomplete);
}

TEST_F(Checked, RoundsOfWildScatterAreTooNoisyToSay) {
  const DispatchTable table = table_of(
      {row(shape(2, 4096), pipeline(8), 40'000), row(shape(2, 8192), pipeline(64), 40'000)});
  fakes::Script here = script(20'000, 60'000, 20'400);
  here.noise = 0.06;
  const CheckResult result = check(table, std::move(here), {}, {.compare_times = false});
  EXPECT_EQ(exit_code(result), ExitCode::kUndecidable);
}

TEST_F(Checked, AStopIsToldByItsSignal) {
  const DispatchTable table = table_of({row(shape(2, 4096), pipeline(8), 40'000)});
  fakes::MockMeasurer measurer(script(20'000, 60'000, 60'000));
  measurer.stop_at = 1;
  const Hello here = h200();
  const CheckRules rules{.step_ns = here.step_ns};
  db::Store store = db::Store::open(folder_ / "check.db", db::Open::kCreate);
  Records records(store, check_spec(table, rules), here,
                  {.command = "check", .timer = "cupti", .seed = 1, .base = table.base});
  ProgressLine silent(false);
  const CheckOptions options{.stop_signal = &measurer.stop};
  const CheckResult result = tuner::check(table, dispatch::Guard::kTuned, {}, rules, records,
                                          measurer, here, options, silent);
  EXPECT_TRUE(result.rows.empty());
  EXPECT_TRUE(exit_code(result) == ExitCode::kTerminated ||
              exit_code(result) == ExitCode::kInterrupted);
}

TEST(TableChains, NamesThePipelineThatThisBinaryDoesNotHave) {
  DispatchTable table = table_of({row(shape(2, 4096), "attention/splitkv", 40'000)});
  const auto unknown = table_chains(table, Registry::global());
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().find("attention/splitkv"), std::string::npos) << unknown.error();
  table.rows[0].pipeline = "attention/mma";
  const auto part = table_chains(table, Registry::global());
  ASSERT_FALSE(part);
  EXPECT_NE(part.error().find("does not cover the four stages"), std::string::npos);
}

TEST(WhyNot, SaysWhichVariantAndWhy) {
  const auto chain = Registry::global().parse_chain(base());
  const DeviceClass gpu = h200().device_class;
  EXPECT_EQ(why_not(*chain, shape(2, 4096).problem, gpu), "");
  DeviceClass host;
  host.host = true;
  EXPECT_NE(why_not(*chain, shape(2, 4096).problem, host).find("not for this device"),
            std::string::npos);
}

}  // namespace
}  // namespace muse::tuner
