// SPDX-License-Identifier: Apache-2.0
// A run in the database, decided once more and put into words: races with made-up times.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/fakes/command.h"
#include "tuner/explanation.h"
#include "variants/registry.h"

namespace muse::tuner {
namespace {

constexpr char kConfig[] =
    "schema: 1\n"
    "shapes:\n"
    "  - {batch: 2, q_len: 1, window: 0, rope_theta: 0, context: 64}\n"
    "measure: {max_rounds: 64}\n";
constexpr char kProblem[] = "b2_l1_h16x2_d64_ps1_w0_rope0_kv1_t64_uniform_random_s1";

/// A run whose trials and races a test writes itself.
class Explained : public ::testing::Test {
 protected:
  Explained() : store_(db::Store::open(folder_ / "a.db", db::Open::kCreate)) {
    const auto shape = parse_shape(kProblem);
    if (!shape) throw std::logic_error(shape.error());
    device_ = store_.upsert(
        db::DeviceRow{.kind = "host", .uuid = "machine", .model = "a CPU", .sm_count = 64});
    build_ = store_.upsert(db::BuildRow{.version = "1"});
    problem_ = store_.upsert(db::ProblemRow{.key = kProblem, .fields = "{}"});
    run_ = add_run();
  }

  db::Id add_run(const std::string& config = kConfig) {
    return store_.insert(db::RunRow{.device_id = device_,
                                    .build_id = build_,
                                    .config_path = "a.yaml",
                                    .config_text = config,
                                    .status = "complete",
                                    .started = "2025-01-01T00:00:00Z",
                                    .ended = "2025-01-01T01:00:00Z"});
  }

  db::TrialRow add_trial(const std::string& key, const std::string& state = "ok",
                         const std::string& reason = "", db::Id run = 0) {
    const auto chain = Registry::global().parse_chain(key);
    const db::Id candidate = store_.upsert(
        db::CandidateRow{.key = key,
                         .span = chain ? std::string(muse::name(span(*chain))) : "gate",
                         .variant = chain && chain->size() == 1 ? (*chain)[0].variant->name : "",
                         .pipeline = chain && chain->size() > 1});
    const db::TrialRow trial = store_.trial({.device_id = device_,
                                             .toolkit = "none",
                                             .code_hash = chain ? code_hash(*chain) : "gone",
                                             .candidate_id = candidate,
                                             .problem_id = problem_,
                                             .regime = "cold",
                                             .protocol_hash = "protocol"},
                                            run == 0 ? run_ : run, false);
    store_.set_trial(trial.id, state, reason, 0, "2025-01-01T00:30:00Z");
    return store_.trial(trial.id);
  }

  /// Races trials whose samples lie evenly around these times; the first is the base. `missing`:
  /// trials without a good sample.
  db::Id race(const std::vector<db::TrialRow>& trials, const std::vector<double>& ns,
              const std::set<size_t>& missing = {}, db::Id run = 0) {
    std::vector<db::Id> ids;
    for (const db::TrialRow& trial : trials) ids.push_back(trial.id);
    const RaceRules rules{.max_rounds = 64};
    Race race(static_cast<int>(ids.size()), 0, rules);
    const db::Id id =
        store_.insert(db::RaceRow{.run_id = run == 0 ? run_ : run,
                                  .problem_id = problem_,
                                  .span = store_.candidate(trials.front().key.candidate_id).span,
                                  .regime = "cold",
                                  .rules = race_text(ids, 0, rules),
                                  .seed = rules.seed,
                                  .step_ns = rules.step_ns,
                                  .status = "complete"});
    store_.transaction([&] { run_rounds(id, ids, race, ns, missing); });
    return id;
  }

  void run_rounds(db::Id id, const std::vector<db::Id>& ids, Race& race,
                  const std::vector<double>& ns, const std::set<size_t>& missing) {
    int64_t number = 0;
    while (const auto order = race.next()) {
      db::RoundRow round{.race_id = id, .number = number++, .final = order->final};
      std::map<db::Id, std::vector<double>> samples;
      RoundSamples fed;
      for (const int entrant : order->entrants) {
        const auto index = static_cast<size_t>(entrant);
        const double jitter = static_cast<double>((number * 7 + entrant * 3) % 11) - 5;
        const double one = missing.contains(index) ? NAN : ns[index] * (1 + jitter * 1e-4);
        round.order.push_back(ids[index]);
        samples[ids[index]].push_back(one);
        fed.ns.push_back(one);
      }
      for (auto& [trial, values] : samples) round.samples.push_back({trial, std::move(values)});
      store_.insert(round);
      race.add(*order, fed);
    }
  }

  /// Stores what a sweep would have selected out of the race.
  db::SelectionRow select(db::Id race, const std::vector<db::TrialRow>& trials, db::Id run = 0) {
    const auto stored = replay(*store_.race(race), store_.rounds(race));
    if (!stored) throw std::logic_error("the race does not replay");
    std::vector<Entrant> entrants;
    for (size_t i = 0; i < trials.size(); ++i) {
      const std::string key = store_.candidate(trials[i].key.candidate_id).key;
      const auto chain = Registry::global().parse_chain(key);
      if (!chain) continue;
      entrants.push_back({.chain = *chain, .base = i == 0, .trial = trials[i]});
    }
    const Decision decision = decide_from(*stored, entrants, parse_shape(kProblem)->problem,
                                          device_class(store_.device(device_)), MeasureRules{});
    const Selection& s = decision.selection;
    nlohmann::json ties = nlohmann::json::array();
    for (const int i : s.tie_set) ties.push_back(decision.contenders[i].key);
    db::SelectionRow row{.run_id = run == 0 ? run_ : run,
                         .problem_id = problem_,
                         .span = stored->row.span,
                         .regime = "cold",
                         .trial_id = stored->trials[decision.entrants[s.winner]],
                         .base_trial_id = trials[0].id,
                         .median_ns = s.median_ns,
                         .low_ns = s.interval.low,
                         .high_ns = s.interval.high,
                         .base_median_ns = s.base_median_ns,
                         .tie_set = ties.dump(),
                         .rule = s.rule,
                         .status = s.status,
                         .race_id = race};
    row.id = store_.upsert(row);
    return row;
  }

  /// "" = the same; what differs; "not replayable: why".
  std::string verdict(const db::SelectionRow& row) const {
    const StoredSelections selections(store_, *store_.run(row.run_id));
    const auto replayed = selections.replay(row);
    if (!replayed) return "not replayable: " + replayed.error();
    std::string text;
    for (const std::string& difference : replayed->differences) text += difference + "\n";
    return text;
  }

  std::vector<ExplainedGroup> explained(db::Id run = 0) const {
    return explain(store_, *store_.run(run == 0 ? run_ : run),
                   [](const std::string&, const std::string&) { return true; });
  }

  const ExplainedTrial& trial(const ExplainedGroup& group, const std::string& key) const {
    for (const ExplainedTrial& t : group.trials) {
      if (t.candidate == key) return t;
    }
    throw std::logic_error("no trial " + key);
  }

  /// Base, a winner, one tied with it, one slower in the final, one dropped early.
  void usual() {
    for (const int threads : {1, 2, 4}) {
      keys_.push_back("gate/simd:threads=" + std::to_string(threads));
    }
    trials_ = {add_trial("gate/scalar"), add_trial(keys_[0]), add_trial(keys_[1]),
               add_trial(keys_[2])};
    race_ = race(trials_, {2000, 1000, 1001, 1015});
    selection_ = select(race_, trials_);
  }

  fakes::TemporaryFolder folder_;
  db::Store store_;
  db::Id device_ = 0, build_ = 0, problem_ = 0, run_ = 0;
  std::vector<std::string> keys_;
  std::vector<db::TrialRow> trials_;
  db::Id race_ = 0;
  db::SelectionRow selection_;
};

using Replayed = Explained;

TEST_F(Replayed, SaysTheSameFromStoredSamples) {
  usual();
  EXPECT_EQ(verdict(selection_), "");
}

TEST_F(Replayed, NamesWhatDiffersFromWhatIsStored) {
  usual();
  const auto with = [&](auto change) {
    db::SelectionRow row = selection_;
    change(row);
    return verdict(row);
  };
  EXPECT_EQ(with([&](db::SelectionRow& r) { r.trial_id = trials_[3].id; }),
            "winner: stored " + keys_[2] + ", recomputed " + keys_[0] + "\n");
  EXPECT_EQ(with([](db::SelectionRow& r) { r.rule = "fastest"; }),
            "rule: stored fastest, recomputed " + selection_.rule + "\n");
  EXPECT_TRUE(with([](db::SelectionRow& r) { r.median_ns *= 1.001; }).starts_with("median: "));
  EXPECT_TRUE(with([](db::SelectionRow& r) { r.high_ns += 1; }).starts_with("interval: "));
  EXPECT_TRUE(with([&](db::SelectionRow& r) {
                r.tie_set = "[\"" + keys_[0] + "\"]";
              }).starts_with("tie set: "));
}

TEST_F(Replayed, SaysWhyItCannotBe) {
  usual();
  const auto with = [&](auto change) {
    db::SelectionRow row = selection_;
    change(row);
    return verdict(row);
  };
  EXPECT_EQ(with([](db::SelectionRow& r) { r.race_id = 77; }),
            "not replayable: there is no race 77");
  EXPECT_EQ(with([](db::SelectionRow& r) { r.tie_set = "what"; }),
            "not replayable: its tie set is no list of candidates");
  EXPECT_EQ(with([](db::SelectionRow& r) { r.trial_id = 0; }),
            "not replayable: it names no winner");
  const db::Id other = add_run("schema: 1\nshapes: []\n");
  EXPECT_TRUE(with([&](db::SelectionRow& r) {
                r.run_id = other;
              }).starts_with("not replayable: its config no longer loads: "));
}

TEST_F(Replayed, RefusesAVariantThatThisBuildDoesNotHave) {
  const std::vector<db::TrialRow> trials{add_trial("gate/scalar"), add_trial("gate/gone")};
  db::SelectionRow row = select(race(trials, {2000, 1000}), {trials[0]});
  row.trial_id = trials[1].id;
  const std::string why = verdict(row);
  EXPECT_TRUE(why.starts_with("not replayable: gate/gone: ")) << why;
}

TEST_F(Replayed, RefusesARaceOfOtherRules) {
  usual();
  db::RaceRow other = *store_.race(race_);
  other.rules = "{}";
  db::SelectionRow row = selection_;
  row.race_id = store_.insert(other);
  EXPECT_EQ(verdict(row).find("not replayable: the rules of race"), 0u) << verdict(row);
  other = *store_.race(race_);
  other.seed += 1;  // another order of turns
  row.race_id = store_.insert(other);
  for (db::RoundRow round : store_.rounds(race_)) {
    round.race_id = row.race_id;
    store_.insert(round);
  }
  EXPECT_EQ(verdict(row).find("not replayable: the rounds of race"), 0u) << verdict(row);
}

TEST_F(Replayed, FindsTheRaceThatASelectionOfOldDoesNotName) {
  usual();
  db::SelectionRow row = selection_;
  row.race_id = 0;
  EXPECT_EQ(verdict(row), "");
  const db::Id second = race(trials_, {3000, 1500, 2000, 2500});
  EXPECT_EQ(verdict(row), "") << "the older race says the same";
  row.median_ns = 7;
  EXPECT_EQ(verdict(row), "not replayable: it does not name its race, and none of 2 says the same");
  row.race_id = second;
  EXPECT_NE(verdict(row).find("median"), std::string::npos);
}

TEST_F(Replayed, StandsWhereALaterRunFoundAFault) {
  usual();
  store_.set_trial(trials_[1].id, "incorrect", "wrong since", 0, "2025-02-01T00:00:00Z");
  EXPECT_EQ(verdict(selection_), "");
}

TEST_F(Explained, GivesEachTrialItsFateTheBestFirst) {
  usual();
  const std::vector<ExplainedGroup> groups = explained();
  ASSERT_EQ(groups.size(), 1u);
  const ExplainedGroup& group = groups[0];
  EXPECT_EQ(group.problem + group.span + group.handoff + group.regime,
            std::string(kProblem) + "gatecold");
  EXPECT_EQ(group.chosen, keys_[0]);
  EXPECT_TRUE(group.differences.empty());
  ASSERT_EQ(group.trials.size(), 4u);
  EXPECT_EQ(group.trials[0].fate, Fate::kChosen);
  EXPECT_EQ(group.trials[0].candidate, keys_[0]);
  ASSERT_TRUE(group.gain_pct);
  EXPECT_NEAR(group.gain_pct->low, 50, 1);
  EXPECT_NE(group.trials[0].why.find("over the base"), std::string::npos) << group.trials[0].why;
  EXPECT_EQ(group.trials[1].fate, Fate::kTied);
  EXPECT_EQ(group.trials[1].candidate, keys_[1]);
  EXPECT_TRUE(group.trials[1].why.starts_with("tied with the winner, which "))
      << group.trials[1].why;
  const ExplainedTrial& slower = trial(group, keys_[2]);
  EXPECT_EQ(slower.fate, Fate::kSlower);
  ASSERT_TRUE(slower.behind_ns);
  EXPECT_NEAR(slower.behind_ns->low, 15, 2);
  EXPECT_NE(slower.why.find("in the final, slower than the leader by"), std::string::npos);
  EXPECT_TRUE(trial(group, "gate/scalar").base);
  EXPECT_FALSE(slower.base);
}

TEST_F(Explained, SaysInWhichRoundAndByWhichIntervalOneWasDropped) {
  const std::vector<db::TrialRow> trials{add_trial("gate/scalar"), add_trial("gate/simd:threads=1"),
                                         add_trial("gate/simd:threads=2"),
                                         add_trial("gate/simd:threads=4")};
  select(race(trials, {1000, 990, 5000, 1100}, {}), trials);
  const ExplainedGroup group = explained().at(0);
  const ExplainedTrial& last = group.trials.back();
  EXPECT_EQ(last.candidate, "gate/simd:threads=2");
  EXPECT_EQ(last.fate, Fate::kDropped);
  EXPECT_GE(last.dropped_in_round, 0);
  EXPECT_NE(last.why.find("dropped in round"), std::string::npos) << last.why;
  EXPECT_NE(last.why.find("behind the leader after"), std::string::npos) << last.why;
  ASSERT_TRUE(last.behind_ns);
  EXPECT_NEAR(last.behind_ns->low, 4000, 100);
}

TEST_F(Explained, ShowsAnUnsupportedCombineBesideTheOthersOfItsKind) {
  const db::TrialRow unsupported = add_trial("combine/scalar", "unsupported", "no");
  EXPECT_EQ(explained().size(), 1U) << "alone where there is nothing else";
  for (const std::string handoff : {"partials of 2", "partials of 4"}) {
    db::TrialKey key = unsupported.key;
    key.handoff_in = handoff;
    store_.set_trial(store_.trial(key, run_, false).id, "incorrect", "", 0, "2025-01-01T00:30:00Z");
  }
  const std::vector<ExplainedGroup> groups = explained();
  ASSERT_EQ(groups.size(), 2U);
  for (const ExplainedGroup& group : groups) {
    EXPECT_FALSE(group.handoff.empty());
    ASSERT_EQ(group.trials.size(), 2U);
    EXPECT_EQ(group.trials[1].fate, Fate::kSkipped);
  }
}

TEST_F(Explained, NamesWhoWasNeverTimedAndWhy) {
  usual();
  add_trial("attention/simd", "unsupported", "needs AVX2");
  add_trial("attention/scalar:splits=2", "pending", "not seen by the search");
  add_trial("attention/scalar:splits=4", "pending");
  add_trial("attention/scalar:splits=1", "incorrect", "gate end_to_end: 3 wrong\nmore");
  add_trial("combine/scalar", "compile_failed", "error: x\nnote: y");
  add_trial("prepare/scalar", "running", "racing");
  const db::TrialRow crashed = add_trial("prepare/simd:threads=1", "crashed", "signal 11");
  store_.insert(db::QuarantineRow{device_, crashed.key.code_hash, "prepare/simd:threads=1",
                                  "signal 11", "2025-01-01"});
  std::map<std::string, std::pair<Fate, std::string>> seen;
  for (const ExplainedGroup& group : explained()) {
    for (const ExplainedTrial& t : group.trials) seen[t.candidate] = {t.fate, t.why};
  }
  using Pair = std::pair<Fate, std::string>;
  EXPECT_EQ(seen["attention/simd"], (Pair{Fate::kSkipped, "unsupported: needs AVX2"}));
  EXPECT_EQ(seen["attention/scalar:splits=2"],
            (Pair{Fate::kNotTried, "not tried: not seen by the search"}));
  EXPECT_EQ(seen["attention/scalar:splits=4"], (Pair{Fate::kNotTried, "not tried yet"}));
  EXPECT_EQ(seen["attention/scalar:splits=1"],
            (Pair{Fate::kFailed, "wrong result: gate end_to_end: 3 wrong"}));
  EXPECT_EQ(seen["combine/scalar"], (Pair{Fate::kNotCompiled, "does not compile: error: x"}));
  EXPECT_EQ(seen["prepare/scalar"], (Pair{Fate::kUnfinished, "stopped before it ended: racing"}));
  EXPECT_EQ(seen["prepare/simd:threads=1"],
            (Pair{Fate::kQuarantined, "crashed; quarantined since 2025-01-01: signal 11"}));
}

TEST_F(Explained, SaysWhoseSamplesWereRejected) {
  const std::vector<db::TrialRow> trials{add_trial("gate/scalar"), add_trial("gate/simd:threads=1"),
                                         add_trial("gate/simd:threads=2")};
  select(race(trials, {1000, 500, 1}, {2}), trials);
  const ExplainedTrial out = explained().at(0).trials.back();
  EXPECT_EQ(out.candidate, "gate/simd:threads=2");
  EXPECT_EQ(out.fate, Fate::kExcluded);
  EXPECT_NE(out.why.find("samples rejected"), std::string::npos) << out.why;
}

TEST_F(Explained, NamesTheRunThatASampleIsReusedFrom) {
  usual();
  const db::Id later = add_run();
  for (const db::TrialRow& t : trials_) {
    store_.trial(t.key, later, true);
  }
  select(race_, trials_, later);
  for (const ExplainedTrial& t : explained(later).at(0).trials) {
    EXPECT_TRUE(t.reused);
    EXPECT_EQ(t.reused_from, run_);
    EXPECT_NE(t.why.find("(reused from run 1)"), std::string::npos) << t.why;
  }
  for (const ExplainedTrial& t : explained().at(0).trials) EXPECT_FALSE(t.reused) << t.candidate;
}

TEST_F(Explained, ComparesAPipelineWithItsStagesAlone) {
  const std::string stages = "prepare/scalar + attention/scalar:splits=4 + combine/scalar";
  const std::vector<std::string> pipelines{stages + " + gate/scalar",
                                           stages + " + gate/simd:threads=1",
                                           stages + " + gate/simd:threads=2"};
  const std::vector<db::TrialRow> trials{add_trial(pipelines[0]), add_trial(pipelines[1])};
  select(race(trials, {2000, 1000}), trials);
  const auto took = [&](const std::string& key, double ns) {
    const db::Id candidate =
        store_.upsert(db::CandidateRow{.key = key, .span = "prepare..gate", .pipeline = true});
    store_.upsert(db::InteractionRow{run_, problem_, "cold", candidate, ns});
    store_.upsert(db::InteractionRow{run_, problem_, "warm", candidate, 1});
  };
  took(pipelines[0], 1900);
  took(pipelines[1], 1100);
  took(pipelines[1] + " + pdl", 1100);
  took(pipelines[2], 3000);
  const ExplainedGroup group = explained().at(0);
  EXPECT_EQ(group.span, "prepare..gate");
  const ExplainedTrial& best = trial(group, pipelines[1]);
  EXPECT_EQ(best.rank, 1);
  EXPECT_EQ(best.ranked, 3);
  ASSERT_TRUE(best.interaction_ns());
  EXPECT_NEAR(*best.interaction_ns(), -100, 1);
  EXPECT_NEAR(*trial(group, pipelines[0]).interaction_ns(), 100, 1);
  const ExplainedTrial& third = trial(group, pipelines[2]);
  EXPECT_EQ(third.trial, 0) << "not measured";
  EXPECT_EQ(third.fate, Fate::kNotTried);
  EXPECT_EQ(third.rank, 3);
  EXPECT_FALSE(third.interaction_ns());
  EXPECT_EQ(group.trials.back().candidate, pipelines[2]);
  EXPECT_EQ(trial(group, pipelines[1] + " + pdl").rank, 1) << "the same stages";
}

}  // namespace
}  // namespace muse::tuner
