// SPDX-License-Identifier: Apache-2.0
// Searches within sweeps, floors and blocks of rounds, on a device that follows a script.
#include "tuner/scout.h"

#include <gtest/gtest.h>

#include "tests/tuner/mocked_sweep.h"
#include "tuner/explanation.h"

namespace muse::tuner {
namespace {

/// 36 candidates of attention/mma, of which a guided search sees 8.
class Scouted : public MockedSweep {
 protected:
  Scouted() {
    settings_.config =
        "variants: {include: [attention/mma], tunables: {attention/mma: {tile_kv: [32, 64, 128], "
        "warps: [2, 4], heads_per_cta: [1, 2], partial_bf16: [0], splits: [8, 16, 32], "
        "cluster: [1], ticket: [0]}}}\n"
        "search: {kind: guided, share_pct: 30}\n";
    script_.ns = [](const fakes::Turn& turn) {
      const auto has = [&](const char* text) { return turn.chain.find(text) != std::string::npos; };
      return 20'000.0 * (has("splits=16") ? 1 : 1.5) * (has("warps=4") ? 1 : 1.3) *
             (has("tile_kv=128") ? 1.2 : 1);
    };
  }
  static int count(const db::Store& store, db::Id run, const std::string& status) {
    int found = 0;
    for (const db::RaceRow& race : store.races(run)) found += race.status == status;
    return found;
  }
  static std::map<std::string, int> states(const db::Store& store, db::Id run) {
    std::map<std::string, int> found;
    for (const auto& t : store.run_trials(run)) ++found[t.trial.state];
    return found;
  }
  Settings settings_;
  fakes::Script script_;
};

TEST_F(Scouted, ASearchMeasuresItsShareAndSaysSo) {
  fakes::MockMeasurer measurer(script_);
  const Swept swept = sweep(measurer, settings_);
  ASSERT_EQ(swept.result.searched.size(), 1u);
  const SearchedShare& share = swept.result.searched.front();
  EXPECT_EQ(share.of, static_cast<int>(planned(settings_).size()));
  EXPECT_GT(share.seen, 0);
  EXPECT_LT(share.seen, share.of / 2);
  EXPECT_EQ(measurer.validations, share.seen + 1) << "and the whole base";
  const db::Store store = open();
  EXPECT_EQ(count(store, swept.run, "scout"), 3) << "the last of four batches needs none";
  EXPECT_EQ(count(store, swept.run, "complete"), 2);
  EXPECT_EQ(states(store, swept.run)["pending"], share.of - share.seen);
  EXPECT_EQ(states(store, swept.run)["ok"], share.seen + 1);
  const std::string winner = swept.winner("attention").chain;
  EXPECT_NE(winner.find("splits=16"), std::string::npos) << winner;
  EXPECT_NE(winner.find("warps=4"), std::string::npos) << winner;
}

TEST_F(Scouted, AScoutsSamplesAreNoMediansAndDecideNothing) {
  const Swept swept = sweep(script_, settings_);
  const db::Store store = open();
  std::set<db::Id> deciding;
  for (const db::RaceRow& race : store.races(swept.run)) {
    if (race.status == "complete") deciding.insert(race.id);
  }
  for (const db::SelectionRow& row : store.selections(swept.run)) {
    EXPECT_TRUE(deciding.contains(row.race_id));
  }
  for (const auto& t : store.run_trials(swept.run)) {
    if (t.trial.state != "ok") continue;
    ASSERT_TRUE(store.last_race(t.trial.id));
    EXPECT_TRUE(deciding.contains(*store.last_race(t.trial.id)));
  }
}

TEST_F(Scouted, ASecondSweepSearchesByWhatIsStored) {
  const Swept first = sweep(script_, settings_);
  fakes::MockMeasurer measurer(script_);
  Settings again = settings_;
  again.command = "again";
  const Swept second = sweep(measurer, again);
  EXPECT_EQ(measurer.samples, 0);
  EXPECT_EQ(measurer.validations, 0);
  EXPECT_EQ(second.winner("attention").chain, first.winner("attention").chain);
  EXPECT_EQ(second.result.searched.front().seen, first.result.searched.front().seen);
  EXPECT_EQ(states(open(), second.run), states(open(), first.run));
}

TEST_F(Scouted, CutOffAtAnyRequestASearchGoesOnToTheSame) {
  settings_.database = "whole.db";
  fakes::MockMeasurer whole(script_);
  const Swept first = sweep(whole, settings_);
  const auto seen = states(open("whole.db"), first.run);
  for (int at = 1; at < whole.requests; at += 3) {
    settings_.database = "cut" + std::to_string(at) + ".db";
    fakes::MockMeasurer cut(script_);
    cut.stop_at = at;
    cut.answers_before_it_stops = at % 2 == 0;
    sweep(cut, settings_);
    orphan(settings_.database);
    fakes::MockMeasurer rest(script_);
    const Swept second = sweep(rest, settings_);
    EXPECT_TRUE(second.resumed);
    EXPECT_LE(cut.validations + rest.validations, whole.validations + 1) << at;
    EXPECT_EQ(second.winner("attention").chain, first.winner("attention").chain) << at;
    EXPECT_EQ(states(open(settings_.database), second.run), seen) << at;
    EXPECT_EQ(count(open(settings_.database), second.run, "scouting"), 0) << at;
  }
}

TEST_F(Scouted, AFailedCandidateCountsAsSeenAndIsNotTriedAgain) {
  script_.validate = [](const ValidateRequest& request) -> fakes::Script::Verdict {
    if (request.chain.find("warps=4") == std::string::npos) return fakes::passed();
    return fakes::failed(Outcome::kIncorrect, "wrong");
  };
  const Swept swept = sweep(script_, settings_);
  const db::Store store = open();
  EXPECT_GT(states(store, swept.run)["incorrect"], 0);
  EXPECT_EQ(swept.winner("attention").chain.find("warps=4"), std::string::npos);
  fakes::MockMeasurer measurer(script_);
  settings_.command = "again";
  sweep(measurer, settings_);
  EXPECT_EQ(measurer.validations + measurer.samples, 0);
}

TEST_F(Scouted, ARandomSearchNeedsNoScouts) {
  settings_.config.replace(settings_.config.find("guided"), 6, "random");
  const Swept swept = sweep(script_, settings_);
  EXPECT_EQ(count(open(), swept.run, "scout"), 0);
  EXPECT_LT(swept.result.searched.front().seen, swept.result.searched.front().of / 2);
}

TEST_F(Scouted, WhatIsNotSeenIsExplained) {
  const Swept swept = sweep(script_, settings_);
  const db::Store store = open();
  bool told = false;
  for (const ExplainedGroup& group :
       explain(store, *store.run(swept.run), [](const auto&, const auto&) { return true; })) {
    if (group.span != "attention") continue;
    told = true;
    EXPECT_EQ(group.searched, text(swept.result.searched.front()));
    EXPECT_EQ(group.trials.back().why, "not seen: " + group.searched);
  }
  EXPECT_TRUE(told);
}

using Floors = Scouted;

TEST_F(Floors, ASampleBelowTheFloorIsRejectedWithTheReason) {
  settings_.config = attentions(kTwelve);
  settings_.hello.limits = {
      .dram_bytes_per_s = 4.8e12, .sm_clock_hz = 1.98e9, .launch_floor_ns = 900};
  const std::string cheat = planned(settings_).back();
  script_.ns = [&](const fakes::Turn& turn) { return turn.chain == cheat ? 300.0 : 20'000.0; };
  const Swept swept = sweep(script_, settings_);
  const db::Store store = open();
  const auto caught = trial(store, cheat);
  EXPECT_EQ(caught.trial.state, "unmeasurable");
  EXPECT_NE(caught.trial.reason.find("below the floor of 0.90 us"), std::string::npos)
      << caught.trial.reason;
  EXPECT_FALSE(caught.median_ns);
  EXPECT_NE(swept.winner("attention").chain, cheat);
}

TEST_F(Floors, OfManyBytesIsWhatTheMemoryNeeds) {
  settings_.config = attentions(kTwelve) + "measure: {regimes: [cold, warm]}\n";
  settings_.shapes =
      "  - {batch: 64, q_len: 1, window: 0, rope_theta: 0, context: 16384, pool_bytes: 1MiB}\n";
  settings_.hello.limits = {
      .dram_bytes_per_s = 4.8e12, .sm_clock_hz = 1.98e9, .launch_floor_ns = 900};
  script_.ns = [](const fakes::Turn&) { return 20'000.0; };  // 256 MB need 56 us
  const Swept swept = sweep(script_, settings_);
  const db::Store store = open();
  int cold = 0, warm = 0;
  for (const auto& t : store.run_trials(swept.run)) {
    if (t.candidate.span != "attention") continue;
    if (t.trial.key.regime == "warm") {
      ++warm;
      EXPECT_EQ(t.trial.state, "ok") << "in caches maybe";
      continue;
    }
    ++cold;
    EXPECT_EQ(t.trial.state, "unmeasurable");
    EXPECT_NE(t.trial.reason.find("MB cannot be read faster"), std::string::npos) << t.trial.reason;
  }
  EXPECT_GT(cold, 0);
  EXPECT_EQ(warm, cold);
}

using Blocks = Scouted;

TEST_F(Blocks, AfterTwoRejectedRoundsTheMachineIsGivenTime) {
  settings_.config = attentions("8, 16");
  // Throttled for as long as nobody waits: every block's rounds but the first of all.
  script_.clock = [](int round) {
    profiler::ClockReading reading = fakes::steady_clock_reading();
    if (round >= 4 && round < 10) reading.reason_bits = 0x40;  // hardware thermal slowdown
    return reading;
  };
  const Swept swept = sweep(script_, settings_);
  const db::Store store = open();
  for (const db::RaceRow& race : store.races(swept.run)) {
    int in_a_row = 0;
    for (const db::RoundRow& round : store.rounds(race.id)) {
      in_a_row = round.rejected.empty() ? 0 : in_a_row + 1;
      EXPECT_LE(in_a_row, Race::kMaxRejectedInARow);
    }
  }
  for (const auto& t : store.run_trials(swept.run)) EXPECT_EQ(t.trial.state, "ok");
}

TEST_F(Scouted, ARunKeepsWhatItCostAndAResumedOneAddsToIt) {
  fakes::MockMeasurer cut(script_);
  cut.stop_at = 20;
  sweep(cut, settings_);
  const auto cost = [&] { return nlohmann::json::parse(open().last_run()->cost); };
  const double before = cost()["wall_s"];
  EXPECT_GT(before, 0);
  {
    db::Store store = db::Store::open(folder_ / "a.db", db::Open::kWrite);
    const db::RunRow run = *store.last_run();
    store.resume_run(run.id, R"({"pid": 1, "pid_start": "never"})");
    store.finish_run(run.id, "interrupted", run.ended, R"({"wall_s": 1000.0, "rounds_s": 500.0})");
  }
  EXPECT_TRUE(sweep(script_, settings_).resumed);
  EXPECT_GT(cost()["wall_s"], 1000);
  EXPECT_LT(cost()["wall_s"], 1500);
  EXPECT_GT(cost()["rounds_s"], 500);
  EXPECT_GE(cost()["device_s"], 0);
}

}  // namespace
}  // namespace muse::tuner
