// SPDX-License-Identifier: Apache-2.0
// Sweeps on a scripted device: the right winner in spite of drift, throttling, outliers and broken
// samples, and the same one however the sweep was cut up.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "profiler/nvml.h"
#include "profiler/sampler.h"
#include "tests/tuner/mocked_sweep.h"
#include "tuner/agreement.h"
#include "tuner/explanation.h"

namespace muse::tuner {
namespace {

using fakes::Script;
using fakes::Turn;

/// Twelve attentions, one of them a certain share faster than all others.
class Measuring : public MockedSweep {
 protected:
  Measuring() : keys_(planned()) {
    std::erase_if(keys_, [](const std::string& key) { return key.find("splits=16") != key.npos; });
    best_ = keys_.at(5);
  }
  Script best_by(double share) const {
    return {.ns = times_of({{best_, 20'000 * (1 - share)}}, 20'000)};
  }
  std::vector<std::string> keys_;  ///< without the base's
  std::string best_;
};

TEST_F(Measuring, FindsTheBestByTwoPercent) {
  ASSERT_EQ(keys_.size(), 12U);
  const Swept swept = sweep(best_by(0.02));
  EXPECT_EQ(swept.winner("attention").chain, best_);
  EXPECT_EQ(swept.winner("attention").selection.status, "winner");
  EXPECT_EQ(exit_code(swept.result), ExitCode::kOk);
  EXPECT_EQ(swept.result.outcomes.at(Outcome::kOk), static_cast<int>(keys_.size()) + 2) << "bases";
  const db::Store store = open();
  EXPECT_NEAR(*trial(store, best_).median_ns, 19'600, 60);
  EXPECT_TRUE(rejections(store, swept.run).empty());
}

// 5 % over 100 rounds: pairs within a round see none of it.
TEST_F(Measuring, ASlowDriftDoesNotChangeTheWinner) {
  Script script = best_by(0.02);
  const auto truth = script.ns;
  script.ns = [truth](const Turn& turn) {
    return truth(turn) * (1 + 0.0005 * std::min(turn.round, 100));
  };
  const Swept swept = sweep(script);
  EXPECT_EQ(swept.winner("attention").chain, best_);
  EXPECT_NE(swept.winner("attention").selection.status, "degraded");
}

TEST_F(Measuring, ACandidateOfTwoModesIsJudgedByItsUsualOne) {
  const std::string bimodal = keys_[2];
  const auto with_slow_share = [&](int of_ten) {
    return Script{.ns = [=, this](const Turn& turn) {
      if (turn.chain == best_) return 20'000.0;
      if (turn.chain != bimodal) return 23'000.0;
      return (turn.round * 7 + turn.place) % 10 < of_ten ? 22'000.0 : 19'000.0;
    }};
  };
  EXPECT_EQ(sweep(with_slow_share(2)).winner("attention").chain, bimodal);
  Settings other;
  other.database = "b.db";
  EXPECT_EQ(sweep(with_slow_share(8), other).winner("attention").chain, best_);
}

TEST_F(Measuring, RoundsOfAThrottledClockAreStoredWithTheReasonAndTakenAgain) {
  constexpr int64_t kThermal = 0x40;
  const auto hot = [](int round) { return round >= 5 && round < 8; };
  Script script = best_by(0.02);
  const auto truth = script.ns;
  script.ns = [=](const Turn& turn) { return truth(turn) * (hot(turn.round) ? 2 : 1); };
  script.clock = [=](int round) {
    profiler::ClockReading clock = fakes::steady_clock_reading();
    if (!hot(round)) return clock;
    clock.sm_mhz /= 2;
    clock.reason_bits = kThermal;
    return clock;
  };
  const Swept swept = sweep(script);
  EXPECT_EQ(swept.winner("attention").chain, best_);
  EXPECT_EQ(swept.winner("attention").selection.status, "winner");
  const db::Store store = open();
  const auto rejected = rejections(store, swept.run);
  const auto races = static_cast<int>(store.races(swept.run).size());
  ASSERT_EQ(rejected.size(), 1U);
  EXPECT_NE(rejected.begin()->first.find(profiler::clock_reasons(kThermal)), std::string::npos);
  // After the second one in a row the rest of a block is let go.
  EXPECT_GE(rejected.begin()->second, 2 * races);
  EXPECT_LE(rejected.begin()->second, 3 * races);
  EXPECT_NEAR(*trial(store, best_).median_ns, 19'600, 60) << "hot samples are no times";
}

TEST_F(Measuring, AClockThatMovesWithoutAReasonIsSeenToo) {
  Script script = best_by(0.02);
  script.clock = [](int round) {
    profiler::ClockReading clock = fakes::steady_clock_reading();
    if (round == 6) clock.sm_mhz /= 2;
    return clock;
  };
  const Swept swept = sweep(script);
  EXPECT_EQ(swept.winner("attention").chain, best_);
  const db::Store store = open();
  const auto rejected = rejections(store, swept.run);
  ASSERT_EQ(rejected.size(), 1U);
  EXPECT_NE(rejected.begin()->first.find("SM clock moved from 1980 to 990 MHz"), std::string::npos);
}

TEST_F(Measuring, ABusyHostIsSaidOnceAndKeptWithTheRun) {
  const int cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Script script = best_by(0.02);
  script.clock = [=](int round) {
    profiler::ClockReading clock = fakes::steady_clock_reading();
    clock.load = round < 4 ? cpus : cpus + 2.5;
    return clock;
  };
  testing::internal::CaptureStderr();
  const Swept swept = sweep(script);
  const std::string said = testing::internal::GetCapturedStderr();
  const std::string line = "the host is busy (load " + std::to_string(cpus + 2) + ".5 on " +
                           std::to_string(cpus) + " CPUs): times may be off\n";
  const size_t at = said.find(line);
  ASSERT_NE(at, std::string::npos) << said;
  EXPECT_EQ(said.find("the host is busy", at + 1), std::string::npos) << said;
  const auto environment = nlohmann::json::parse(open().run(swept.run)->environment);
  EXPECT_EQ(environment["load"], cpus + 2.5);
  EXPECT_EQ(environment["cpus"], cpus);
  EXPECT_TRUE(environment.contains("pid")) << "what was known before stays";
  EXPECT_TRUE(rejections(open(), swept.run).empty());
}

TEST_F(Measuring, ACardThatStaysThrottledGivesDegradedResultsAndNeverNone) {
  Script script = best_by(0.05);
  script.clock = [](int round) {
    profiler::ClockReading clock = fakes::steady_clock_reading();
    if (round < 2) return clock;
    clock.sm_mhz /= 2;
    clock.reason_bits = 0x8;
    return clock;
  };
  const Swept swept = sweep(script);
  EXPECT_EQ(swept.winner("attention").chain, best_);
  EXPECT_EQ(swept.winner("attention").selection.status, "degraded");
  EXPECT_FALSE(swept.winner("prepare..gate").chain.empty());
  const db::Store store = open();
  for (const auto& one : store.run_trials(swept.run)) {
    EXPECT_EQ(one.trial.state, "degraded") << one.candidate.key;
    EXPECT_TRUE(one.median_ns) << one.candidate.key;
  }
  for (const ExplainedGroup& group :
       explain(store, *store.last_run(), [](const auto&...) { return true; })) {
    for (const ExplainedTrial& one : group.trials) {
      if (one.trial == 0) continue;  // a pipeline that was not measured
      EXPECT_NE(one.why.find("; degraded: rounds rejected: "), std::string::npos) << one.why;
      EXPECT_NE(one.why.find("HW slowdown"), std::string::npos) << one.why;
    }
  }
}

TEST_F(Measuring, WhetherADecisionIsDegradedIsSaidByTheRaceThatDecides) {
  Script cool = best_by(0.05), hot = cool;
  hot.clock = [](int round) {
    profiler::ClockReading clock = fakes::steady_clock_reading();
    if (round >= 2) clock.reason_bits = 0x8;
    return clock;
  };
  Settings again;
  again.options.fresh = true;
  again.command = "sweep again";
  EXPECT_EQ(sweep(hot).winner("attention").selection.status, "degraded");
  EXPECT_EQ(sweep(cool, again).winner("attention").selection.status, "winner");
  EXPECT_EQ(sweep(hot, again).winner("attention").selection.status, "degraded");
}

TEST_F(Measuring, OutliersChangeNothing) {
  Script script = best_by(0.02);
  const auto truth = script.ns;
  script.ns = [=](const Turn& turn) {  // one in 17, up to 10 times
    const int at = turn.round * 31 + turn.place * 7;
    return truth(turn) * (at % 17 == 0 ? 1.5 + at % 9 : 1);
  };
  const Swept swept = sweep(script);
  EXPECT_EQ(swept.winner("attention").chain, best_);
  EXPECT_NEAR(*trial(open(), best_).median_ns, 19'600, 60);
}

// The first sample of each loads its code.
TEST_F(Measuring, ASlowFirstLaunchOfEachDoesNotCount) {
  Script script = best_by(0.02);
  const auto truth = script.ns;
  script.ns = [=](const Turn& turn) { return truth(turn) * (turn.sample == 0 ? 100 : 1); };
  const Swept swept = sweep(script);
  EXPECT_EQ(swept.winner("attention").chain, best_);
  EXPECT_EQ(swept.winner("attention").selection.status, "winner");
}

TEST_F(Measuring, BrokenSamplesAreCountedAndNeverTimes) {
  const std::string zero = profiler::host_sample(7, 7).rejected;
  const std::string backward = profiler::host_sample(9, 7).rejected;
  ASSERT_FALSE(zero.empty());
  ASSERT_FALSE(backward.empty());
  const std::vector<std::string> reasons{zero, backward, "2 records of 3 kernels"};
  const std::string flaky = keys_[1], never = keys_[3];
  Script script = best_by(0.02);
  script.rejected = [=](const Turn& turn) -> std::string {
    if (turn.chain == never) return reasons[turn.sample % 3];
    return turn.chain == flaky && turn.sample % 5 == 2 ? backward : "";
  };
  const Swept swept = sweep(script);
  EXPECT_EQ(swept.winner("attention").chain, best_);
  EXPECT_EQ(exit_code(swept.result), ExitCode::kIncomplete);
  EXPECT_EQ(swept.result.outcomes.at(Outcome::kUnmeasurable), 1);
  const db::Store store = open();
  const auto unmeasurable = trial(store, never);
  EXPECT_EQ(unmeasurable.trial.state, "unmeasurable");
  EXPECT_FALSE(unmeasurable.median_ns);
  EXPECT_TRUE(std::any_of(reasons.begin(), reasons.end(), [&](const std::string& reason) {
    return unmeasurable.trial.reason.find(reason) != std::string::npos;
  })) << unmeasurable.trial.reason;
  EXPECT_EQ(trial(store, flaky).trial.state, "ok");
  EXPECT_NEAR(*trial(store, flaky).median_ns, 20'000, 100);
  int missing = 0;
  for (const db::RaceRow& race : store.races(swept.run)) {
    for (const db::RoundRow& round : store.rounds(race.id)) {
      for (const db::SampleRow& sample : round.samples) {
        for (const double ns : sample.ns) {
          if (std::isnan(ns)) ++missing;
          EXPECT_FALSE(ns <= 0);
        }
      }
    }
  }
  EXPECT_GE(missing, 2) << "counted, as samples without a value";
}

TEST_F(Measuring, OneKernelUnderTwelveNamesIsOneTieSetWhoseLeadFavoursNoPlace) {
  constexpr int kSeeds = 120;
  std::map<std::string, int> led;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    // Whoever runs later in a round finds the card a little warmer.
    const Script script{.seed = seed, .ns = [this](const Turn& turn) {
                          const bool base =
                              std::find(keys_.begin(), keys_.end(), turn.chain) == keys_.end();
                          return (base ? 28'000 : 20'000) * (1 + 0.0005 * turn.place);
                        }};
    Settings settings;
    settings.database = std::to_string(seed) + ".db";
    settings.options.seed = seed;
    const Swept swept = sweep(script, settings);
    const Winner& winner = swept.winner("attention");
    EXPECT_EQ(winner.selection.status, "tie(7)") << "eight finalists, one of them the base";
    EXPECT_EQ(winner.selection.rule, "tie_name");
    {
      const db::Store store = open(settings.database);
      const std::vector<std::string> tied = ties(selection(store, swept.run, "attention"));
      EXPECT_EQ(winner.chain, *std::min_element(tied.begin(), tied.end()));
      const auto trials = store.run_trials(swept.run);
      ++led[std::min_element(trials.begin(), trials.end(), [&](const auto& a, const auto& b) {
              return a.median_ns.value_or(1e9) < b.median_ns.value_or(1e9);
            })->candidate.key];
    }
    std::filesystem::remove(folder_ / settings.database);
  }
  double chi = 0, by_place = 0;
  const double expected = kSeeds / static_cast<double>(keys_.size());
  for (size_t i = 0; i < keys_.size(); ++i) {
    const double count = led[keys_[i]];
    chi += (count - expected) * (count - expected) / expected;
    by_place += static_cast<double>(i) * count;
  }
  EXPECT_LT(chi, 31.3) << "99.9 % of chi-square with 11 degrees of freedom";
  const double places = static_cast<double>(keys_.size());
  const double deviation = std::sqrt((places * places - 1) / 12 / kSeeds);
  EXPECT_NEAR(by_place / kSeeds, (places - 1) / 2, 3.3 * deviation);
}

// ------------------------------------------------------------------ candidates that misbehave

TEST_F(Measuring, WhoEndsItsWorkerAfterSomeSamplesIsNamedAndCostsNobodyElse) {
  const std::string culprit = keys_[7];
  Script script = best_by(0.02);
  script.lost = [=](const Turn& turn) -> std::optional<WorkerLoss> {
    if (turn.chain != culprit || turn.sample < 5) return std::nullopt;
    return WorkerLoss{.outcome = Outcome::kCrashed, .reason = "worker ended by signal 11"};
  };
  const Swept swept = sweep(script);
  EXPECT_EQ(swept.winner("attention").chain, best_);
  EXPECT_EQ(swept.result.outcomes.at(Outcome::kCrashed), 1);
  const db::Store store = open();
  EXPECT_EQ(trial(store, culprit).trial.state, "crashed");
  EXPECT_EQ(trial(store, culprit).trial.reason, "worker ended by signal 11");
  EXPECT_EQ(swept.result.outcomes.at(Outcome::kOk), static_cast<int>(keys_.size()) + 1);
}

// Alone it behaves: then the sample that ran when the worker ended names it.
TEST_F(Measuring, WhoEndsItsWorkerOnlyAmongOthersIsNamedByTheSampleThatRan) {
  const std::string culprit = keys_[7];
  Script script = best_by(0.02);
  script.lost = [=](const Turn& turn) -> std::optional<WorkerLoss> {
    if (turn.chain != culprit || turn.place == 0 || turn.sample < 3) return std::nullopt;
    return WorkerLoss{.outcome = Outcome::kTimeout, .reason = "no step within 2 s"};
  };
  const Swept swept = sweep(script);
  EXPECT_EQ(swept.winner("attention").chain, best_);
  EXPECT_EQ(trial(open(), culprit).trial.state, "timeout");
  EXPECT_EQ(swept.result.outcomes.at(Outcome::kOk), static_cast<int>(keys_.size()) + 1);
}

TEST_F(Measuring, ALaunchThatIsRefusedInARoundIsAnOutcomeWithoutATime) {
  const std::string refused = keys_[0];
  Script script = best_by(0.02);
  script.refused = [=](const Turn& turn) -> std::pair<std::string, std::string> {
    if (turn.chain != refused) return {};
    return {"launch_failed", "cudaErrorInvalidConfiguration"};
  };
  const Swept swept = sweep(script);
  EXPECT_EQ(swept.winner("attention").chain, best_);
  const db::Store store = open();
  EXPECT_EQ(trial(store, refused).trial.state, "launch_failed");
  EXPECT_EQ(trial(store, refused).trial.reason, "cudaErrorInvalidConfiguration");
  EXPECT_FALSE(trial(store, refused).median_ns);
}

/// All stages, so that there are pipelines.
class Pipelines : public MockedSweep {
 protected:
  Pipelines() {
    settings_.config =
        "variants: {include: [prepare/fused, attention/mma, combine/gated], tunables: "
        "{attention/mma: "
        "{tile_kv: [64], warps: [4], heads_per_cta: [1], partial_bf16: [0], splits: [8, 16], "
        "ticket: [0]}, "
        "combine/gated: {threads: [128], lanes: [32], splits_per_step: [1, 4]}}}\n";
    settings_.filter = {};
  }
  Settings settings_;
};

TEST_F(Pipelines, AWinnerThatKeepsItsOutputIsDroppedAndTheNextOneWins) {
  const std::string reason = "gate end_to_end, buffer out: got 0.5, expected 0.25";
  const Swept honest = sweep(Script{.ns = times_of({}, 10'000)}, settings_);
  ASSERT_FALSE(honest.winner("prepare..gate").chain.empty());
  const db::Store before = open();
  std::string cheat;  // any pipeline but the base
  for (const auto& one : before.run_trials(honest.run)) {
    if (one.candidate.pipeline && one.candidate.key != honest.winner("prepare..gate").base_chain) {
      cheat = one.candidate.key;
    }
  }
  ASSERT_FALSE(cheat.empty());

  Script script;
  const auto truth = times_of({}, 10'000);
  script.ns = [=](const Turn& turn) { return turn.chain == cheat ? 9'000 : truth(turn); };
  script.revalidate = [=](const RevalidateRequest& request) -> Script::Verdict {
    EXPECT_NE(request.seed, request.other_seed);
    return request.entrant.chain == cheat ? fakes::failed(Outcome::kIncorrect, reason)
                                          : fakes::passed();
  };
  settings_.database = "b.db";
  const Swept swept = sweep(script, settings_);
  EXPECT_NE(swept.winner("prepare..gate").chain, cheat);
  EXPECT_FALSE(swept.winner("prepare..gate").chain.empty());
  const db::Store store = open("b.db");
  EXPECT_EQ(trial(store, cheat).trial.state, "incorrect");
  EXPECT_EQ(trial(store, cheat).trial.reason, reason);
  EXPECT_FALSE(trial(store, cheat).median_ns) << "in no ranking";
  EXPECT_EQ(exit_code(swept.result), ExitCode::kIncomplete);
  for (const std::string& tied : ties(selection(store, swept.run, "prepare..gate"))) {
    EXPECT_NE(tied, cheat);
  }
}

TEST_F(Pipelines, WhereRegimesDisagreeEachHasItsOwnWinner) {
  settings_.config += "measure: {regimes: [cold, warm]}\n";
  const std::vector<std::string> keys = planned(settings_);
  std::vector<std::string> attention;
  for (const std::string& key : keys) {
    if (key.starts_with("attention/")) attention.push_back(key);
  }
  ASSERT_EQ(attention.size(), 6U) << "three for each regime, ordered alike";
  Script script;
  script.ns = [&](const Turn& turn) {
    const std::string& best = turn.regime == "cold" ? attention[0] : attention[1];
    double ns = turn.chain.find("attention/") == std::string::npos ? 5'000 : 20'000;
    if (turn.chain.find(best) != std::string::npos) ns *= 0.9;
    return turn.regime == "warm" ? ns * 0.7 : ns;
  };
  const Swept swept = sweep(script, settings_);
  EXPECT_EQ(swept.winner("attention", "cold").chain, attention[0]);
  EXPECT_EQ(swept.winner("attention", "warm").chain, attention[1]);
  const db::Store store = open();
  std::map<std::string, std::set<std::string>> protocols;
  for (const auto& one : store.run_trials(swept.run)) {
    protocols[one.trial.key.regime].insert(one.trial.key.protocol_hash);
  }
  ASSERT_EQ(protocols.size(), 2U);
  EXPECT_NE(protocols["cold"], protocols["warm"]);
  std::map<db::Id, std::string> regimes;
  for (const auto& one : store.run_trials(swept.run)) {
    regimes[one.trial.id] = one.trial.key.regime;
  }
  for (const db::RaceRow& race : store.races(swept.run)) {
    for (const db::RoundRow& round : store.rounds(race.id)) {
      for (const db::Id id : round.order) EXPECT_EQ(regimes.at(id), race.regime);
    }
  }
}

// ------------------------------------------------------------------ cut up and repeated

TEST_F(Pipelines, StoppedAtAnyRequestItGoesOnToTheSameSelections) {
  // Two siblings with winners of their own, which then race on both.
  settings_.config.replace(settings_.config.find("[8, 16]"), 7, "[8, 32]");
  settings_.config += "pipelines: {top_k: 1}\nmeasure: {max_rounds: 48}\n";
  settings_.shapes =
      "  - {batch: [2, 8], q_len: 1, window: 0, rope_theta: 0, context: 4096, pool_bytes: 1MiB}\n";
  const auto selections = [&](const std::string& database) {
    std::vector<std::string> rows;
    const db::Store store = open(database);
    for (const db::SelectionRow& row : store.selections(store.last_run()->id)) {
      rows.push_back(store.problem(row.problem_id).key + " " + row.span + " of " + row.handoff_in +
                     ": " + row.tie_set + " " + row.rule + " " + row.status + " " +
                     std::to_string(row.median_ns));
    }
    return rows;
  };
  Script script{.noise = 0.003};
  script.ns = [truth = times_of({}, 10'000)](const Turn& turn) {
    const char* best = turn.shape.starts_with("b2_") ? "splits=8," : "splits=32";
    return truth(turn) * (turn.chain.find(best) != std::string::npos ? 0.9 : 1);
  };
  fakes::MockMeasurer whole(script);
  settings_.options.seed = 7;
  sweep(whole, settings_);
  const std::vector<std::string> expected = selections("a.db");
  ASSERT_GE(expected.size(), 8U);
  int steps = 0;
  for (const db::RaceRow& race : open().races(1)) steps += race.span == "prepare..gate";
  ASSERT_EQ(steps, 4) << "two for each shape";
  ASSERT_GT(whole.requests, 20);
  settings_.database = "b.db";
  for (int at = 0; at < whole.requests; ++at) {
    std::filesystem::remove(folder_ / "b.db");
    fakes::MockMeasurer cut(script);
    cut.stop_at = at;
    cut.answers_before_it_stops = at % 2 == 1;
    const Swept first = sweep(cut, settings_);
    ASSERT_EQ(exit_code(first.result), ExitCode::kTerminated) << at;
    EXPECT_EQ(open("b.db").last_run()->status, "interrupted");
    orphan("b.db");
    cut.stop = 0;
    const Swept rest = sweep(cut, settings_);
    EXPECT_TRUE(rest.resumed) << at;
    EXPECT_EQ(exit_code(rest.result), ExitCode::kOk) << at;
    EXPECT_EQ(selections("b.db"), expected) << "stopped at request " << at;
    EXPECT_EQ(rest.result.reused, 0) << "what the same run has measured is not another's";
  }
}

TEST_F(Pipelines, OutOfBudgetItSaysSoAndGoesOn) {
  const Script script{.ns = times_of({}, 10'000)};
  settings_.options.budget = std::chrono::duration<double>(0);
  const Swept cut = sweep(script, settings_);
  EXPECT_TRUE(cut.result.out_of_budget);
  EXPECT_EQ(exit_code(cut.result), ExitCode::kIncomplete);
  EXPECT_EQ(open().last_run()->status, "incomplete");
  orphan();
  settings_.options.budget.reset();
  const Swept rest = sweep(script, settings_);
  EXPECT_EQ(rest.run, cut.run);
  EXPECT_EQ(exit_code(rest.result), ExitCode::kOk);
  EXPECT_EQ(open().last_run()->status, "complete");
}

TEST_F(Measuring, ARepetitionGoesOnOnlyWhereItIsTheSameInEveryWay) {
  Settings settings;
  settings.command = "sweep --repeat 1/2";
  sweep(best_by(0.02), settings);
  settings.command = "sweep --repeat 2/2";
  settings.options.fresh = true;
  fakes::MockMeasurer cut(best_by(0.02));
  cut.stop_at = 5;
  const Swept second = sweep(cut, settings);
  const auto found = [&](const std::string& command, const Settings& now) {
    const auto run = resumable_run(open(), spec(now), now.hello,
                                   {.command = command, .timer = now.timer, .base = ""});
    return run ? run->id : db::Id{0};
  };
  EXPECT_EQ(found("sweep --repeat 2/2", settings), 0) << "this process is still there";
  orphan();
  EXPECT_EQ(found("sweep --repeat 2/2", settings), second.run);
  EXPECT_EQ(found("sweep --repeat 1/2", settings), 0) << "it is whole";
  Settings other = settings;
  other.config += "measure: {max_rounds: 512}\n";
  EXPECT_EQ(found("sweep --repeat 2/2", other), 0) << "another config";
  other = settings;
  other.hello.device_instance.driver = "590.1";
  EXPECT_EQ(found("sweep --repeat 2/2", other), 0) << "another device";
}

TEST_F(Measuring, RoundsOfAKilledRunAreNotRacedAgainWhereAnotherRunCameBetween) {
  Settings settings;
  fakes::MockMeasurer whole(best_by(0.02));
  settings.database = "whole.db";
  const Swept expected = sweep(whole, settings);
  settings.database = "a.db";
  fakes::MockMeasurer cut(best_by(0.02));
  cut.stop_at = whole.requests - 2;
  const Swept first = sweep(cut, settings);
  orphan();
  Settings between = settings;
  between.command = "another sweep";
  between.shapes =
      "  - {batch: 4, q_len: 1, window: 0, rope_theta: 0, context: 4096, pool_bytes: 1MiB}\n";
  const Swept other = sweep(best_by(0.02), between);
  cut.stop_at = -1;
  cut.stop = 0;
  const Swept rest = sweep(cut, settings);
  EXPECT_FALSE(rest.resumed) << "the last run of the file is what other commands look at";
  EXPECT_GT(rest.run, other.run);
  EXPECT_EQ(first.result.rounds + rest.result.rounds, expected.result.rounds);
  EXPECT_EQ(rest.winner("attention").chain, expected.winner("attention").chain);
}

TEST_F(Measuring, ACloserRuleRacesOnAmongThoseThatCouldNotBeToldApart) {
  Script noisy = best_by(0.005);
  noisy.noise = 0.03;
  Settings wide, close;
  wide.config += "measure: {half_width_pct: 20}\n";
  close.config += "measure: {half_width_pct: 0.4}\n";
  const Swept first = sweep(noisy, wide);
  EXPECT_EQ(sweep(noisy, wide).result.rounds, 0);
  const Swept second = sweep(noisy, close);
  EXPECT_GT(second.result.rounds, first.result.rounds);
  EXPECT_EQ(sweep(noisy, close).result.rounds, 0) << "decided as closely as that";
  EXPECT_EQ(sweep(noisy, wide).result.rounds, 0) << "a wider rule asks for less";
}

TEST_F(Measuring, TwoFreshSweepsOfOneTruthAgree) {
  Settings settings;
  settings.config = attentions(kTwelve);
  settings.shapes =
      "  - {batch: [1, 4], q_len: [1, 2], window: 0, rope_theta: 0, context: [512, 4096], "
      "pool_bytes: 1MiB}\n";
  settings.options.fresh = true;
  // Twelve kernels from 20 us on, each 0.4 % slower than the one before: near ties everywhere.
  ScriptTimes times;
  for (size_t i = 0; i < keys_.size(); ++i) {
    times[keys_[i * 5 % 12]] = 20'000 * (1 + 0.004 * static_cast<double>(i));
  }
  Script script{.noise = 0.005, .ns = times_of(times, 28'000)};
  std::vector<db::Id> runs;
  for (const int repetition : {1, 2}) {
    script.seed = static_cast<uint64_t>(repetition);
    settings.options.repetition = repetition;
    settings.command = "sweep " + std::to_string(repetition);
    const Swept swept = sweep(script, settings);
    EXPECT_EQ(exit_code(swept.result), ExitCode::kOk);
    EXPECT_GT(swept.result.rounds, 8 * 32) << "nothing is taken from the first";
    runs.push_back(swept.run);
  }
  ASSERT_NE(runs[0], runs[1]);
  const Agreement a = agreement(open(), runs[0], runs[1]);
  EXPECT_EQ(a.picks.size(), 16U) << "8 shapes, attention and the whole step";
  EXPECT_EQ(a.only_in_one, 0);
  EXPECT_GE(a.agreeing_share(), 0.95) << text(a);
  EXPECT_LE(a.inconclusive_share(), 0.05) << text(a);
  EXPECT_LE(a.mean_regret_pct(), 0.5) << text(a);
  EXPECT_LE(a.worst_regret_pct(), 2) << text(a);
}

TEST(AgreedPick, AgreesWhereEachIsInTheOthersTieSet) {
  AgreedPick pick{.first = "a", .second = "b", .first_ties = {"a", "b"}, .second_ties = {"b", "a"}};
  EXPECT_TRUE(pick.agrees());
  EXPECT_FALSE(pick.identical());
  pick.second_ties = {"b"};
  EXPECT_FALSE(pick.agrees()) << "one-sided";
  pick.second = "a";
  EXPECT_TRUE(pick.agrees());
  pick.first_status = "inconclusive";
  EXPECT_FALSE(pick.agrees());
}

TEST(Agreements, CountSharesAndRegrets) {
  Agreement a;
  EXPECT_EQ(a.agreeing_share(), 1);
  EXPECT_EQ(a.inconclusive_share(), 0);
  EXPECT_EQ(a.mean_regret_pct(), 0);
  a.picks = {
      {.first = "a", .second = "a", .first_ties = {"a"}, .second_ties = {"a"}, .regret_pct = 0},
      {.first = "a",
       .second = "b",
       .first_ties = {"a", "b", "c", "d"},
       .second_ties = {"b"},
       .regret_pct = 21},
      {.first = "a", .second = "a", .second_status = "inconclusive", .regret_pct = {}}};
  EXPECT_NEAR(a.agreeing_share(), 1.0 / 3, 1e-12);
  EXPECT_NEAR(a.narrow_ties_share(), 5.0 / 6, 1e-12);
  EXPECT_NEAR(a.inconclusive_share(), 1.0 / 6, 1e-12);
  EXPECT_NEAR(a.mean_regret_pct(), 10, 1e-9) << "sqrt(1 * 1.21)";
  EXPECT_EQ(a.worst_regret_pct(), 21);
}

TEST_F(Pipelines, AgreementCountsDecisionsThatOneRunDidNotMake) {
  const Swept one = sweep(Script{.ns = times_of({}, 10'000)}, settings_);
  settings_.filter = {.stage = Stage::kAttention};
  settings_.options.fresh = true;
  settings_.command = "sweep --stage attention";
  const Swept two = sweep(Script{.seed = 2, .ns = times_of({}, 10'000)}, settings_);
  const Agreement a = agreement(open(), one.run, two.run);
  EXPECT_EQ(a.picks.size(), 2U);
  EXPECT_EQ(a.only_in_one, static_cast<int>(open().selections(one.run).size()) - 2) << text(a);
  EXPECT_NE(text(a).find("decisions of one run alone"), std::string::npos);
}

// ------------------------------------------------------------------ many trials

int64_t resident_bytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

/// Memory and descriptors while trials are tried: one look for every 16 shapes.
class ManyTrials : public Measuring {
 protected:
  /// One sweep of many shapes, 71 trials each, with a race of four rounds.
  void sweep_shapes(int batches, int contexts, const std::string& database) {
    Settings settings;
    settings.config =
        "variants: {include: [attention/mma], tunables: {attention/mma: {splits: [8, 16, 32, "
        "64], cluster: [1], ticket: [0]}}}\nmeasure: {max_rounds: 4}\n";
    const auto list = [](int count, int step) {
      std::string text;
      for (int i = 1; i <= count; ++i) text += (i == 1 ? "" : ", ") + std::to_string(i * step);
      return "[" + text + "]";
    };
    settings.shapes =
        "  - {batch: " + list(batches, 1) +
        ", q_len: [1, 2, 4, 8], window: 0, rope_theta: 0, context: " + list(contexts, 128) +
        ", pool_bytes: 1MiB}\n";
    settings.database = database;
    fakes::MockMeasurer measurer(Script{.ns = times_of({}, 20'000)});
    std::string shape;
    int shapes = 0;
    measurer.script.validate = [&](const ValidateRequest& request) -> Script::Verdict {
      if (request.shape != shape && shapes++ % 16 == 0) look();
      shape = request.shape;
      return fakes::passed();
    };
    const Swept swept = sweep(measurer, settings);
    for (const auto& [outcome, count] : swept.result.outcomes) trials_ += count;
  }
  void look() {
    bytes_.push_back(resident_bytes());
    descriptors_.push_back(open_descriptors());
  }
  void check() const {
    EXPECT_GE(trials_, 100'000);
    const size_t tenth = bytes_.size() / 10;
    EXPECT_LT(bytes_.back() - bytes_[tenth], int64_t{5} << 20)
        << bytes_[tenth] << " to " << bytes_.back();
    EXPECT_EQ(descriptors_.back(), descriptors_[tenth]);
  }
  std::vector<int64_t> bytes_, descriptors_;
  int trials_ = 0;
};

TEST_F(ManyTrials, AHundredThousandNeedNoMoreMemoryThanTenThousand) {
  sweep_shapes(51, 7, "many.db");
  check();
}

}  // namespace
}  // namespace muse::tuner
