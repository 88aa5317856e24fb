// SPDX-License-Identifier: Apache-2.0
// Sweeps on a scripted device: candidates that fail in every way, near ties, and what makes a
// stored result one of something else.
#include <sqlite3.h>

#include <set>

#include "tests/tuner/mocked_sweep.h"
#include "tuner/known_trials.h"

namespace muse::tuner {
namespace {

using fakes::Script;
using fakes::Turn;

class Sweeping : public MockedSweep {
 protected:
  Sweeping() : keys_(planned()) {
    std::erase_if(keys_, [](const std::string& key) { return key.find("splits=16") != key.npos; });
    script_.ns = times_of({{keys_.at(5), 19'000}}, 20'000);
  }
  std::vector<std::string> keys_;  ///< twelve, without the base's
  Script script_;
};

TEST_F(Sweeping, EveryFailureIsARowWithItsReasonAndInNoRanking) {
  const std::map<std::string, std::pair<Outcome, std::string>> failures{
      {keys_[0], {Outcome::kLaunchFailed, "cudaErrorInvalidConfiguration: 2048 threads a block"}},
      {keys_[1], {Outcome::kLaunchFailed, "cudaErrorInvalidValue: grid.y = 70000"}},
      {keys_[2], {Outcome::kOom, "1099511627776 bytes requested, 150000000000 bytes free"}},
      {keys_[3], {Outcome::kIncorrect, "gate attention, buffer o, index 7: got nan"}},
      {keys_[4], {Outcome::kLaunchFailed, "thrown: an int"}},
      {keys_[6], {Outcome::kUnmeasurable, "no taps"}}};
  script_.validate = [&](const ValidateRequest& request) -> Script::Verdict {
    const auto failure = failures.find(request.chain);
    if (failure == failures.end()) return fakes::passed();
    return fakes::failed(failure->second.first, failure->second.second);
  };
  std::set<std::string> timed;
  const auto truth = script_.ns;
  script_.ns = [&, truth](const Turn& turn) {
    timed.insert(turn.chain);
    return truth(turn);
  };
  const Swept swept = sweep(script_);
  EXPECT_EQ(swept.winner("attention").chain, keys_[5]);
  EXPECT_EQ(exit_code(swept.result), ExitCode::kIncomplete) << "no full success";
  EXPECT_EQ(swept.result.outcomes.at(Outcome::kLaunchFailed), 3);
  EXPECT_EQ(swept.result.outcomes.at(Outcome::kOom), 1) << "counted apart";
  const db::Store store = open();
  for (const auto& [key, failure] : failures) {
    const auto one = trial(store, key);
    EXPECT_EQ(one.trial.state, name(failure.first)) << key;
    EXPECT_EQ(one.trial.reason, failure.second);
    EXPECT_FALSE(one.median_ns) << "no time: " << key;
    EXPECT_FALSE(timed.contains(key));
  }
  for (const db::SelectionRow& row : store.selections(swept.run)) {
    for (const std::string& tied : ties(row)) EXPECT_FALSE(failures.contains(tied));
  }
}

TEST_F(Sweeping, WorkersThatEndWhileValidatingCostTheirCandidateAlone) {
  std::map<std::string, int> tried;
  script_.validate = [&](const ValidateRequest& request) -> Script::Verdict {
    ++tried[request.chain];
    if (request.chain == keys_[0]) {
      return tl::unexpected(WorkerLoss{.outcome = Outcome::kCrashed,
                                       .reason = "an illegal memory access was encountered"});
    }
    if (request.chain == keys_[1]) {
      return tl::unexpected(
          WorkerLoss{.outcome = Outcome::kTimeout, .reason = "no step within 5 s"});
    }
    return fakes::passed();
  };
  const Swept swept = sweep(script_);
  const db::Store store = open();
  EXPECT_EQ(trial(store, keys_[0]).trial.state, "crashed");
  EXPECT_EQ(trial(store, keys_[0]).trial.reason, "an illegal memory access was encountered");
  EXPECT_EQ(trial(store, keys_[1]).trial.state, "timeout");
  EXPECT_EQ(swept.winner("attention").chain, keys_[5]);
  for (const auto& [chain, times] : tried) {
    EXPECT_EQ(times, chain == keys_[0] || chain == keys_[1] ? kStrikes : 1) << chain;
  }
  // Under the same code neither runs on this device again, whatever the problem.
  tried.clear();
  Settings other;
  other.shapes = "  - {batch: 3, q_len: 1, window: 0, rope_theta: 0, context: 512}\n";
  sweep(script_, other);
  EXPECT_FALSE(tried.contains(keys_[0]));
  EXPECT_FALSE(tried.contains(keys_[1]));
  EXPECT_NE(trial(open(), keys_[0]).trial.reason.find("quarantined"), std::string::npos);
}

TEST_F(Sweeping, WhereEverythingFailsThereIsNoWinnerAndNothingToEmit) {
  script_.validate = [](const ValidateRequest&) -> Script::Verdict {
    return fakes::failed(Outcome::kLaunchFailed, "thrown: out of patience");
  };
  fakes::MockMeasurer measurer(script_);
  const Swept swept = sweep(measurer);
  EXPECT_EQ(exit_code(swept.result), ExitCode::kGateFailed);
  EXPECT_EQ(swept.winner("attention").chain, "");
  EXPECT_TRUE(open().selections(swept.run).empty());
  EXPECT_EQ(swept.result.outcomes.size(), 1U);
}

// ------------------------------------------------------------------ near ties

// Ten candidates, each a thousandth slower than the one before; noise of half a percent.
TEST_F(Sweeping, TenFreshDatabasesGiveTheSameWinnerOfNearTies) {
  ScriptTimes times;
  for (size_t i = 0; i < keys_.size(); ++i) {
    times[keys_[i * 7 % 12]] = 20'000 * (1 + 0.001 * static_cast<double>(i));
  }
  const std::string base =
      "attention/mma:cluster=1,fill=0,gate=0,heads_per_cta=2,partial_bf16=0,splits=16,ticket=0,"
      "tile_kv=64,warps=4";
  for (const double base_ns : {20'050.0, 20'600.0}) {
    times[base] = base_ns;
    std::vector<std::string> winners;
    std::vector<std::vector<std::string>> tied;
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      Settings settings;
      settings.database = std::to_string(base_ns) + std::to_string(seed) + ".db";
      const Swept swept =
          sweep(Script{.seed = seed, .noise = 0.005, .ns = times_of(times)}, settings);
      const db::Store store = open(settings.database);
      const db::SelectionRow row = selection(store, swept.run, "attention");
      winners.push_back(swept.winner("attention").chain);
      tied.push_back(ties(row));
      EXPECT_TRUE(row.status.starts_with("tie(")) << row.status;
      EXPECT_LE(row.low_ns, row.median_ns);
      EXPECT_GE(row.high_ns, row.median_ns) << "how sure it is, is stored";
    }
    if (base_ns < 20'100) {
      // The base is inside the noise band: the documented rule settles it, 10 of 10 times.
      EXPECT_EQ(std::count(winners.begin(), winners.end(), base), 10);
    } else {
      // By the names of a tie set whose edge is noise: any pick is in everybody else's.
      int agreeing = 0, pairs = 0;
      for (size_t a = 0; a < winners.size(); ++a) {
        for (size_t b = 0; b < a; ++b, ++pairs) {
          const auto in = [](const std::string& one, const std::vector<std::string>& set) {
            return std::find(set.begin(), set.end(), one) != set.end();
          };
          agreeing += in(winners[a], tied[b]) && in(winners[b], tied[a]) ? 1 : 0;
        }
      }
      EXPECT_GE(agreeing, pairs * 0.95) << "of " << pairs;
    }
  }
}

// ------------------------------------------------------------------ when a stored result holds

/// A database that one sweep has filled, and what a second one under other circumstances measures.
class Stored : public Sweeping {
 protected:
  Stored() { first_ = sweep(script_); }
  /// Rounds that the second sweep runs, and whether it validates.
  int measured(const Settings& settings) {
    fakes::MockMeasurer measurer(script_);
    const Swept swept = sweep(measurer, settings);
    EXPECT_EQ(exit_code(swept.result), ExitCode::kOk);
    for (const Winner& winner : swept.result.winners) {
      EXPECT_TRUE(winner.span != "attention" || winner.chain == keys_[5]) << winner.chain;
    }
    if (swept.result.measured == 0) {
      EXPECT_EQ(measurer.requests, 0) << "a hit costs no launch";
      EXPECT_EQ(swept.result.reused, first_.result.measured);
    }
    return swept.result.measured;
  }
  void execute(const std::string& sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open((folder_ / "a.db").c_str(), &db), SQLITE_OK);
    char* error = nullptr;
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, &error), SQLITE_OK) << error;
    sqlite3_free(error);
    sqlite3_close(db);
  }
  Swept first_;
};

TEST_F(Stored, HoldsForTheSameAgainInAnyOrderAndForAnyBudget) {
  EXPECT_EQ(measured({}), 0);
  Settings reordered;
  reordered.config = attentions("64, 8, 32");
  EXPECT_EQ(measured(reordered), 0);
  Settings budget;
  budget.options.budget = std::chrono::hours(1);
  budget.command = "sweep --budget 1h";
  EXPECT_EQ(measured(budget), 0);
  Settings seed;
  seed.options.seed = 99;
  EXPECT_EQ(measured(seed), 0) << "the order of rounds is no part of a result";
}

TEST_F(Stored, IsMeasuredAnewWhereTheCodeOfAKernelChanged) {
  // As if the kernels had been others when this was measured.
  execute(
      "UPDATE trial SET code_hash = 'old ' || code_hash WHERE candidate_id IN "
      "(SELECT id FROM candidate WHERE key = '" +
      keys_[3] + "')");
  fakes::MockMeasurer measurer(script_);
  const Swept swept = sweep(measurer);
  EXPECT_EQ(measurer.validations, 1) << "the changed one";
  EXPECT_GT(swept.result.measured, 0);
  EXPECT_LT(swept.result.measured, static_cast<int>(keys_.size())) << "against the tie set alone";
  EXPECT_EQ(swept.winner("attention").chain, keys_[5]);
  const db::Store store = open();
  EXPECT_EQ(trial(store, keys_[3], swept.run).trial.state, "ok");
  int rows = 0;
  for (const auto& one : store.run_trials(first_.run)) {
    if (one.candidate.key != keys_[3]) continue;
    ++rows;
    EXPECT_TRUE(one.trial.key.code_hash.starts_with("old ")) << "kept, under the code it had";
  }
  EXPECT_EQ(rows, 1);
}

TEST_F(Stored, IsOfItsDriverToolkitClockPolicyTimerAndRegimeAlone) {
  const int all = first_.result.measured;
  const auto with = [](const std::function<void(Settings&)>& change) {
    Settings settings;
    change(settings);
    return settings;
  };
  EXPECT_EQ(measured(with([](Settings& s) { s.hello.device_instance.driver = "590.1"; })), all);
  EXPECT_EQ(measured(with([](Settings& s) { s.hello.toolkit = "nvrtc 13.1"; })), all);
  EXPECT_EQ(measured(with(
                [](Settings& s) { s.hello.device_instance.clock_policy = "application 1500"; })),
            all);
  EXPECT_EQ(measured(with([](Settings& s) { s.hello.device_instance.uuid = "GPU-2"; })), all);
  EXPECT_EQ(measured(with([](Settings& s) {
              s.hello.protocol = "mock: events";
              s.timer = "events";
            })),
            all);
  // What the inputs are filled with is part of the protocol.
  EXPECT_EQ(measured(with([](Settings& s) { s.hello.protocol += "; fill=zero"; })), all);
  EXPECT_EQ(measured(with([](Settings& s) {
              s.config += "measure: {regimes: [warm]}\ndispatch: {regime: warm}\n";
            })),
            all);
  EXPECT_EQ(measured({}), 0) << "and none of them has overwritten it";
}

TEST_F(Stored, NamesInItsRowsWhatTellsItFromAnother) {
  Settings other;
  other.hello.device_instance.driver = "590.1";
  other.hello.toolkit = "nvrtc 13.1";
  other.hello.protocol = "mock: events";
  const Swept swept = sweep(script_, other);
  const db::Store store = open();
  const auto before = trial(store, keys_[5], first_.run), after = trial(store, keys_[5], swept.run);
  EXPECT_EQ(store.device(before.trial.key.device_id).driver, "580.65.06");
  EXPECT_EQ(store.device(after.trial.key.device_id).driver, "590.1");
  EXPECT_EQ(before.trial.key.toolkit, "nvrtc 13.0");
  EXPECT_EQ(after.trial.key.toolkit, "nvrtc 13.1");
  EXPECT_NE(before.trial.key.protocol_hash, after.trial.key.protocol_hash);
}

TEST_F(Stored, SaysWhichPartsOfTheKeyAreOthersNow) {
  const db::Store store = open();
  const auto stored = trial(store, keys_[5], first_.run).trial;
  const Chain chain = Registry::global().parse_chain(keys_[5]).value();
  const RaceGroup group{.shape = parse_shape(store.problem(stored.key.problem_id).key).value(),
                        .span = span(chain)};
  const auto why = [&](const std::function<void(Hello&, RaceGroup&)>& change) {
    Hello hello = Settings().hello;
    RaceGroup now = group;
    change(hello, now);
    return why_new(store, hello, chain, now);
  };
  EXPECT_EQ(why([](Hello& h, RaceGroup&) { h.device_instance.driver = "590.1"; }),
            "driver 580.65.06, now 590.1");
  EXPECT_EQ(why([](Hello& h, RaceGroup&) { h.toolkit = "nvrtc 13.1"; }),
            "toolkit nvrtc 13.0, now nvrtc 13.1");
  EXPECT_EQ(why([](Hello&, RaceGroup& g) { g.regime = profiler::Regime::kWarm; }),
            "regime cold, now warm");
  EXPECT_EQ(why([](Hello& h, RaceGroup&) { h.protocol = "mock: events"; }),
            "the protocol has changed (timer, flush, fill or sampler)");
  EXPECT_EQ(why([](Hello&, RaceGroup& g) { g.shape.lengths.seed += 1; }), "")
      << "never measured there";
}

}  // namespace
}  // namespace muse::tuner
