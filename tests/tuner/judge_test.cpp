// SPDX-License-Identifier: Apache-2.0
// Verdicts of a check on what was measured.
#include <gtest/gtest.h>

#include "tuner/check.h"

namespace muse::tuner {
namespace {

CheckedPipeline measured(const std::string& name, double ns, double scatter = 0.001) {
  CheckedPipeline result{.pipeline = name, .reason = {}, .decides = true};
  for (int i = 0; i < 64; ++i) result.ns.push_back(ns * (1 + scatter * ((i * 37) % 11 - 5) / 5));
  result.median_ns = profiler::median(result.ns);
  result.interval = profiler::median_interval(result.ns, {});
  return result;
}
CheckedShape here_of(std::vector<CheckedPipeline> pipelines) {
  return {.shape = "s", .pipelines = std::move(pipelines)};
}
Recorded recorded(const std::string& name, double ns) {
  return {.pipeline = name, .interval = {ns, ns}, .base = "base", .base_median_ns = 2000};
}

TEST(Judge, TunedIsWhoCannotBeToldFromTheBestOrIsWithinTheMargin) {
  const CheckedShape here =
      here_of({measured("a", 1000), measured("b", 1007), measured("c", 1030)});
  EXPECT_EQ(judge(here, recorded("a", 1000), {}).verdict, CheckVerdict::kTuned);
  const Finding second = judge(here, recorded("b", 1007), {});
  EXPECT_EQ(second.verdict, CheckVerdict::kTuned);
  EXPECT_NEAR(*second.regret, 0.007, 1e-3);
}

TEST(Judge, DriftedIsWhoLosesMoreThanTheMarginAndSaysToWhom) {
  const CheckedShape here = here_of({measured("a", 1000), measured("c", 1030)});
  const Finding finding = judge(here, recorded("c", 1030), {});
  EXPECT_EQ(finding.verdict, CheckVerdict::kDrifted);
  EXPECT_NE(finding.reason.find("a is faster"), std::string::npos) << finding.reason;
  Recorded captured = recorded("c", 1030);
  captured.allowed_pct = 2.5;
  EXPECT_EQ(judge(here, captured, {}).verdict, CheckVerdict::kTuned) << "known when it was chosen";
}

TEST(Judge, WhoLeftTheRaceIsComparedByTheRoundsOfBothAndNotByTheirMedians) {
  CheckedPipeline early = measured("c", 900);  // in faster rounds than those that decided
  early.decides = false;
  early.behind = {180, 220};
  const Finding finding =
      judge(here_of({measured("a", 1000), early}), {.pipeline = "c", .interval = {}}, {});
  EXPECT_EQ(finding.verdict, CheckVerdict::kDrifted);
  EXPECT_EQ(finding.reason, "it left the race 0.18 us to 0.22 us behind its leader");
}

TEST(Judge, DriftedIsATimeFarFromItsRecordedIntervalAndSaysWhatTheBaseDid) {
  const CheckedShape here = here_of({measured("a", 1000), measured("base", 2200)});
  EXPECT_EQ(judge(here, recorded("a", 960), {}).verdict, CheckVerdict::kTuned);
  EXPECT_EQ(judge(here, recorded("a", 1040), {}).verdict, CheckVerdict::kTuned);
  for (const double then_ns : {900.0, 1100.0}) {
    const Finding finding = judge(here, recorded("a", then_ns), {});
    EXPECT_EQ(finding.verdict, CheckVerdict::kDrifted);
    EXPECT_NE(finding.reason.find("the base takes 1.10 times what it did"), std::string::npos)
        << finding.reason;
  }
  EXPECT_EQ(judge(here, {.pipeline = "a", .interval = {}}, {}).verdict, CheckVerdict::kTuned)
      << "nothing recorded that could be compared";
}

TEST(Judge, NoisyIsWhatTheSamplesLeaveOpen) {
  const CheckedShape wild = here_of({measured("a", 1000, 0.2), measured("b", 1010, 0.1)});
  EXPECT_EQ(judge(wild, recorded("b", 1010), {}).verdict, CheckVerdict::kNoisy);
  EXPECT_EQ(judge(wild, recorded("z", 1000), {}).verdict, CheckVerdict::kNoisy) << "did not race";
}

TEST(Judge, RoundsOfASlowMachineCompareButTellNoTime) {
  CheckedShape slow = here_of({measured("a", 1500), measured("b", 1600)});
  slow.degraded = true;
  EXPECT_EQ(judge(slow, recorded("a", 1000), {}).verdict, CheckVerdict::kTuned);
  EXPECT_EQ(judge(slow, recorded("b", 1600), {}).verdict, CheckVerdict::kDrifted);
}

TEST(Judge, ALossThatIsKnownToTheToleranceIsKnown) {
  const CheckedShape here = here_of({measured("a", 1000, 0.004), measured("b", 1009, 0.004)});
  EXPECT_EQ(judge(here, recorded("b", 1009), {}).verdict, CheckVerdict::kTuned);
}

TEST(Judge, WhoLeftTheRaceEarlyHasDriftedByTheIntervalItLeftBy) {
  CheckedPipeline early = measured("c", 1200);
  early.decides = false;
  early.behind = {180, 220};
  const CheckedShape here = here_of({measured("a", 1000), measured("b", 1001), early});
  EXPECT_EQ(judge(here, recorded("c", 1200), {}).verdict, CheckVerdict::kDrifted);
  Recorded captured = recorded("c", 1200);
  for (const auto& [allowed_pct, verdict] :
       {std::pair(16.0, CheckVerdict::kDrifted), std::pair(20.0, CheckVerdict::kNoisy),
        std::pair(22.0, CheckVerdict::kTuned)}) {
    captured.allowed_pct = allowed_pct;
    EXPECT_EQ(judge(here, captured, {}).verdict, verdict) << allowed_pct;
  }
}

TEST(Judge, WrongIsWhoFailedItsGatesOrIsRefused) {
  for (const Outcome outcome : {Outcome::kIncorrect, Outcome::kCrashed, Outcome::kUnsupported}) {
    const CheckedShape here =
        here_of({{.pipeline = "a", .outcome = outcome, .reason = "why"}, measured("b", 1000)});
    const Finding finding = judge(here, recorded("a", 1000), {});
    EXPECT_EQ(finding.verdict, CheckVerdict::kWrong);
    EXPECT_NE(finding.reason.find("why"), std::string::npos);
    EXPECT_FALSE(finding.regret);
  }
}

TEST(Judge, ALargeLossThatWasKnownIsToldBesideTheVerdict) {
  const CheckedShape here = here_of({measured("a", 1000), measured("c", 1120)});
  Recorded limited = recorded("c", 1120);
  limited.allowed_pct = 12.34;
  const Finding finding = judge(here, limited, {});
  EXPECT_EQ(finding.verdict, CheckVerdict::kTuned);
  EXPECT_EQ(finding.reason,
            "within 13.3 % of the fastest of the table's pipelines here; chosen although 12.3 % "
            "were lost when it was emitted");
  limited.allowed_pct = 0.9;
  EXPECT_EQ(judge(here, limited, {}).reason.find("chosen although"), std::string::npos)
      << "no more than the margin";
}

}  // namespace
}  // namespace muse::tuner
