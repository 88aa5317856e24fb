// SPDX-License-Identifier: Apache-2.0
// What was measured, made up: shapes with known times, in memory and in a database.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/db/support.h"
#include "tuner/dispatch_rows.h"
#include "tuner/records.h"

namespace muse::tuner {

inline Shape shape(int64_t batch, int64_t context, int64_t window = 0) {
  Shape s;
  s.problem.batch = batch;
  s.problem.window = window;
  s.lengths.context = context;
  s.problem.max_context = default_max_context(s);
  return s;
}

inline MeasuredShape measured(const Shape& s, const std::string& chosen,
                              const std::map<std::string, double>& times) {
  MeasuredShape result;
  result.chosen.shape = s;
  result.chosen.pipeline = chosen;
  result.chosen.median_ns = times.at(chosen);
  result.chosen.base_median_ns = times.at("base");
  result.chosen.status = "winner";
  for (const auto& [name, ns] : times) result.times[name] = {ns, ns - 1, ns + 1};
  return result;
}

/// A database with a finished run of the host whose whole pipelines raced on some shapes.
class StoredSweep {
 public:
  explicit StoredSweep(const std::string& model = "a CPU", const std::string& protocol = "one")
      : store_(db::Store::open(folder_ / "a.db", db::Open::kCreate)), protocol_(protocol) {
    run_.device_id = store_.upsert(
        db::DeviceRow{.kind = "host", .uuid = "u", .model = model, .isa = "avx2", .sm_count = 8});
    run_.build_id = store_.upsert(db::BuildRow{});
    run_.config_text =
        "schema: 1\nshapes:\n  - {batch: 2, q_len: 1, window: 0, rope_theta: 0, context: 64}\n";
    run_.config_path = "a.yaml";
    run_.base = kBase;
    run_.timer = "host";
    run_.status = "complete";
    run_.started = "2030-01-02T03:04:05Z";
    run_.environment = "{}";
    run_.id = store_.insert(run_);
    on(shape(2, 64));
  }
  std::string file() const { return (folder_ / "a.db").string(); }
  /// What follows is about this shape.
  void on(const Shape& s) {
    problem_ = store_.upsert(db::ProblemRow{.id = 0, .key = key(s), .fields = "{}"});
  }
  db::Id trial(const std::string& chain, const std::string& code_hash) {
    db::TrialKey key{.device_id = run_.device_id,
                     .toolkit = "GNU 12",
                     .code_hash = code_hash,
                     .candidate_id = store_.upsert(db::CandidateRow{
                         .key = chain, .span = std::string(name(kWholeStep)), .pipeline = true}),
                     .problem_id = problem_,
                     .regime = "cold",
                     .protocol_hash = protocol_};
    const db::Id id = store_.trial(key, run_.id, false).id;
    store_.set_trial(id, "ok", "", 0, run_.started);
    return id;
  }
  /// Eight good rounds, one of which has no sample of the second trial, and a rejected one; every
  /// time `level` times what it is at 1.
  db::Id race(const std::vector<db::Id>& trials, double level = 1) {
    const db::Id race = store_.insert(db::RaceRow{.run_id = run_.id,
                                                  .problem_id = problem_,
                                                  .span = std::string(name(kWholeStep)),
                                                  .regime = "cold",
                                                  .timer = "host",
                                                  .rules = "{}",
                                                  .step_ns = 1,
                                                  .status = "running"});
    for (int r = 0; r < 9; ++r) {
      db::RoundRow round{.race_id = race, .number = r, .order = trials, .at = run_.started};
      if (r == 8) round.rejected = "slow";
      for (size_t i = 0; i < trials.size(); ++i) {
        const double ns = level * (1000.0 * static_cast<double>(i + 1) + (r == 8 ? 1e9 : r));
        round.samples.push_back(
            {.trial_id = trials[i], .ns = {r == 0 && i == 1 ? std::nan("") : ns}});
      }
      store_.insert(round);
    }
    store_.finish_race(race, "complete");
    return race;
  }
  void select(db::Id trial, db::Id base = 0, double base_median_ns = 2004, db::Id race = 0) {
    store_.upsert(db::SelectionRow{.run_id = run_.id,
                                   .problem_id = problem_,
                                   .span = std::string(name(kWholeStep)),
                                   .regime = "cold",
                                   .trial_id = trial,
                                   .base_trial_id = base,
                                   .median_ns = 1003.5,
                                   .low_ns = 1001,
                                   .high_ns = 1006,
                                   .base_median_ns = base_median_ns,
                                   .tie_set = "[\"" + kFast + "\"]",
                                   .rule = "fastest",
                                   .status = "winner",
                                   .race_id = race});
  }

  /// Raced on the shape in this order, the first of them chosen; each is 1 us slower than the one
  /// before.
  void measure(const Shape& s, const std::vector<std::string>& chains) {
    on(s);
    std::vector<db::Id> trials;
    for (const std::string& chain : chains) {
      trials.push_back(trial(chain, code_hash(Registry::global().parse_chain(chain).value())));
    }
    race(trials);
    select(trials.front());
  }

  const std::string kBase =
      "prepare/scalar + attention/scalar:splits=4 + combine/scalar + gate/scalar";
  const std::string kFast = "prepare/scalar + attention/scalar:splits=1 + gate/scalar";
  const db::TempFolder folder_;
  db::Store store_;
  const std::string protocol_;
  db::RunRow run_;
  db::Id problem_ = 0;
};

}  // namespace muse::tuner
