// SPDX-License-Identifier: Apache-2.0
// Races with scripted times: who is dropped, who gets to the final and when it ends.
#include "tuner/race.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>

namespace muse::tuner {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// ns of an entrant in a round at a position of the order.
using Script = std::function<double(int entrant, int round, size_t position)>;

struct Played {
  std::vector<RoundOrder> orders;
  std::vector<RoundSamples> samples;
  int count(bool final) const {
    return static_cast<int>(std::count_if(
        orders.begin(), orders.end(), [final](const auto& order) { return order.final == final; }));
  }
};

Played play(Race& race, const Script& script) {
  Played played;
  while (auto order = race.next()) {
    RoundSamples samples;
    for (size_t i = 0; i < order->entrants.size(); ++i) {
      samples.ns.push_back(script(order->entrants[i], order->number, i));
    }
    race.add(*order, samples);
    played.orders.push_back(*order);
    played.samples.push_back(samples);
    if (played.orders.size() > 5000) {
      ADD_FAILURE() << "the race does not end";
      break;
    }
  }
  return played;
}

/// Noise as a function of where it falls: seeded, the same in every run.
double noise(int entrant, int round, size_t position, uint64_t seed = 1) {
  profiler::SplitMix random(seed * 1000003 + static_cast<uint64_t>(entrant) * 7919 +
                            static_cast<uint64_t>(round) * 104729 + position);
  random.next();
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += random.uniform();
  return sum - 6;  // nearly standard normal
}

Script with_noise(std::vector<double> ns, double relative, uint64_t seed = 1) {
  return [ns = std::move(ns), relative, seed](int entrant, int round, size_t position) {
    const double base = ns.at(static_cast<size_t>(entrant));
    return base * (1 + relative * noise(entrant, round, position, seed));
  };
}

std::vector<int> finalists(const Race& race) {
  std::vector<int> found;
  const auto standings = race.standings();
  for (size_t i = 0; i < standings.size(); ++i) {
    if (standings[i].finalist) found.push_back(static_cast<int>(i));
  }
  return found;
}

bool same(const std::vector<Standing>& a, const std::vector<Standing>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.median_ns == y.median_ns && x.interval.low == y.interval.low &&
           x.interval.high == y.interval.high && x.behind.low == y.behind.low &&
           x.behind.high == y.behind.high && x.samples == y.samples && x.finalist == y.finalist &&
           x.dropped_in_round == y.dropped_in_round && x.why == y.why && x.excluded == y.excluded;
  });
}

TEST(Race, RunsTheBaseFirstAndLastBesidesItsOwnTurn) {
  Race race(5, 2, {});
  const Played played = play(race, with_noise({100, 101, 102, 103, 104}, 0.01));
  for (const RoundOrder& order : played.orders) {
    ASSERT_GE(order.entrants.size(), 3u);
    EXPECT_EQ(order.entrants.front(), 2);
    EXPECT_EQ(order.entrants.back(), 2);
    const std::vector<int> inner(order.entrants.begin() + 1, order.entrants.end() - 1);
    EXPECT_EQ(std::set<int>(inner.begin(), inner.end()).size(), inner.size());
    EXPECT_EQ(std::count(inner.begin(), inner.end(), 2), 1);
  }
}

TEST(Race, CountsTheBasesOwnTurnAndNotItsSentinels) {
  Race race(3, 0, {.max_rounds = 20});
  const Played played = play(race, [&](int entrant, int, size_t position) {
    return entrant == 0 && (position == 0 || position == 4) ? 900.0 : 100.0 + entrant;
  });
  EXPECT_EQ(played.orders.front().entrants.size(), 5u);
  EXPECT_DOUBLE_EQ(race.standings()[0].median_ns, 100);
  EXPECT_EQ(race.leader(), 0);
}

TEST(Race, GivesEveryEntrantEveryPositionAboutEquallyOften) {
  constexpr int kEntrants = 6, kRounds = 600;
  Race race(kEntrants, -1, {.checkpoints = {}, .final_rounds = kRounds, .max_rounds = kRounds});
  std::vector<std::vector<int>> seen(kEntrants, std::vector<int>(kEntrants));
  const Played played = play(race, [&](int entrant, int, size_t position) {
    ++seen[static_cast<size_t>(entrant)][position];
    return 100.0;
  });
  std::set<std::vector<int>> distinct;
  for (const RoundOrder& order : played.orders) distinct.insert(order.entrants);
  EXPECT_GT(distinct.size(), 300u);
  for (const auto& positions : seen) {
    for (int count : positions) EXPECT_NEAR(count, kRounds / kEntrants, 50);
  }
}

TEST(Race, OrdersByItsSeed) {
  const auto orders = [](uint64_t seed) {
    Race race(8, 0, {.seed = seed});
    return race.next()->entrants;
  };
  EXPECT_EQ(orders(1), orders(1));
  EXPECT_NE(orders(1), orders(2));
}

TEST(Race, DropsNobodyByRankAlone) {
  RaceRules rules;
  rules.max_finalists = 12;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    rules.seed = seed;
    Race race(12, 0, rules);
    play(race, with_noise(std::vector<double>(12, 1000), 0.02, seed));
    EXPECT_GE(finalists(race).size(), 11u) << "seed " << seed;
  }
}

TEST(Race, ShowsNoTrendWithPosition) {
  RaceRules rules;
  rules.max_finalists = 12;
  Race race(12, 0, rules);
  // What runs later in a round runs slower: each entrant meets that equally.
  play(race, [&](int entrant, int round, size_t position) {
    return (1000 + 5 * static_cast<double>(position)) *
           (1 + 0.02 * noise(entrant, round, position));
  });
  for (const Standing& standing : race.standings()) {
    EXPECT_NEAR(standing.median_ns, 1032, 25);
    EXPECT_FALSE(standing.excluded);
  }
}

TEST(Race, DropsTheHopelessAtTheFirstCheckpoint) {
  Race race(4, 0, {});
  const Played played = play(race, with_noise({1000, 1010, 1600, 4000}, 0.005));
  const auto standings = race.standings();
  for (const int hopeless : {2, 3}) {
    const Standing& standing = standings[static_cast<size_t>(hopeless)];
    EXPECT_EQ(standing.dropped_in_round, 1);
    EXPECT_EQ(standing.samples, 2);
    EXPECT_FALSE(standing.finalist);
    EXPECT_NE(standing.why.find("% behind the leader after 2 rounds (limit 50 %)"),
              std::string::npos)
        << standing.why;
    EXPECT_GT(standing.behind.low, 400);
  }
  EXPECT_EQ(finalists(race), (std::vector<int>{0, 1}));
  EXPECT_EQ(race.leader(), 0);
  EXPECT_TRUE(played.orders[2].final);  // nothing is left to choose
}

TEST(Race, TightensTheLimitFromCheckpointToCheckpoint) {
  Race race(6, -1, {});
  play(race, with_noise({1000, 1001, 1002, 1120, 1070, 1030}, 0.0005));
  const auto standings = race.standings();
  EXPECT_EQ(standings[3].dropped_in_round, 3);
  EXPECT_EQ(standings[4].dropped_in_round, 7);
  EXPECT_EQ(standings[5].dropped_in_round, 15);
  EXPECT_EQ(finalists(race), (std::vector<int>{0, 1, 2}));
}

TEST(Race, NeverDropsTheBase) {
  Race race(12, 11, {.max_finalists = 3});
  std::vector<double> ns(12, 1000);
  ns[11] = 50000;
  play(race, with_noise(ns, 0.01));
  EXPECT_EQ(finalists(race).size(), 3u);
  const Standing base = race.standings()[11];
  EXPECT_TRUE(base.finalist);
  EXPECT_EQ(base.dropped_in_round, -1);
  EXPECT_GT(base.behind.low, 40000);
}

TEST(Race, SeatsFinalistsByMedianThenIndex) {
  Race race(6, 5, {.max_finalists = 3});
  play(race, [](int entrant, int, size_t) { return entrant == 4 ? 999.0 : 1000.0; });
  EXPECT_EQ(finalists(race), (std::vector<int>{0, 4, 5}));
  const auto standings = race.standings();
  EXPECT_EQ(standings[1].why, "behind the 3 finalists by median, 1000 ns");
  EXPECT_EQ(standings[1].dropped_in_round, 15);
}

TEST(Race, DecidesByFreshSamplesOnly) {
  // Entrant 1 shines until the final and never again.
  Race race(3, 0, {});
  const Played played = play(race, [](int entrant, int round, size_t) {
    if (entrant == 1) return round < 16 ? 990.0 : 1200.0;
    return 1000.0 + entrant;
  });
  EXPECT_EQ(played.count(false), 16);
  EXPECT_EQ(race.leader(), 0);
  EXPECT_DOUBLE_EQ(race.standings()[1].median_ns, 1200);
  EXPECT_EQ(race.samples(1).size(), static_cast<size_t>(played.count(true)));
}

TEST(Race, EndsWhenEveryIntervalIsNarrow) {
  Race quiet(3, 0, {});
  EXPECT_EQ(play(quiet, with_noise({1000, 1001, 1002}, 0.0005)).count(true), 32);
  Race loud(3, 0, {});
  const Played played = play(loud, with_noise({1000, 1001, 1002}, 0.05));
  EXPECT_EQ(static_cast<int>(played.orders.size()), 256);
  Race between(3, 0, {});
  const int rounds = play(between, with_noise({1000, 1001, 1002}, 0.013)).count(true);
  EXPECT_GT(rounds, 32);
  EXPECT_LT(rounds, 240);
  for (const Standing& standing : between.standings()) {
    EXPECT_LE(standing.behind.half_width(), 0.005 * 1003);
  }
}

TEST(Race, AsksForNoMoreThanOneClockStep) {
  Race race(2, 0, {.step_ns = 50});
  EXPECT_EQ(play(race, with_noise({1000, 1001}, 0.02)).count(true), 32);
  EXPECT_GT(race.standings()[1].interval.half_width(), 50 - 1e-6);
}

TEST(Race, HonoursASmallBudgetAndStillHasAFinal) {
  for (const int budget : {1, 2, 3, 5, 8, 12, 20, 40}) {
    Race race(10, 0, {.max_rounds = budget});
    const Played played = play(race, with_noise(std::vector<double>(10, 1000), 0.2));
    EXPECT_EQ(static_cast<int>(played.orders.size()), budget);
    EXPECT_GE(played.count(true), (budget + 1) / 2) << "budget " << budget;
    EXPECT_GE(race.leader(), 0);
    EXPECT_LE(finalists(race).size(), budget > 1 ? 8u : 10u);
  }
  Race race(3, 0, {.max_rounds = 12});
  const Played played = play(race, with_noise({1000, 1200, 1010}, 0.001));
  EXPECT_EQ(race.standings()[1].dropped_in_round, 3);
  EXPECT_EQ(played.count(false), 4);
  EXPECT_EQ(played.count(true), 8);
}

TEST(Race, RunsALoneEntrantToo) {
  for (const int base : {-1, 0}) {
    Race race(1, base, {});
    const Played played = play(race, with_noise({1000}, 0.01));
    EXPECT_EQ(played.count(true), 32);
    EXPECT_EQ(race.leader(), 0);
    EXPECT_EQ(race.standings()[0].samples, 32);
  }
}

TEST(Race, PairingProtectsFromDrift) {
  // The machine slows down by half over the race, far more than the entrants differ.
  Race race(3, 0, {});
  play(race, [](int entrant, int round, size_t position) {
    const double drift = 1 + 0.01 * round;
    return (1000 + 8 * entrant) * drift * (1 + 0.001 * noise(entrant, round, position));
  });
  EXPECT_EQ(race.leader(), 0);
  const Standing second = race.standings()[1];
  EXPECT_GT(second.behind.low, 0);
  EXPECT_GT(second.interval.half_width(), 10 * second.behind.half_width());
}

TEST(Race, SurvivesOutliers) {
  Race race(3, 0, {});
  play(race, [](int entrant, int round, size_t position) {
    const double ns = 1000 + 30 * entrant + noise(entrant, round, position);
    return round % 7 == entrant ? 50 * ns : ns;
  });
  EXPECT_EQ(race.leader(), 0);
  EXPECT_NEAR(race.standings()[1].median_ns, 1030, 5);
}

TEST(Race, RunsABimodalEntrantToTheBudget) {
  // Two modes, taken at random, around a steady rival: no number of rounds tells them apart.
  Race race(2, 0, {.max_rounds = 64});
  const Played played = play(race, [](int entrant, int round, size_t position) {
    if (entrant == 0) return 1100.0;
    return noise(entrant, round, position) > 0 ? 1200.0 : 1000.0;
  });
  EXPECT_EQ(static_cast<int>(played.orders.size()), 64);
  EXPECT_TRUE(race.standings()[static_cast<size_t>(1 - race.leader())].behind.contains(0));
}

TEST(Race, LeavesAMissedSampleOutOfThePairs) {
  Race race(2, 0, {});
  play(race, [](int entrant, int round, size_t) {
    return entrant == 1 && round % 4 == 0 ? kNan : 1000.0 + 10 * entrant;
  });
  const Standing standing = race.standings()[1];
  EXPECT_EQ(standing.samples, 24);
  EXPECT_FALSE(standing.excluded);
  EXPECT_DOUBLE_EQ(standing.behind.low, 9);
  EXPECT_TRUE(std::isnan(race.samples(1)[0]));
}

TEST(Race, ExcludesWhoMissesMoreThanHalfOfItsTurns) {
  for (const double nothing : {kNan, 0.0, -5.0, std::numeric_limits<double>::infinity()}) {
    Race race(4, 0, {});
    play(race, [&](int entrant, int, size_t) { return entrant == 2 ? nothing : 1000.0; });
    const Standing standing = race.standings()[2];
    EXPECT_TRUE(standing.excluded);
    EXPECT_EQ(standing.why, "4 of 4 samples rejected");
    EXPECT_EQ(standing.samples, 0);
  }
  Race brief(2, -1, {.max_rounds = 1});
  play(brief, [](int entrant, int, size_t) { return entrant == 0 ? kNan : 1000.0; });
  EXPECT_TRUE(brief.standings()[0].excluded);
  EXPECT_EQ(brief.leader(), 1);
}

TEST(Race, TakesOutWhoIsExcludedAtAnyTime) {
  Race race(3, 0, {});
  const RoundOrder first = *race.next();
  race.exclude(1, "crashed");
  race.exclude(1, "something later");
  const RoundOrder second = *race.next();
  EXPECT_EQ(std::count(second.entrants.begin(), second.entrants.end(), 1), 0);
  // The round that was under way may still be answered.
  race.add(first, {.ns = std::vector<double>(first.entrants.size(), 1000), .rejected = {}});
  play(race, with_noise({1000, 1000, 900}, 0.001));
  const auto standings = race.standings();
  EXPECT_TRUE(standings[1].excluded);
  EXPECT_EQ(standings[1].why, "crashed");
  EXPECT_EQ(race.leader(), 2);
}

TEST(Race, GoesOnWithoutABaseThatCrashed) {
  Race race(3, 0, {});
  race.exclude(0, "crashed");
  const Played played = play(race, with_noise({1, 1000, 1010}, 0.001));
  for (const RoundOrder& order : played.orders) EXPECT_EQ(order.entrants.size(), 2u);
  EXPECT_EQ(race.leader(), 1);
}

TEST(Race, HasNoLeaderWhenEverybodyIsExcluded) {
  Race race(2, 0, {});
  race.exclude(0, "crashed");
  race.exclude(1, "hung");
  EXPECT_EQ(race.next(), std::nullopt);
  EXPECT_EQ(race.leader(), -1);
  EXPECT_EQ(race.standings()[1].why, "hung");
  Race empty(0, -1, {});
  EXPECT_EQ(empty.next(), std::nullopt);
  EXPECT_EQ(empty.leader(), -1);
  EXPECT_TRUE(empty.standings().empty());
}

TEST(Race, RepeatsARejectedRound) {
  Race race(3, 0, {});
  const RoundOrder order = *race.next();
  race.add(order, {.ns = {}, .rejected = "clock moved"});
  EXPECT_FALSE(race.degraded());
  EXPECT_NE(race.next()->number, order.number);
  EXPECT_EQ(race.standings()[0].samples, 0);
  const Played played = play(race, with_noise({1000, 1001, 1002}, 0.0005));
  EXPECT_EQ(played.count(false), 16);
  EXPECT_FALSE(race.degraded());
}

TEST(Race, KeepsTheSixthRejectedRoundInARowAndIsDegraded) {
  Race race(2, 0, {.max_rounds = 10});
  int rounds = 0;
  while (auto order = race.next()) {
    race.add(*order,
             {.ns = std::vector<double>(order->entrants.size(), 1000), .rejected = "clock moved"});
    ++rounds;
    EXPECT_EQ(race.degraded(), rounds > Race::kMaxRejectedInARow);
    ASSERT_LT(rounds, 100);
  }
  EXPECT_EQ(rounds, 10 + Race::kMaxRejectedInARow);
  EXPECT_EQ(race.standings()[1].samples, 10);
}

TEST(Race, HandsOutTheSameRoundUntilItIsAnswered) {
  Race race(6, 0, {});
  const RoundOrder order = *race.next();
  EXPECT_EQ(race.next()->entrants, order.entrants);
  EXPECT_EQ(race.next()->number, order.number);
}

TEST(Race, DropsNobodyForOneOutlierInTwoRounds) {
  // In the first or the second round one entrant takes ten times its time: the slow one, the best,
  // the base. Nobody is dropped by it.
  for (int unlucky = 0; unlucky < 4; ++unlucky) {
    for (const int when : {0, 1}) {
      Race race(4, 0, {});
      play(race, [&](int entrant, int round, size_t position) {
        const double ns = 1000 + entrant + noise(entrant, round, position);
        return entrant == unlucky && round == when ? 10 * ns : ns;
      });
      for (const Standing& standing : race.standings()) {
        EXPECT_TRUE(standing.dropped_in_round < 0 || standing.dropped_in_round > 1);
        EXPECT_TRUE(standing.finalist);
      }
    }
  }
}

TEST(Race, CostsAManyTimesSlowerEntrantTwoTurns) {
  std::vector<double> ns(64, 1000);
  for (size_t i = 8; i < ns.size(); ++i) ns[i] = 1700 + 300.0 * static_cast<double>(i);
  Race race(64, 0, {});
  play(race, with_noise(ns, 0.02));
  for (size_t i = 8; i < ns.size(); ++i) EXPECT_EQ(race.standings()[i].samples, 2);
}

TEST(Race, GivesBlocksThatEqualTheRoundsOneByOne) {
  const auto script = with_noise({1000, 1003, 1002, 1050, 1200, 1001, 990, 2000, 1100}, 0.01);
  for (const int limit : {1, 3, 1000}) {
    Race blocks(9, 3, {.seed = 5}), single(9, 3, {.seed = 5});
    int rounds = 0;
    for (auto block = blocks.block(limit); !block.empty(); block = blocks.block(limit)) {
      ASSERT_LE(static_cast<int>(block.size()), limit);
      for (const RoundOrder& order : block) {
        ASSERT_EQ(single.next(), order);
        ASSERT_TRUE(blocks.wants(order));
        RoundSamples samples;
        for (size_t i = 0; i < order.entrants.size(); ++i) {
          samples.ns.push_back(script(order.entrants[i], order.number, i));
        }
        if (order.number % 9 == 2) samples.rejected = "clock moved";
        single.add(order, samples);
        blocks.add(order, samples);
        ++rounds;
      }
    }
    EXPECT_EQ(single.next(), std::nullopt);
    EXPECT_TRUE(same(blocks.standings(), single.standings()));
    EXPECT_GT(rounds, 40);
  }
}

TEST(Race, EndsABlockAtTheNextDecision) {
  Race race(5, 0, {});
  std::vector<size_t> sizes;
  for (auto block = race.block(100); !block.empty(); block = race.block(100)) {
    sizes.push_back(block.size());
    for (const RoundOrder& order : block) {
      race.add(order, {.ns = std::vector<double>(order.entrants.size(), 1000), .rejected = {}});
    }
  }
  EXPECT_EQ(sizes, (std::vector<size_t>{2, 2, 4, 8, 8, 8, 16}));
}

TEST(Race, VoidsTheRestOfABlockWhereSomebodyIsExcluded) {
  Race race(5, 0, {});
  std::vector<RoundOrder> block = race.block(2);
  ASSERT_EQ(block.size(), 2u);
  EXPECT_TRUE(race.wants(block[0]));
  EXPECT_FALSE(race.wants(block[1]));
  race.add(block[0], {.ns = std::vector<double>(7, 1000), .rejected = {}});
  EXPECT_TRUE(race.wants(block[1]));
  race.exclude(3, "crashed");
  EXPECT_FALSE(race.wants(block[1]));
  EXPECT_EQ(race.block(2).front(), *race.next());
}

TEST(Race, LetsSurelySlowerFinalistsLeave) {
  Race race(5, 1, {.checkpoints = {{2, 50}, {4, 10}, {16, 9}}});
  play(race, with_noise({1000, 1080, 1001, 1085, 1002}, 0.02));
  EXPECT_EQ(race.standings()[3].finalist, true);  // within the limit of the last checkpoint
  Race strict(5, 1, {.checkpoints = {{2, 50}, {4, 10}, {5, 5}}});
  play(strict, [](int entrant, int round, size_t position) {
    const std::vector<double> ns{1000, 1100, 1001, round < 8 ? 1010.0 : 1090.0, 1002};
    return ns[static_cast<size_t>(entrant)] * (1 + 0.004 * noise(entrant, round, position));
  });
  const auto standings = strict.standings();
  EXPECT_FALSE(standings[3].finalist);
  EXPECT_GT(standings[3].dropped_in_round, 8);
  EXPECT_NE(standings[3].why.find("rounds of the final (limit 5 %)"), std::string::npos)
      << standings[3].why;
  EXPECT_LT(strict.samples(3).size(), 33u);
  for (const size_t stays : {0, 1, 2, 4}) EXPECT_TRUE(standings[stays].finalist) << stays;
}

TEST(Race, DoesNotWaitForTheWidthOfWhoIsSurelySlower) {
  // The base scatters by 40 % but is three times slower: its interval will never be narrow.
  Race race(3, 2, {});
  const Played played = play(race, [](int entrant, int round, size_t position) {
    if (entrant == 2) return 3000 * (1 + 0.1 * noise(entrant, round, position));
    return (1000 + entrant) * (1 + 0.001 * noise(entrant, round, position));
  });
  EXPECT_EQ(played.count(true), 32);
}

TEST(Race, IsReplayedFromStoredRounds) {
  const RaceRules rules{.seed = 77};
  const auto script = with_noise({1000, 1003, 1002, 1050, 1200, 1001, 990, 2000, 1100}, 0.01);
  Race race(9, 3, rules);
  Played played;
  // With everything that can happen: rejected rounds, missed samples, a crash in between.
  while (auto order = race.next()) {
    RoundSamples samples;
    for (size_t i = 0; i < order->entrants.size(); ++i) {
      const bool missed = order->entrants[i] == 5 && order->number % 5 == 0;
      samples.ns.push_back(missed ? kNan : script(order->entrants[i], order->number, i));
    }
    if (order->number % 9 == 2) samples.rejected = "clock moved";
    race.add(*order, samples);
    played.orders.push_back(*order);
    played.samples.push_back(samples);
    if (order->number == 20) race.exclude(6, "crashed");
  }
  Race replayed(9, 3, rules);
  for (size_t i = 0; i < played.orders.size(); ++i) {
    const auto order = replayed.next();
    ASSERT_TRUE(order);
    EXPECT_EQ(order->number, played.orders[i].number);
    EXPECT_EQ(order->final, played.orders[i].final);
    EXPECT_EQ(order->entrants, played.orders[i].entrants);
    replayed.add(played.orders[i], played.samples[i]);
    if (played.orders[i].number == 20) replayed.exclude(6, "crashed");
  }
  EXPECT_EQ(replayed.next(), std::nullopt);
  EXPECT_TRUE(same(race.standings(), replayed.standings()));
  EXPECT_EQ(race.leader(), replayed.leader());
}

TEST(Race, RefusesWhatIsNoRace) {
  EXPECT_THROW(Race(2, 2, {}), std::invalid_argument);
  EXPECT_THROW(Race(2, 0, {.max_rounds = 0}), std::invalid_argument);
  Race race(2, 0, {});
  EXPECT_THROW(race.add(*race.next(), {.ns = {1.0}, .rejected = {}}), std::logic_error);
}

}  // namespace
}  // namespace muse::tuner
