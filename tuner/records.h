// SPDX-License-Identifier: Apache-2.0
// Between the tuner's values and the database's rows: runs, trials, races. Every write is a
// transaction of its own, so that a kill at any time loses at most the round in flight.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "db/store.h"
#include "tuner/outcome.h"
#include "tuner/protocol.h"
#include "tuner/spec.h"
#include "tuner/stored_race.h"

namespace muse::tuner {

/// 32 hex digits over the text.
std::string hash_hex(std::string_view text);

/// ISO 8601, UTC, seconds.
std::string utc_now();

/// Hash over what a sample means: timer, regime, and the backend's recipe and sampler version.
std::string protocol_hash(const Hello& hello, profiler::Regime regime);

/// Code hashes of every variant in the chain, joined; a variant without source closure (tests)
/// counts with the hash of this executable, so that any rebuild measures it anew.
std::string code_hash(const Chain& chain);

/// "partials_f32_s4"; empty for kinds other than Partials, which have one form.
std::string key(const Handoff& handoff);

/// One that races: what is timed, what feeds it untimed, and its row.
struct Entrant {
  Chain chain;
  Chain feeder;
  bool base = false;
  db::TrialRow trial;
  Outcome outcome() const { return *parse_outcome(trial.state); }
};

/// What is compared with each other: one span of one shape in one regime, fed with one hand-off.
struct RaceGroup {
  Shape shape;
  profiler::Regime regime = profiler::Regime::kCold;
  Span span{Stage::kPrepare, Stage::kGate};
  Handoff handoff;  ///< kPartials where the span starts at combine
};

struct RunIdentity {
  std::string command;
  std::string timer;
  uint64_t seed = 1;
  std::string base;  ///< chain key
};

/// Whether the process that wrote the run has ended, however it did.
bool owner_is_gone(const db::RunRow& run);

class Records {
 public:
  /// Starts a run, or goes on with the file's last one where that is of the same config, seed,
  /// device and code, was cut short and its process is gone.
  Records(db::Store& store, const Spec& spec, const Hello& hello, const RunIdentity& identity);

  db::Id run() const { return run_; }
  bool resumed() const { return resumed_; }
  /// What that run left unfinished is this one's to go on with: its own, and what like runs that
  /// were cut short left where others came between.
  bool goes_on(db::Id run) const { return run == run_ || continued_.contains(run); }
  db::Store& store() { return store_; }

  /// The trial's row, made if it is new; linked to this run.
  db::TrialRow trial(const Chain& chain, const RaceGroup& group);
  /// Leaves the trial pending under this run, for this reason. One that has ended is not linked: it
  /// took no part in what this run decides.
  void leave_out(const Chain& chain, const RaceGroup& group, const std::string& reason);
  std::optional<db::TrialRow> find(const Chain& chain, const RaceGroup& group) const;
  void set(db::TrialRow& trial, Outcome outcome, const std::string& reason);
  void set_reused(db::Id trial);
  void add(const db::TrialRow& trial, const ValidationReport& report);
  /// Every gate judged so far passed, and there was at least one.
  bool validated(const db::TrialRow& trial) const;
  /// It was right on other data after it had been timed.
  bool revalidated(const db::TrialRow& trial) const;
  /// This run has run its gates.
  bool judged_here(const db::TrialRow& trial) const;
  void quarantine(const Entrant& entrant, const std::string& reason);
  bool quarantined(const Chain& chain) const;

  /// A scout decides nothing: it tells a search where to look.
  db::Id start_race(const RaceGroup& group, const std::vector<Entrant>& entrants, int base,
                    const RaceRules& rules, bool scout);
  void add_round(db::Id race, const std::vector<Entrant>& entrants, const RoundOrder& order,
                 const profiler::ClockReading& clock, const RoundSamples& samples);
  /// An entrant left the race between two rounds.
  void add_exclusion(db::Id race, const Entrant& entrant, const std::string& why);
  void finish_race(db::Id race, bool scout);
  /// Races of this group on this device, newest first. Ones that no longer replay are left out.
  std::vector<StoredRace> races(const RaceGroup& group) const;

  db::Id add(const db::SelectionRow& row);
  /// `cost`: where the time went, see db::RunRow::cost.
  void finish(const std::string& status, const std::string& cost);
  /// What the run has cost until it was cut off; empty where it is new, or was killed.
  std::string cost() const;
  /// What the stages of a pipeline took alone, under this run.
  void add_stage_sum(const Chain& chain, const RaceGroup& group, double ns);

 private:
  db::TrialKey trial_key(const Chain& chain, const RaceGroup& group);
  db::Id problem_id(const Shape& shape);
  db::Id candidate_id(const Chain& chain);
  /// Rounds and exclusions of a race count on together: in this order they replay.
  int64_t next_number(db::Id race);

  db::Store& store_;
  Hello hello_;
  std::string timer_;
  db::Id device_ = 0, build_ = 0, run_ = 0;
  bool resumed_ = false;
  std::set<db::Id> continued_;  ///< runs whose unfinished races it goes on with
  uint64_t seed_ = 1;
  std::map<std::string, db::Id> problems_, candidates_;
  std::map<db::Id, int64_t> next_number_;
};

/// Runs of the same config, command and seed by this build on this device, oldest first.
std::vector<db::RunRow> like_runs(const db::Store& store, const Spec& spec, const Hello& hello,
                                  const RunIdentity& identity);
/// Those of them since the last one that came to its end, oldest first. None where the process of
/// one is still there: what is unfinished is then its.
std::vector<db::RunRow> runs_cut_short(const db::Store& store, const Spec& spec, const Hello& hello,
                                       const RunIdentity& identity);
/// The last of those.
std::optional<db::RunRow> resumable_run(const db::Store& store, const Spec& spec,
                                        const Hello& hello, const RunIdentity& identity);

/// What rows of a run on this machine are keyed with.
db::DeviceRow device_row(const Hello& hello);
db::BuildRow build_row();
db::CandidateRow candidate_row(const Chain& chain);

/// States of a race in the database. One that was cut off stays running, or scouting.
inline constexpr std::string_view kRunningRace = "running", kDecidingRace = "complete",
                                  kScoutingRace = "scouting", kScoutRace = "scout";

}  // namespace muse::tuner
