// SPDX-License-Identifier: Apache-2.0
// Selection: the tie set, the order inside it, the margin of the base, and what is left undecided.
#include "tuner/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace muse::tuner {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// `rounds` samples around `median` with that much relative noise, from the seed alone.
std::vector<double> noisy(double median, double noise_pct, uint64_t seed, int rounds = 40) {
  std::mt19937_64 random(seed);
  std::vector<double> ns;
  for (int i = 0; i < rounds; ++i) {
    // Not a standard distribution: their numbers differ between libraries.
    const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
    ns.push_back(median * (1 + noise_pct / 100 * (2 * unit - 1)));
  }
  return ns;
}

Contender contender(std::string key, std::vector<double> ns, bool base = false) {
  return {.key = std::move(key), .ns = std::move(ns), .base = base};
}

std::vector<std::string> tie_keys(const std::vector<Contender>& all, const Selection& selection) {
  std::vector<std::string> keys;
  for (const int i : selection.tie_set) keys.push_back(all[static_cast<size_t>(i)].key);
  return keys;
}

std::string winner_key(const std::vector<Contender>& all, const Selection& selection) {
  return selection.winner < 0 ? "" : all[static_cast<size_t>(selection.winner)].key;
}

TEST(Select, SaysNothingOfNobody) {
  const Selection selection = select({}, {});
  EXPECT_EQ(selection.winner, -1);
  EXPECT_TRUE(selection.tie_set.empty());
  EXPECT_EQ(selection.status, "");
}

TEST(Select, SaysNothingOfContendersWithoutSamples) {
  const Selection selection = select({contender("a", {}), contender("b", {kNan, INFINITY})}, {});
  EXPECT_EQ(selection.winner, -1);
  EXPECT_EQ(selection.rule, "");
}

TEST(Select, TakesTheOnlyOne) {
  const Selection selection = select({contender("a", noisy(1000, 1, 1))}, {});
  EXPECT_EQ(selection.winner, 0);
  EXPECT_EQ(selection.status, "winner");
  EXPECT_EQ(selection.rule, "fastest");
  EXPECT_EQ(selection.tie_set, std::vector<int>{0});
  EXPECT_EQ(selection.base_median_ns, 0);
  EXPECT_TRUE(selection.interval.contains(selection.median_ns));
}

TEST(Select, KeepsBaseWhenGainIsWithinNoise) {
  const std::vector<Contender> all{contender("a", noisy(9990, 1, 1)),
                                   contender("base", noisy(10000, 1, 2), true)};
  const Selection selection = select(all, {});
  EXPECT_EQ(winner_key(all, selection), "base");
  EXPECT_EQ(selection.rule, "tie_base");
  EXPECT_EQ(selection.status, "tie(2)");
  EXPECT_EQ(selection.gain_pct.low, 0);
  EXPECT_EQ(selection.gain_pct.high, 0);
}

TEST(Select, ReplacesBaseForAClearGain) {
  const std::vector<Contender> all{contender("base", noisy(10000, 1, 2), true),
                                   contender("a", noisy(9000, 1, 1))};
  const Selection selection = select(all, {});
  EXPECT_EQ(winner_key(all, selection), "a");
  EXPECT_EQ(selection.rule, "fastest");
  EXPECT_EQ(selection.status, "winner");
  EXPECT_GT(selection.gain_pct.low, 9);
  EXPECT_LT(selection.gain_pct.high, 11);
  EXPECT_NEAR(selection.base_median_ns, 10000, 100);
}

TEST(Select, KeepsBaseWhenTheGainIsSureButBelowTheMargin) {
  const std::vector<Contender> all{contender("base", noisy(100000, 0.01, 2), true),
                                   contender("a", noisy(99200, 0.01, 1))};
  const Selection selection = select(all, {});
  EXPECT_EQ(winner_key(all, selection), "base");
  EXPECT_EQ(selection.rule, "base_kept");
  EXPECT_EQ(selection.status, "tie(2)");
  EXPECT_EQ(tie_keys(all, selection), (std::vector<std::string>{"base", "a"}));

  SelectionRules eager;
  eager.switch_margin_pct = 0.7;
  EXPECT_EQ(winner_key(all, select(all, eager)), "a");
}

TEST(Select, PrefersTheSmallerWorkspaceInsideTheTieSet) {
  std::vector<Contender> all{contender("a", noisy(1000, 0.1, 1)),
                             contender("b", noisy(1000, 0.1, 2)),
                             contender("c", noisy(900, 0.1, 3))};
  all[0].workspace_bytes = 4096;
  all[1].workspace_bytes = 64;
  all[2].ns = noisy(2000, 0.1, 3);  // far behind: its empty workspace does not count
  const Selection selection = select(all, {});
  EXPECT_EQ(winner_key(all, selection), "b");
  EXPECT_EQ(selection.rule, "tie_workspace");
  EXPECT_EQ(tie_keys(all, selection), (std::vector<std::string>{"b", "a"}));
}

TEST(Select, PrefersTheLowerP90InsideTheTieSet) {
  std::vector<double> calm(40, 1000.0), wild(40, 1000.0);
  for (size_t i = 0; i < wild.size(); i += 4) wild[i] = 1500;
  const std::vector<Contender> all{contender("a", wild), contender("b", calm)};
  const Selection selection = select(all, {});
  EXPECT_EQ(winner_key(all, selection), "b");
  EXPECT_EQ(selection.rule, "tie_p90");
}

TEST(Select, DecidesByNameWhenNothingElseDiffers) {
  const std::vector<Contender> all{contender("b", noisy(1000, 0.1, 1)),
                                   contender("a", noisy(1000, 0.1, 2))};
  const Selection selection = select(all, {});
  EXPECT_EQ(winner_key(all, selection), "a");
  EXPECT_EQ(selection.rule, "tie_name");
}

TEST(Select, PutsTwelveIdenticalContendersIntoOneTieSetAndPicksTheSameOneEachTime) {
  for (uint64_t sweep = 0; sweep < 10; ++sweep) {
    std::vector<Contender> all;
    for (int i = 0; i < 12; ++i) {
      all.push_back(contender("c" + std::to_string(i), noisy(20000, 0.4, sweep * 100 + i)));
    }
    const Selection selection = select(all, {});
    EXPECT_EQ(selection.tie_set.size(), 12u) << sweep;
    EXPECT_EQ(winner_key(all, selection), "c0") << sweep;
    EXPECT_EQ(selection.status, "tie(12)") << sweep;
  }
}

TEST(Select, NeverLooksAtTheOrderOfTheContenders) {
  std::vector<Contender> all;
  for (int i = 0; i < 6; ++i) {
    all.push_back(contender("c" + std::to_string(i), noisy(20000 + 60 * i, 1, 50 + i), i == 3));
    all.back().workspace_bytes = i % 2;
  }
  all[2].ns[5] = kNan;
  const Selection expected = select(all, {});
  const std::string winner = winner_key(all, expected);
  const std::vector<std::string> ties = tie_keys(all, expected);
  std::mt19937_64 random(1);
  for (int repeat = 0; repeat < 30; ++repeat) {
    std::shuffle(all.begin(), all.end(), random);
    const Selection selection = select(all, {});
    ASSERT_EQ(winner_key(all, selection), winner);
    ASSERT_EQ(tie_keys(all, selection), ties);
    ASSERT_EQ(selection.status, expected.status);
    ASSERT_EQ(selection.rule, expected.rule);
    ASSERT_EQ(selection.interval.low, expected.interval.low);
    ASSERT_EQ(selection.gain_pct.high, expected.gain_pct.high);
  }
}

TEST(Select, PairsOverCommonRoundsWhenSamplesAreMissing) {
  // A drift of 50 % over the run: unpaired medians would prefer the one without late samples.
  std::vector<double> slow, fast;
  for (int i = 0; i < 40; ++i) {
    fast.push_back(1000 * (1 + i / 80.0));
    slow.push_back(i < 24 ? 1050 * (1 + i / 80.0) : kNan);
  }
  const std::vector<Contender> all{contender("slow", slow), contender("fast", fast)};
  const Selection selection = select(all, {});
  EXPECT_LT(1050 * (1 + 12 / 80.0), 1000 * (1 + 20 / 80.0));
  EXPECT_EQ(winner_key(all, selection), "fast");
  EXPECT_EQ(selection.status, "winner");
}

TEST(Select, TreatsAShorterListAsMissingRounds) {
  const std::vector<Contender> all{contender("a", noisy(1000, 0.1, 1, 20)),
                                   contender("b", noisy(1100, 0.1, 2, 40))};
  EXPECT_EQ(winner_key(all, select(all, {})), "a");
}

TEST(Select, CannotTellApartWhatSharesTooFewRounds) {
  const std::vector<Contender> all{contender("base", noisy(2000, 0.1, 1, 5), true),
                                   contender("a", noisy(1000, 0.1, 2, 5))};
  const Selection selection = select(all, {});
  EXPECT_EQ(winner_key(all, selection), "base");
  EXPECT_EQ(selection.status, "inconclusive");
}

TEST(Select, IsInconclusiveWhereNoiseHidesMoreThanTheMargin) {
  const std::vector<Contender> all{contender("base", noisy(10000, 40, 1, 12), true),
                                   contender("a", noisy(9500, 40, 2, 12))};
  const Selection selection = select(all, {});
  EXPECT_EQ(winner_key(all, selection), "base");
  EXPECT_EQ(selection.status, "inconclusive");
}

TEST(Select, IsDegradedWhenTheDecidingOnesAre) {
  std::vector<Contender> all{contender("base", noisy(10000, 1, 1), true),
                             contender("a", noisy(5000, 1, 2)), contender("z", noisy(90000, 1, 3))};
  all[2].degraded = true;
  EXPECT_EQ(select(all, {}).status, "winner") << "one far behind decides nothing";
  all[0].degraded = true;
  EXPECT_EQ(select(all, {}).status, "degraded");
  all[0].degraded = false;
  all[1].degraded = true;
  EXPECT_EQ(select(all, {}).status, "degraded");
}

TEST(Select, NeverSeparatesByLessThanOneStepOfTheClock) {
  SelectionRules coarse;
  coarse.step_ns = 32;
  std::vector<Contender> all{contender("b", std::vector<double>(40, 1000.0)),
                             contender("a", std::vector<double>(40, 1020.0))};
  EXPECT_EQ(winner_key(all, select(all, coarse)), "a") << "2 % apart, but less than a step";
  EXPECT_EQ(select(all, coarse).status, "tie(2)");
  coarse.step_ns = 1;
  EXPECT_EQ(winner_key(all, select(all, coarse)), "b");
}

TEST(Select, WinsWithoutABaseThatFailed) {
  const std::vector<Contender> all{contender("base", {}, true),
                                   contender("a", noisy(1000, 0.1, 2))};
  const Selection selection = select(all, {});
  EXPECT_EQ(winner_key(all, selection), "a");
  EXPECT_EQ(selection.base_median_ns, 0);
}

TEST(Select, HoldsTheFalseAlarmRateOverManyPairs) {
  // 16 equal contenders and a tie zone of zero width: without Holm most sweeps would drop somebody.
  SelectionRules strict;
  strict.tie_pct = 0;
  strict.step_ns = 1e-9;
  int dropped = 0;
  for (uint64_t sweep = 0; sweep < 40; ++sweep) {
    std::vector<Contender> all;
    for (uint64_t i = 0; i < 16; ++i) {
      all.push_back(contender(std::to_string(i), noisy(20000, 1, 7000 + sweep * 100 + i)));
    }
    dropped += select(all, strict).tie_set.size() < 16;
  }
  EXPECT_LE(dropped, 20);
}

}  // namespace
}  // namespace muse::tuner
