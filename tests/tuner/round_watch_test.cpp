// SPDX-License-Identifier: Apache-2.0
// Rounds of a machine that holds still, that drifts, and that says it is slowed down.
#include "tuner/round_watch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "profiler/statistics.h"

namespace muse::tuner {
namespace {

using std::chrono::milliseconds;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

profiler::ClockReading clock_at(double sm_mhz, int64_t reasons = 0) {
  profiler::ClockReading clock;
  clock.sm_mhz = sm_mhz;
  clock.memory_mhz = 3201;
  clock.reason_bits = reasons;
  return clock;
}

struct Round {
  std::vector<int> turns;
  std::vector<double> ns;
};

/// A base as sentinel and three others, with that much noise.
Round round_of(profiler::SplitMix& random, double median_ns, double noise, double factor = 1) {
  Round round{.turns = {0, 2, 0, 1, 3, 0}, .ns = {}};
  for (const int turn : round.turns) {
    round.ns.push_back(factor * (median_ns + 100 * turn) *
                       (1 + noise * (2 * random.uniform() - 1)));
  }
  return round;
}

RoundVerdict judge(RoundWatch& watch, const Round& round,
                   const profiler::ClockReading& clock = clock_at(1980)) {
  return watch.judge(clock, round.turns, round.ns);
}

TEST(RoundWatch, LetsAQuietMachinePass) {
  RoundWatch watch(32);
  profiler::SplitMix random(1);
  for (int i = 0; i < 300; ++i) {
    const RoundVerdict verdict = judge(watch, round_of(random, 20000, 0.02));
    EXPECT_EQ(verdict.reason, "") << i;
    EXPECT_EQ(verdict.wait, milliseconds(0));
  }
}

TEST(RoundWatch, RejectsASlowdownAndNotWhatWasAskedFor) {
  profiler::SplitMix random(1);
  for (const int64_t bit : {0x8, 0x20, 0x40, 0x80}) {
    RoundWatch watch(32);
    EXPECT_NE(judge(watch, round_of(random, 20000, 0.01), clock_at(1980, bit | 1)).reason, "");
  }
  for (const int64_t bit : {0x1, 0x2, 0x4, 0x10, 0x100}) {
    RoundWatch watch(32);
    EXPECT_EQ(judge(watch, round_of(random, 20000, 0.01), clock_at(1980, bit)).reason, "");
  }
  RoundWatch watch(32);
  EXPECT_EQ(judge(watch, round_of(random, 20000, 0.01), clock_at(1980, 0x44)).reason,
            "clock held back: HW thermal slowdown");
}

TEST(RoundWatch, RejectsAClockThatMovedByMoreThanTwoPercent) {
  RoundWatch watch(32);
  profiler::SplitMix random(1);
  const auto at = [&](double mhz) {
    return judge(watch, round_of(random, 20000, 0.01), clock_at(mhz)).reason;
  };
  for (int i = 0; i < 4; ++i) EXPECT_EQ(at(1980), "");
  EXPECT_EQ(at(1950), "");
  EXPECT_EQ(at(1935), "SM clock moved from 1980 to 1935 MHz");
  EXPECT_EQ(at(2025), "SM clock moved from 1980 to 2025 MHz");
  EXPECT_EQ(at(1980), "");
  profiler::ClockReading memory = clock_at(1980);
  memory.memory_mhz = 2619;
  EXPECT_EQ(judge(watch, round_of(random, 20000, 0.01), memory).reason,
            "memory clock moved from 3201 to 2619 MHz");
}

TEST(RoundWatch, StartsAnewWhereAClockWasNotUpYet) {
  RoundWatch watch(32);
  profiler::SplitMix random(1);
  EXPECT_EQ(judge(watch, round_of(random, 20000, 0.01), clock_at(345)).reason, "");
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(judge(watch, round_of(random, 20000, 0.01), clock_at(1980)).reason, "");
  }
  EXPECT_NE(judge(watch, round_of(random, 20000, 0.01), clock_at(345)).reason, "");
}

TEST(RoundWatch, DoesNotJudgeClocksItDoesNotKnow) {
  RoundWatch watch(32);
  profiler::SplitMix random(1);
  for (int i = 0; i < 20; ++i) {
    const profiler::ClockReading clock = i % 2 ? clock_at(1980) : profiler::ClockReading{};
    EXPECT_EQ(judge(watch, round_of(random, 20000, 0.01), clock).reason, "");
  }
}

TEST(RoundWatch, RejectsARoundThatMovedAndAMoveWithinIt) {
  RoundWatch watch(32);
  profiler::SplitMix random(1);
  for (int i = 0; i < 20; ++i) judge(watch, round_of(random, 20000, 0.01));
  RoundWatch other = watch;
  EXPECT_NE(judge(watch, round_of(random, 20000, 0.01, 1.05)).reason.find("samples moved by +"),
            std::string::npos);
  Round tilted = round_of(random, 20000, 0.005);
  for (size_t i = 3; i < tilted.ns.size(); ++i) tilted.ns[i] *= 1.055;
  const std::string reason = judge(other, tilted).reason;
  EXPECT_NE(reason.find("samples moved"), std::string::npos) << reason;
}

TEST(RoundWatch, WaitsTwiceAsLongEachTimeAndNotForEver) {
  RoundWatch watch(32);
  profiler::SplitMix random(1);
  const Round round = round_of(random, 20000, 0.01);
  for (const int ms : {50, 100, 200, 400, 800, 0, 0}) {
    EXPECT_EQ(judge(watch, round, clock_at(1980, 0x40)).wait, milliseconds(ms));
  }
  EXPECT_EQ(judge(watch, round).wait, milliseconds(0));
  EXPECT_EQ(judge(watch, round, clock_at(1980, 0x40)).wait, milliseconds(50));
}

TEST(RoundWatch, StandsMissingSamplesAndNoTurns) {
  RoundWatch watch(32);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(watch.judge(clock_at(1980), {0, 1, 0}, {kNan, 1000, kNan}).reason, "");
    EXPECT_EQ(watch.judge(clock_at(1980), {}, {}).reason, "");
  }
}

TEST(RoundWatch, JudgesANoisyMachineByItsNoise) {
  // Whole rounds wander by 10 %: rejecting most of them would leave nothing.
  RoundWatch watch(1);
  profiler::SplitMix random(5);
  int rejected = 0;
  for (int i = 0; i < 300; ++i) {
    const double wander = 1 + 0.2 * (random.uniform() - 0.5);
    rejected += !judge(watch, round_of(random, 20000, 0.01, wander)).reason.empty();
  }
  EXPECT_LT(rejected, 45);
}

TEST(HostOverloaded, ComparesLoadWithCpus) {
  profiler::ClockReading clock;
  EXPECT_FALSE(host_overloaded(clock, 2));
  clock.load = 2;
  EXPECT_FALSE(host_overloaded(clock, 2));
  clock.load = 2.5;
  EXPECT_TRUE(host_overloaded(clock, 2));
}

/// Recorded rounds by race; their clocks were steady.
std::vector<std::vector<Round>> recorded() {
  std::ifstream file(MUSE_SOURCE_DIR "/tests/data/h200_rounds.txt");
  std::vector<std::vector<Round>> races;
  std::string line, last;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string race, turn;
    words >> race;
    if (race != last) races.emplace_back();
    last = race;
    Round round;
    while (words >> turn) {
      const size_t colon = turn.find(':');
      const std::string ns = turn.substr(colon + 1);
      round.turns.push_back(std::stoi(turn.substr(0, colon)));
      round.ns.push_back(ns == "-" ? kNan : std::stod(ns));
    }
    races.back().push_back(round);
  }
  return races;
}

TEST(RoundWatch, RejectsFewerThanOneInAHundredRecordedRounds) {
  int rounds = 0, rejected = 0;
  for (const auto& race : recorded()) {
    RoundWatch watch(31.75);
    for (const Round& round : race) {
      ++rounds;
      rejected += !judge(watch, round).reason.empty();
    }
  }
  EXPECT_GT(rounds, 1400);
  EXPECT_LT(rejected, rounds / 100);
}

/// Of all races, how many had a round rejected after the 24th where all later rounds take so many
/// times longer.
double caught(double factor) {
  const auto races = recorded();
  int found = 0;
  for (const auto& race : races) {
    RoundWatch watch(31.75);
    bool seen = false;
    for (size_t i = 0; i < race.size(); ++i) {
      Round round = race[i];
      if (i >= 24) {
        for (double& ns : round.ns) ns *= factor;
      }
      seen |= !judge(watch, round).reason.empty() && i >= 24;
    }
    found += seen;
  }
  return 1.0 * found / static_cast<double>(races.size());
}

TEST(RoundWatch, SeesWhenRecordedRoundsGetSlower) {
  // Most of these kernels take 2 to 10 us, and single samples scatter by more than 5 %.
  EXPECT_GE(caught(1.05), 0.65);
  EXPECT_GE(caught(1.10), 0.95);
}

}  // namespace
}  // namespace muse::tuner
