// SPDX-License-Identifier: Apache-2.0
// How long the rest takes, on made-up clocks.
#include "tuner/pace.h"

#include <gtest/gtest.h>

namespace muse::tuner {
namespace {

/// Two shapes of two spans each.
class PaceOf : public ::testing::Test {
 protected:
  PaceOf() {
    for (int shape = 0; shape < 2; ++shape) {
      pace_.expect("attention");
      pace_.expect("gate");
    }
  }
  void run(const std::string& kind, double seconds, int steps) {
    pace_.begin(kind, now_);
    for (int i = 0; i < steps; ++i) pace_.step();
    now_ += seconds;
    pace_.end(now_);
  }
  Pace pace_;
  double now_ = 0;
};

TEST_F(PaceOf, ASweepSaysNothingUntilEachKindIsKnown) {
  EXPECT_FALSE(pace_.left_s(now_));
  run("attention", 10, 100);
  EXPECT_FALSE(pace_.left_s(now_)) << "nothing is known of gates";
  run("gate", 2, 10);
  ASSERT_TRUE(pace_.left_s(now_));
  EXPECT_DOUBLE_EQ(*pace_.left_s(now_), 12);
}

TEST_F(PaceOf, ASweepAdvancesWithinALongSpan) {
  run("attention", 10, 100);
  run("gate", 2, 10);
  pace_.begin("attention", now_);
  double before = 12;
  for (int tenth = 1; tenth <= 10; ++tenth) {
    for (int i = 0; i < 10; ++i) pace_.step();
    now_ += 1;
    ASSERT_TRUE(pace_.left_s(now_));
    EXPECT_LT(*pace_.left_s(now_), before) << tenth;
    before = *pace_.left_s(now_);
  }
  EXPECT_NEAR(before, 2, 1e-9);
  for (int i = 0; i < 50; ++i) pace_.step();
  EXPECT_NEAR(*pace_.left_s(now_ + 5), 2, 1e-9) << "more steps than the others took";
}

TEST_F(PaceOf, ASlowerShapeShowsByItsOwnSteps) {
  run("attention", 10, 100);
  run("gate", 2, 10);
  pace_.begin("attention", now_);
  for (int i = 0; i < 50; ++i) pace_.step();
  EXPECT_GT(*pace_.left_s(now_ + 50), 2 + 5) << "ten times slower than what is known";
}

TEST_F(PaceOf, WhatWasKnownBeforeTeachesNothing) {
  run("attention", 0.01, 0);
  run("gate", 0.01, 0);
  EXPECT_FALSE(pace_.left_s(now_));
  run("attention", 10, 100);
  run("gate", 2, 10);
  EXPECT_DOUBLE_EQ(*pace_.left_s(now_), 0);
}

}  // namespace
}  // namespace muse::tuner
