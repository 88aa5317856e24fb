// SPDX-License-Identifier: Apache-2.0
// Rows in, rows out, and what a transaction promises.
#include "db/store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "db/sqlite.h"
#include "tests/db/support.h"

namespace muse::db {
namespace {

class StoreTest : public testing::Test {
 protected:
  TempFolder folder_;
  std::filesystem::path file_ = folder_ / "a.db";
  Store store_ = Store::open(file_, Open::kCreate);
};

using Rows = StoreTest;
using Trials = StoreTest;
using Transaction = StoreTest;
using RunTrials = StoreTest;
using Tables = StoreTest;
using Snapshot = StoreTest;

const std::string kHostile = std::string("a\0b'\";--\n\xff\xfe", 11) + "\u2028";

TEST_F(Rows, DeviceBuildAndRunComeBackAsTheyWent) {
  const Id device = store_.upsert(DeviceRow{.kind = "cuda",
                                            .uuid = "GPU-1",
                                            .name = kHostile,
                                            .driver = "580.1",
                                            .clock_policy = "locked",
                                            .model = "H200",
                                            .isa = "sm_90a",
                                            .cc = 90,
                                            .sm_count = 132,
                                            .memory_bytes = 150'000'000'000,
                                            .l2_bytes = 62'914'560,
                                            .driver_version = 13000});
  const Id build = store_.upsert(BuildRow{.version = "0.1",
                                          .revision = "abc",
                                          .compiler = "g++ 12",
                                          .flags = "-O2",
                                          .build_type = "Release",
                                          .toolkit = "13.0"});
  const Id run = store_.insert(RunRow{.device_id = device,
                                      .build_id = build,
                                      .config_path = "a.yaml",
                                      .config_text = std::string(1 << 20, 'x'),
                                      .config_hash = "h",
                                      .command = "sweep a.yaml",
                                      .timer = "host",
                                      .status = "running",
                                      .base = "prepare/scalar",
                                      .seed = std::numeric_limits<uint64_t>::max() - 1,
                                      .started = "2025-01-01T00:00:00Z",
                                      .environment = "{\"a\":1}"});
  store_ = Store::open(file_, Open::kRead);
  const DeviceRow d = store_.device(device);
  EXPECT_EQ(d.kind + "|" + d.uuid + "|" + d.driver + "|" + d.clock_policy,
            "cuda|GPU-1|580.1|locked");
  EXPECT_EQ(d.name, kHostile);
  EXPECT_EQ(d.model + "|" + d.isa, "H200|sm_90a");
  EXPECT_EQ(d.cc, 90);
  EXPECT_EQ(d.sm_count, 132);
  EXPECT_EQ(d.memory_bytes, 150'000'000'000);
  EXPECT_EQ(d.l2_bytes, 62'914'560);
  EXPECT_EQ(d.driver_version, 13000);
  const BuildRow b = store_.build(build);
  EXPECT_EQ(b.version + b.revision + b.compiler + b.flags + b.build_type + b.toolkit,
            "0.1abcg++ 12-O2Release13.0");
  const RunRow r = store_.last_run().value();
  EXPECT_EQ(r.id, run);
  EXPECT_EQ(r.device_id, device);
  EXPECT_EQ(r.build_id, build);
  EXPECT_EQ(r.config_path + "|" + r.config_hash + "|" + r.command + "|" + r.timer + "|" + r.status,
            "a.yaml|h|sweep a.yaml|host|running");
  EXPECT_EQ(r.config_text.size(), 1u << 20);
  EXPECT_EQ(r.base + "|" + r.started + "|" + r.ended + "|" + r.environment,
            "prepare/scalar|2025-01-01T00:00:00Z||{\"a\":1}");
  EXPECT_EQ(r.seed, std::numeric_limits<uint64_t>::max() - 1);
}

TEST_F(Rows, KernelsComeBackWithWhatIsNotKnown) {
  const KernelRow attend{.name = "muse::attention_mma::attend",
                         .architecture = "sm_90a",
                         .source_hash = "s",
                         .cubin_hash = "c",
                         .registers = 168,
                         .shared_bytes = 1024,
                         .spill_bytes = 0,
                         .compile_ms = 812.5,
                         .log = kHostile};
  const Id first = store_.upsert(attend);
  KernelRow silent = attend;
  silent.architecture = "sm_120a";
  silent.registers = silent.shared_bytes = silent.spill_bytes = -1;
  silent.compile_ms = -1;
  const Id second = store_.upsert(silent);
  KernelRow again = attend;
  again.compile_ms = 700;
  EXPECT_EQ(store_.upsert(again), first);
  store_ = Store::open(file_, Open::kRead);
  const std::vector<KernelRow> rows = store_.kernels();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].id, second);
  EXPECT_EQ(rows[0].architecture, "sm_120a");
  EXPECT_EQ(rows[0].registers, -1);
  EXPECT_EQ(rows[0].spill_bytes, -1);
  EXPECT_EQ(rows[0].compile_ms, -1);
  EXPECT_EQ(rows[1].id, first);
  EXPECT_EQ(rows[1].name + rows[1].source_hash + rows[1].cubin_hash,
            "muse::attention_mma::attendsc");
  EXPECT_EQ(rows[1].registers, 168);
  EXPECT_EQ(rows[1].shared_bytes, 1024);
  EXPECT_EQ(rows[1].spill_bytes, 0);
  EXPECT_EQ(rows[1].compile_ms, 700);
  EXPECT_EQ(rows[1].log, kHostile);
}

TEST_F(Rows, RunsEndAndGoOn) {
  const Base base = add_base(store_, "running");
  store_.finish_run(base.run, "interrupted", "2025-01-01T00:00:01Z", "{\"wall_s\":2}");
  EXPECT_EQ(store_.run(base.run)->cost, "{\"wall_s\":2}");
  EXPECT_EQ(store_.run(base.run)->status, "interrupted");
  EXPECT_EQ(store_.run(base.run)->ended, "2025-01-01T00:00:01Z");
  store_.resume_run(base.run, "{\"pid\":1}");
  EXPECT_EQ(store_.run(base.run)->status, "running");
  EXPECT_EQ(store_.run(base.run)->ended, "");
  EXPECT_EQ(store_.run(base.run)->environment, "{\"pid\":1}");
  EXPECT_EQ(store_.run(base.run + 1), std::nullopt);
  EXPECT_EQ(store_.runs().size(), 1u);
}

TEST_F(Rows, RoundsComeBackInTheOrderWrittenWithTheirSamples) {
  const Base base = add_base(store_);
  const Id a = add_trial(store_, base, "a").id, b = add_trial(store_, base, "b").id;
  const Id race = add_race(store_, base);
  store_.insert(RoundRow{.race_id = race,
                         .number = 1,
                         .final = true,
                         .order = {b, a, b},
                         .cpu_mhz = 3000.5,
                         .sm_mhz = 1980,
                         .memory_mhz = 3201,
                         .power_w = 300,
                         .temperature_c = 55,
                         .reason_bits = 6,
                         .sentinel_first_ns = 10,
                         .sentinel_last_ns = 11,
                         .rejected = "clock moved",
                         .at = "2025-01-01T00:00:00Z",
                         .samples = {{b, {10.25, NAN, -0.0}}, {a, {}}}});
  store_.insert(RoundRow{.race_id = race, .number = -1, .rejected = "a is out"});
  store_.insert(RoundRow{.race_id = race, .number = -1, .rejected = "b is out"});
  store_.insert(RoundRow{.race_id = race, .number = 0, .order = {a}, .samples = {{a, {7}}}});
  const std::vector<RoundRow> rounds = store_.rounds(race);
  ASSERT_EQ(rounds.size(), 4u);
  const RoundRow& first = rounds[0];
  EXPECT_EQ(first.race_id, race);
  EXPECT_EQ(first.number, 1);
  EXPECT_TRUE(first.final);
  EXPECT_EQ(first.order, (std::vector<Id>{b, a, b}));
  EXPECT_EQ(first.cpu_mhz, 3000.5);
  EXPECT_EQ(first.sm_mhz, 1980);
  EXPECT_EQ(first.memory_mhz, 3201);
  EXPECT_EQ(first.power_w, 300);
  EXPECT_EQ(first.temperature_c, 55);
  EXPECT_EQ(first.reason_bits, 6);
  EXPECT_EQ(first.sentinel_first_ns, 10);
  EXPECT_EQ(first.sentinel_last_ns, 11);
  EXPECT_EQ(first.rejected + "|" + first.at, "clock moved|2025-01-01T00:00:00Z");
  ASSERT_EQ(first.samples.size(), 2u);
  EXPECT_EQ(first.samples[0].trial_id, a);
  EXPECT_TRUE(first.samples[0].ns.empty());
  ASSERT_EQ(first.samples[1].ns.size(), 3u);
  EXPECT_EQ(first.samples[1].ns[0], 10.25);
  EXPECT_TRUE(std::isnan(first.samples[1].ns[1]));
  EXPECT_TRUE(std::signbit(first.samples[1].ns[2]));
  EXPECT_EQ(rounds[2].rejected, "b is out");
  EXPECT_TRUE(rounds[2].order.empty());
  EXPECT_EQ(rounds[3].number, 0);
  EXPECT_EQ(rounds[3].cpu_mhz, -1);  // unknown
  EXPECT_EQ(rounds[3].samples.at(0).ns, std::vector<double>{7});
}

TEST_F(Rows, ARoundNumberIsTakenOnce) {
  const Base base = add_base(store_);
  const Id trial = add_trial(store_, base, "a").id;
  const Id race = add_race(store_, base);
  add_round(store_, race, 0, trial, {1});
  EXPECT_NE(error_of([&] { add_round(store_, race, 0, trial, {2}); }), "");
  EXPECT_EQ(store_.rounds(race).size(), 1u);
}

TEST_F(Rows, RacesAreFoundByRunAndByGroup) {
  const Base base = add_base(store_);
  const Id race = store_.insert(RaceRow{.run_id = base.run,
                                        .problem_id = base.problem,
                                        .span = "combine",
                                        .handoff_in = "partials_f32_s4",
                                        .regime = "cold",
                                        .timer = "host",
                                        .rules = "{}",
                                        .seed = 7,
                                        .step_ns = 0.5,
                                        .status = "running"});
  store_.finish_race(race, "complete");
  const RaceRow row = store_.race(race).value();
  EXPECT_EQ(row.span + "|" + row.handoff_in + "|" + row.regime + "|" + row.timer + "|" + row.rules,
            "combine|partials_f32_s4|cold|host|{}");
  EXPECT_EQ(row.seed, 7u);
  EXPECT_EQ(row.step_ns, 0.5);
  EXPECT_EQ(row.status, "complete");
  EXPECT_EQ(store_.races(base.run).size(), 1u);
  EXPECT_EQ(store_.races(base.problem, "combine", "partials_f32_s4", "cold").size(), 1u);
  EXPECT_TRUE(store_.races(base.problem, "combine", "partials_f32_s8", "cold").empty());
  EXPECT_TRUE(store_.races(base.problem, "combine", "partials_f32_s4", "warm").empty());
}

TEST_F(Rows, ASelectionNamesItsRaceAndAPipelineWhatItsStagesTook) {
  const Base base = add_base(store_);
  const Id a = add_trial(store_, base, "a").id, b = add_trial(store_, base, "b").id;
  SelectionRow selection{.run_id = base.run, .problem_id = base.problem, .trial_id = a};
  selection.race_id = add_race(store_, base);
  store_.upsert(selection);
  selection.race_id = add_race(store_, base);
  store_.upsert(selection);
  ASSERT_EQ(store_.selections(base.run).size(), 1u);
  EXPECT_EQ(store_.selections(base.run)[0].race_id, selection.race_id) << "the later one stands";

  const Id first = store_.trial(a).key.candidate_id, second = store_.trial(b).key.candidate_id;
  const auto took = [&](Id candidate, double ns) {
    store_.upsert(InteractionRow{base.run, base.problem, "cold", candidate, ns});
  };
  took(second, 3);
  took(first, 1);
  took(second, 2.5);
  const std::vector<InteractionRow> rows = store_.interactions(base.run);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].candidate_id, first);
  EXPECT_EQ(rows[0].problem_id, base.problem);
  EXPECT_EQ(rows[0].regime, "cold");
  EXPECT_EQ(rows[0].stage_sum_ns, 1);
  EXPECT_EQ(rows[1].candidate_id, second);
  EXPECT_EQ(rows[1].stage_sum_ns, 2.5);
  EXPECT_TRUE(store_.interactions(base.run + 1).empty());
  EXPECT_NE(error_of([&] { took(99, 1); }), "");
}

TEST_F(Rows, ValidationSelectionDispatchAndQuarantineComeBack) {
  const Base base = add_base(store_);
  const Id trial = add_trial(store_, base, "a").id;
  store_.insert(ValidationRow{trial, base.run, "poison", true, "normal", "{\"relrms\":0}", ""});
  store_.insert(ValidationRow{trial, base.run, "gate", false, "flat", "{}", kHostile});
  const auto validations = store_.validations(trial);
  ASSERT_EQ(validations.size(), 2u);
  EXPECT_TRUE(validations[0].passed);
  EXPECT_EQ(validations[0].metric, "{\"relrms\":0}");
  EXPECT_FALSE(validations[1].passed);
  EXPECT_EQ(validations[1].gate + validations[1].data, "gateflat");
  EXPECT_EQ(validations[1].message, kHostile);

  const Id selection = store_.upsert(SelectionRow{.run_id = base.run,
                                                  .problem_id = base.problem,
                                                  .span = "attention",
                                                  .handoff_in = "",
                                                  .regime = "cold",
                                                  .trial_id = trial,
                                                  .median_ns = 3,
                                                  .low_ns = 2,
                                                  .high_ns = 4,
                                                  .base_median_ns = 5,
                                                  .tie_set = "[\"a\"]",
                                                  .rule = "fastest",
                                                  .status = "winner"});
  const SelectionRow s = store_.selections(base.run).at(0);
  EXPECT_EQ(s.id, selection);
  EXPECT_EQ(s.trial_id, trial);
  EXPECT_EQ(s.base_trial_id, 0);
  EXPECT_EQ(s.median_ns + 10 * s.low_ns + 100 * s.high_ns + 1000 * s.base_median_ns, 5423);
  EXPECT_EQ(s.race_id, 0);
  EXPECT_EQ(s.span + s.regime + s.tie_set + s.rule + s.status, "attentioncold[\"a\"]fastestwinner");

  store_.insert(DispatchEntryRow{.run_id = base.run,
                                 .selection_id = selection,
                                 .header_path = "x.h",
                                 .header_hash = "h",
                                 .emitted = "now",
                                 .regret_pct = 0.25});
  const DispatchEntryRow d = store_.dispatch_entries(base.run).at(0);
  EXPECT_EQ(d.selection_id, selection);
  EXPECT_EQ(d.header_path + d.header_hash + d.emitted, "x.hhnow");
  EXPECT_EQ(d.regret_pct, 0.25);

  store_.insert(QuarantineRow{base.device, "hash", "b", "crashed", "then"});
  store_.insert(QuarantineRow{base.device, "hash", "a", "hung", "then"});
  store_.insert(QuarantineRow{base.device, "hash", "b", "crashed twice", "now"});
  const auto quarantines = store_.quarantines(base.device);
  ASSERT_EQ(quarantines.size(), 2u);
  EXPECT_EQ(quarantines[0].candidate, "a");
  EXPECT_EQ(quarantines[1].reason + quarantines[1].since, "crashed twicenow");
}

TEST_F(Rows, OneKeyIsOneRow) {
  DeviceRow device{.kind = "host", .uuid = "u", .memory_bytes = 1};
  const Id id = store_.upsert(device);
  device.memory_bytes = 2;
  EXPECT_EQ(store_.upsert(device), id);
  EXPECT_EQ(store_.find_device(device), id);
  device.driver = "other";
  EXPECT_EQ(store_.find_device(device), std::nullopt);
  EXPECT_NE(store_.upsert(device), id);
  EXPECT_EQ(store_.devices().size(), 2u);

  const Id problem = store_.upsert(ProblemRow{.key = "b8", .fields = "{}"});
  EXPECT_EQ(store_.upsert(ProblemRow{.key = "b8", .fields = "{\"batch\":8}"}), problem);
  EXPECT_EQ(store_.problem(problem).fields, "{\"batch\":8}");
  EXPECT_EQ(store_.find_problem("b8"), problem);
  EXPECT_EQ(store_.find_problem("b9"), std::nullopt);

  const CandidateRow candidate{.key = "a", .span = "gate", .variant = "gate/a"};
  const Id first = store_.upsert(candidate);
  EXPECT_EQ(store_.upsert(candidate), first);
  EXPECT_EQ(store_.find_candidate(candidate), first);
  EXPECT_EQ(store_.candidate(first).variant, "gate/a");
  EXPECT_NE(store_.upsert(CandidateRow{.key = "a", .span = "gate", .pipeline = true}), first);

  const Id build = store_.upsert(BuildRow{.version = "1"});
  EXPECT_EQ(store_.upsert(BuildRow{.version = "1"}), build);
  EXPECT_NE(store_.upsert(BuildRow{.version = "2"}), build);
}

TEST_F(Rows, NamingAMissingRowIsRefused) {
  const Base base = add_base(store_);
  EXPECT_NE(error_of([&] { store_.insert(ValidationRow{.trial_id = 9, .run_id = base.run}); }), "");
  EXPECT_NE(error_of([&] { store_.insert(RaceRow{.run_id = 9, .problem_id = base.problem}); }), "");
  EXPECT_NE(error_of([&] { store_.device(9); }), "");
  EXPECT_THROW(store_.set_trial(9, "ok", "", 0, ""), std::logic_error);
  EXPECT_THROW(store_.finish_run(9, "complete", ""), std::logic_error);
  EXPECT_THROW(store_.finish_race(9, "complete"), std::logic_error);
  EXPECT_EQ(store_.integrity(), "");
}

TEST_F(Trials, AreTheSameOnlyIfEveryPartOfTheKeyIs) {
  const Base base = add_base(store_);
  const TrialRow trial = add_trial(store_, base, "a");
  EXPECT_EQ(trial.state, "pending");
  EXPECT_EQ(add_trial(store_, base, "a").id, trial.id);
  store_.set_trial(trial.id, "crashed", "signal 11", 1, "now");
  const TrialRow again = add_trial(store_, base, "a");
  EXPECT_EQ(again.state + "|" + again.reason + "|" + again.updated, "crashed|signal 11|now");
  EXPECT_EQ(again.strikes, 1);

  const Id device = store_.upsert(DeviceRow{.kind = "host", .uuid = "other"});
  const Id problem = store_.upsert(ProblemRow{.key = "b9"});
  const Id candidate = store_.upsert(CandidateRow{.key = "b"});
  std::vector<TrialKey> others(8, trial.key);
  others[0].device_id = device;
  others[1].toolkit = "13.0";
  others[2].code_hash = "other";
  others[3].candidate_id = candidate;
  others[4].handoff_in = "partials";
  others[5].problem_id = problem;
  others[6].regime = "warm";
  others[7].protocol_hash = "other";
  std::vector<Id> ids{trial.id};
  for (const TrialKey& key : others) {
    EXPECT_EQ(store_.find_trial(key), std::nullopt);
    const TrialRow made = store_.trial(key, base.run, false);
    for (const Id id : ids) EXPECT_NE(made.id, id);
    ids.push_back(made.id);
    EXPECT_EQ(store_.find_trial(key)->id, made.id);
  }
  EXPECT_EQ(store_.run_trials(base.run).size(), 9u);
}

TEST_F(Trials, AreSharedByRunsAndMarkedAsReused) {
  Base base = add_base(store_);
  const TrialRow trial = add_trial(store_, base, "a");
  const Id first = base.run;
  base.run = store_.insert(RunRow{.device_id = base.device, .build_id = base.build});
  EXPECT_EQ(store_.trial(trial.key, base.run, true).id, trial.id);
  EXPECT_FALSE(store_.run_trials(first).at(0).reused);
  EXPECT_TRUE(store_.run_trials(base.run).at(0).reused);
  store_.set_reused(base.run, trial.id, false);
  EXPECT_FALSE(store_.run_trials(base.run).at(0).reused);
  EXPECT_THROW(store_.set_reused(base.run, trial.id + 1, true), std::logic_error);
}

TEST_F(Transaction, LeavesNothingBehindWhenItsBodyThrows) {
  EXPECT_THROW(store_.transaction([&] {
    add_base(store_);
    throw std::runtime_error("stop");
  }),
               std::runtime_error);
  EXPECT_TRUE(store_.runs().empty());
  fill(store_);
  EXPECT_EQ(store_.runs().size(), 1u);
}

TEST_F(Transaction, JoinsTheOneAroundIt) {
  EXPECT_THROW(store_.transaction([&] {
    store_.transaction([&] { add_base(store_); });
    throw std::runtime_error("stop");
  }),
               std::runtime_error);
  EXPECT_TRUE(store_.runs().empty());
}

TEST_F(Transaction, FailsWithTheOneInsideItEvenIfThatIsIgnored) {
  EXPECT_THROW(store_.transaction([&] {
    add_base(store_);
    try {
      store_.transaction([] { throw std::runtime_error("stop"); });
    } catch (const std::runtime_error&) {
    }
  }),
               std::logic_error);
  EXPECT_TRUE(store_.runs().empty());
}

TEST_F(Transaction, IsRefusedWhereOnlyReadingWasAsked) {
  Store reader = Store::open(file_, Open::kRead);
  EXPECT_THROW(add_base(reader), std::logic_error);
}

TEST_F(Transaction, IsRefusedInAForkedChild) {
  EXPECT_EQ(in_child([&] {
              try {
                add_base(store_);
              } catch (const std::logic_error&) {
                return 0;
              }
              return 1;
            }),
            0);
}

TEST_F(RunTrials, GiveTheMedianOfTheGoodRoundsOfTheLastCompleteRace) {
  Base base = add_base(store_);
  const Id trial = add_trial(store_, base, "a").id, other = add_trial(store_, base, "b").id;
  for (const Id id : {trial, other}) store_.set_trial(id, "ok", "", 0, "");
  const Id first = add_race(store_, base);
  add_round(store_, first, 0, trial, {1000});
  add_round(store_, first, 1, other, {50});
  EXPECT_EQ(store_.run_trials(base.run).at(0).median_ns, std::nullopt);  // still running
  EXPECT_EQ(store_.last_race(trial), std::nullopt);
  store_.finish_race(first, "complete");

  base.run = store_.insert(RunRow{.device_id = base.device, .build_id = base.build});
  store_.trial(store_.trial(trial).key, base.run, true);
  EXPECT_EQ(store_.run_trials(base.run).at(0).median_ns, 1000);  // of an earlier run

  const Id second = add_race(store_, base);
  add_round(store_, second, 0, trial, {4});
  add_round(store_, second, 1, trial, {9999}, "clock moved");
  add_round(store_, second, 2, trial, {1, NAN});
  add_round(store_, second, 3, trial, {2, 8});
  store_.finish_race(second, "complete");
  const Id third = add_race(store_, base);
  add_round(store_, third, 0, trial, {5000});
  store_.finish_race(third, "interrupted");
  EXPECT_EQ(store_.last_race(trial), second);
  const Store::RunTrial even = store_.run_trials(base.run).at(0);
  EXPECT_EQ(even.median_ns, 3);
  EXPECT_EQ(even.sample_count, 4);
  EXPECT_EQ(even.candidate.key + even.problem.key, "ab8");

  const Id fourth = add_race(store_, base);
  for (const int ns : {3, 1, 2}) add_round(store_, fourth, ns, trial, {double(ns)});
  store_.finish_race(fourth, "complete");
  EXPECT_EQ(store_.run_trials(base.run).at(0).median_ns, 2);
}

TEST_F(RunTrials, AreOrderedByKeyNotByAge) {
  const Base base = add_base(store_);
  for (const char* key : {"c", "a", "b"}) add_trial(store_, base, key);
  std::string keys;
  for (const auto& one : store_.run_trials(base.run)) keys += one.candidate.key;
  EXPECT_EQ(keys, "abc");
}

TEST_F(RunTrials, AreReadInOneScanHoweverMany) {
  constexpr int kTrials = 50'000, kEntrants = 500;
  const Base base = add_base(store_);
  store_.transaction([&] {
    Id race = 0;
    RoundRow round;
    for (int i = 0; i < kTrials; ++i) {
      const Id trial = add_trial(store_, base, "attention/simt:splits=" + std::to_string(i)).id;
      store_.set_trial(trial, "ok", "", 0, "");
      if (i % kEntrants == 0) round = {.race_id = race = add_race(store_, base)};
      round.samples.push_back({trial, {double(i)}});
      if (i % kEntrants != kEntrants - 1) continue;
      for (round.number = 0; round.number < 3; ++round.number) store_.insert(round);
      store_.finish_race(race, "complete");
    }
  });
  const auto start = std::chrono::steady_clock::now();
  const auto trials = store_.run_trials(base.run);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));  // a hang
  ASSERT_EQ(trials.size(), size_t{kTrials});
  for (const auto& one : trials) ASSERT_EQ(one.sample_count, 3);
}

TEST_F(Tables, AreAllThere) {
  EXPECT_EQ(store_.table_names(),
            (std::vector<std::string>{"build", "candidate", "counter", "device", "dispatch_entry",
                                      "interaction", "kernel", "problem", "quarantine", "race",
                                      "race_trial", "round", "run", "run_trial", "sample",
                                      "selection", "trial", "validation"}));
}

TEST_F(Tables, GiveTheirRowsAsText) {
  const Base base = add_base(store_);
  add_round(store_, add_race(store_, base), 0, add_trial(store_, base, "a").id, {1.0});
  const Store::Table sample = store_.table("sample");
  EXPECT_EQ(sample.columns, (std::vector<std::string>{"round_id", "trial_id", "ns"}));
  ASSERT_EQ(sample.rows.size(), 1u);
  EXPECT_EQ(sample.rows[0][0], "1");
  EXPECT_EQ(sample.rows[0][2], "000000000000f03f");
  const Store::Table round = store_.table("round");
  EXPECT_EQ(round.columns.at(5), "cpu_mhz");
  EXPECT_EQ(round.rows.at(0).at(5), std::nullopt);
  EXPECT_EQ(round.rows.at(0).at(4), "[1]");
  EXPECT_NE(error_of([&] { store_.table("x\"; DROP TABLE run"); }), "");
}

TEST_F(Snapshot, StaysAsItWasAndCannotBeWritten) {
  fill(store_);
  Store copy = store_.snapshot();
  add_base(store_);
  EXPECT_EQ(store_.runs().size(), 2u);
  EXPECT_EQ(copy.runs().size(), 1u);
  EXPECT_EQ(copy.run_trials(1).size(), 100u);
  EXPECT_EQ(copy.integrity(), "");
  EXPECT_THROW(copy.finish_run(1, "complete", ""), std::logic_error);
}

TEST_F(Rows, DamagedSamplesAndOrdersAreErrors) {
  const Base base = add_base(store_);
  const Id trial = add_trial(store_, base, "a").id;
  const Id race = add_race(store_, base);
  add_round(store_, race, 0, trial, {1});
  store_.finish_race(race, "complete");
  Connection raw(file_, "raw", Connection::Mode::kWrite);
  raw.execute("PRAGMA ignore_check_constraints=ON; UPDATE sample SET ns = x'0102030405'");
  EXPECT_NE(error_of([&] { store_.rounds(race); }).find("5 bytes"), std::string::npos);
  EXPECT_NE(error_of([&] { store_.run_trials(base.run); }).find("5 bytes"), std::string::npos);
  EXPECT_NE(store_.integrity(), "");
  raw.execute("UPDATE sample SET ns = x''");
  for (const char* order : {"", "[", "[]x", "[1", "[1,", "[1,]", "1]", "[a]", "[1 2]", "[1],",
                            "[99999999999999999999]"}) {
    raw.prepare("UPDATE round SET trial_order = ?").bind(std::string(order)).run();
    EXPECT_NE(error_of([&] { store_.rounds(race); }).find("damaged"), std::string::npos) << order;
  }
  raw.execute("UPDATE round SET trial_order = '[-1,2]'");
  EXPECT_EQ(store_.rounds(race).at(0).order, (std::vector<Id>{-1, 2}));
}

}  // namespace
}  // namespace muse::db
