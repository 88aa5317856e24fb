// SPDX-License-Identifier: Apache-2.0
// The reading half of the store.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "db/store.h"
#include "db/store_impl.h"

namespace muse::db {
namespace {

#define MUSE_RUN_COLUMNS                                                                    \
  "SELECT id, device_id, build_id, config_path, config_text, config_hash, command, timer, " \
  "status, base, seed, started, ended, environment, cost FROM run "
constexpr char kRuns[] = MUSE_RUN_COLUMNS "ORDER BY id";
constexpr char kRun[] = MUSE_RUN_COLUMNS "WHERE id = ?";
constexpr char kLastRun[] = MUSE_RUN_COLUMNS "ORDER BY id DESC LIMIT 1";
#undef MUSE_RUN_COLUMNS

#define MUSE_DEVICE_COLUMNS                                                                     \
  "SELECT id, kind, uuid, name, driver, clock_policy, model, isa, cc, sm_count, memory_bytes, " \
  "l2_bytes, driver_version FROM device "
constexpr char kDevices[] = MUSE_DEVICE_COLUMNS "ORDER BY id";
constexpr char kDevice[] = MUSE_DEVICE_COLUMNS "WHERE id = ?";
#undef MUSE_DEVICE_COLUMNS

constexpr char kFindDevice[] = R"sql(
SELECT id FROM device WHERE kind = ? AND uuid = ? AND name = ? AND driver = ? AND clock_policy = ?
  AND model = ? AND isa = ? AND cc = ? AND sm_count = ? AND l2_bytes = ? AND driver_version = ?)sql";
constexpr char kFindBuild[] = R"sql(
SELECT id FROM build WHERE version = ? AND revision = ? AND compiler = ? AND flags = ?
  AND build_type = ? AND toolkit = ?)sql";
constexpr char kFindProblem[] = "SELECT id FROM problem WHERE key = ?";
constexpr char kFindCandidate[] =
    "SELECT id FROM candidate WHERE key = ? AND span = ? AND variant = ? AND pipeline = ?";
constexpr char kBuild[] =
    "SELECT id, version, revision, compiler, flags, build_type, toolkit FROM build WHERE id = ?";
constexpr char kKernels[] = R"sql(
SELECT id, name, architecture, source_hash, cubin_hash, coalesce(registers, -1),
  coalesce(shared_bytes, -1), coalesce(spill_bytes, -1), compile_ms, log
FROM kernel ORDER BY name, architecture, id)sql";
constexpr char kProblem[] = "SELECT id, key, fields FROM problem WHERE id = ?";
constexpr char kCandidate[] = "SELECT id, key, span, variant, pipeline FROM candidate WHERE id = ?";

#define MUSE_TRIAL_COLUMNS                                                               \
  "trial.id, trial.device_id, trial.toolkit, trial.code_hash, trial.candidate_id, "      \
  "trial.handoff_in, trial.problem_id, trial.regime, trial.protocol_hash, trial.state, " \
  "trial.reason, trial.strikes, trial.updated"
constexpr char kTrial[] = "SELECT " MUSE_TRIAL_COLUMNS " FROM trial WHERE id = ?";
constexpr char kFindTrial[] = "SELECT " MUSE_TRIAL_COLUMNS R"sql(
FROM trial WHERE device_id = ? AND toolkit = ? AND code_hash = ? AND candidate_id = ?
  AND handoff_in = ? AND problem_id = ? AND regime = ? AND protocol_hash = ?)sql";
constexpr char kTrialsOf[] = "SELECT " MUSE_TRIAL_COLUMNS R"sql(
FROM trial WHERE candidate_id = ? AND problem_id = ? ORDER BY id DESC)sql";
constexpr char kRunTrials[] = "SELECT " MUSE_TRIAL_COLUMNS R"sql(,
  candidate.id, candidate.key, candidate.span, candidate.variant, candidate.pipeline,
  problem.id, problem.key, problem.fields, run_trial.reused
FROM run_trial
  JOIN trial ON trial.id = run_trial.trial_id
  JOIN candidate ON candidate.id = trial.candidate_id
  JOIN problem ON problem.id = trial.problem_id
WHERE run_trial.run_id = ?
ORDER BY problem.key, trial.regime, candidate.span, candidate.key, trial.handoff_in, trial.id)sql";
#undef MUSE_TRIAL_COLUMNS

constexpr char kLastRace[] = R"sql(
SELECT race.id FROM race_trial JOIN race ON race.id = race_trial.race_id
WHERE race_trial.trial_id = ? AND race.status = 'complete' ORDER BY race.id DESC LIMIT 1)sql";
constexpr char kLastRaces[] = R"sql(
SELECT run_trial.trial_id, max(race.id)
FROM run_trial
  JOIN race_trial ON race_trial.trial_id = run_trial.trial_id
  JOIN race ON race.id = race_trial.race_id AND race.status = 'complete'
WHERE run_trial.run_id = ? GROUP BY run_trial.trial_id)sql";
constexpr char kGoodSamples[] = R"sql(
SELECT sample.trial_id, sample.ns FROM round JOIN sample ON sample.round_id = round.id
WHERE round.race_id = ? AND round.rejected = '' ORDER BY round.id, sample.trial_id)sql";

#define MUSE_RACE_COLUMNS                                                                         \
  "SELECT id, run_id, problem_id, span, handoff_in, regime, timer, rules, seed, step_ns, status " \
  "FROM race "
constexpr char kRaces[] = MUSE_RACE_COLUMNS "WHERE run_id = ? ORDER BY id";
constexpr char kRacesOfGroup[] = MUSE_RACE_COLUMNS
    "WHERE problem_id = ? AND span = ? AND handoff_in = ? AND regime = ? ORDER BY id";
constexpr char kRace[] = MUSE_RACE_COLUMNS "WHERE id = ?";
#undef MUSE_RACE_COLUMNS

constexpr char kRounds[] = R"sql(
SELECT id, race_id, number, final, trial_order, cpu_mhz, sm_mhz, memory_mhz, power_w, temperature_c,
  reason_bits, sentinel_first_ns, sentinel_last_ns, rejected, at
FROM round WHERE race_id = ? ORDER BY id)sql";
constexpr char kSamples[] = R"sql(
SELECT trial_id, ns FROM sample WHERE round_id = ? ORDER BY trial_id)sql";

constexpr char kValidations[] = R"sql(
SELECT trial_id, run_id, gate, passed, data, metric, message FROM validation
WHERE trial_id = ? ORDER BY id)sql";
constexpr char kSelections[] = R"sql(
SELECT id, run_id, problem_id, span, handoff_in, regime, trial_id, base_trial_id, median_ns, low_ns,
  high_ns, base_median_ns, tie_set, rule, status, race_id
FROM selection WHERE run_id = ? ORDER BY id)sql";
constexpr char kInteractions[] = R"sql(
SELECT run_id, problem_id, regime, candidate_id, stage_sum_ns FROM interaction WHERE run_id = ?
ORDER BY problem_id, regime, candidate_id)sql";
constexpr char kDispatchEntries[] = R"sql(
SELECT id, run_id, selection_id, header_path, header_hash, emitted, regret_pct FROM dispatch_entry
WHERE run_id = ? ORDER BY id)sql";
constexpr char kQuarantines[] = R"sql(
SELECT device_id, code_hash, candidate, reason, since FROM quarantine
WHERE device_id = ? ORDER BY code_hash, candidate)sql";

Id read_id(Statement& s) { return s.integer(); }

// Braced initialisers are evaluated from left to right: the order of the columns.
RunRow read_run(Statement& s) {
  return {s.integer(),
          s.integer(),
          s.integer(),
          s.text(),
          s.text(),
          s.text(),
          s.text(),
          s.text(),
          s.text(),
          s.text(),
          static_cast<uint64_t>(s.integer()),
          s.text(),
          s.text(),
          s.text(),
          s.text()};
}

DeviceRow read_device(Statement& s) {
  return {s.integer(), s.text(),    s.text(),    s.text(),    s.text(),    s.text(),   s.text(),
          s.text(),    s.integer(), s.integer(), s.integer(), s.integer(), s.integer()};
}

BuildRow read_build(Statement& s) {
  return {s.integer(), s.text(), s.text(), s.text(), s.text(), s.text(), s.text()};
}

KernelRow read_kernel(Statement& s) {
  return {s.integer(), s.text(),    s.text(),    s.text(),   s.text(),
          s.integer(), s.integer(), s.integer(), s.real(-1), s.text()};
}

ProblemRow read_problem(Statement& s) { return {s.integer(), s.text(), s.text()}; }

CandidateRow read_candidate(Statement& s) {
  return {s.integer(), s.text(), s.text(), s.text(), s.flag()};
}

TrialRow read_trial(Statement& s) {
  return {s.integer(),
          {s.integer(), s.text(), s.text(), s.integer(), s.text(), s.integer(), s.text(), s.text()},
          s.text(),
          s.text(),
          s.integer(),
          s.text()};
}

RaceRow read_race(Statement& s) {
  return {s.integer(), s.integer(), s.integer(),
          s.text(),    s.text(),    s.text(),
          s.text(),    s.text(),    static_cast<uint64_t>(s.integer()),
          s.real(),    s.text()};
}

ValidationRow read_validation(Statement& s) {
  return {s.integer(), s.integer(), s.text(), s.flag(), s.text(), s.text(), s.text()};
}

SelectionRow read_selection(Statement& s) {
  return {s.integer(), s.integer(), s.integer(), s.text(),   s.text(), s.text(),
          s.integer(), s.integer(), s.real(),    s.real(),   s.real(), s.real(),
          s.text(),    s.text(),    s.text(),    s.integer()};
}

InteractionRow read_interaction(Statement& s) {
  return {s.integer(), s.integer(), s.text(), s.integer(), s.real()};
}

DispatchEntryRow read_dispatch_entry(Statement& s) {
  return {s.integer(), s.integer(), s.integer(), s.text(), s.text(), s.text(), s.real()};
}

QuarantineRow read_quarantine(Statement& s) {
  return {s.integer(), s.text(), s.text(), s.text(), s.text()};
}

[[noreturn]] void fail_damaged(const Connection& connection, const std::string& what) {
  throw Error(
      fmt::format("{}: the database is damaged: {}; restore a copy, or move it away and "
                  "sweep again",
                  connection.shown(), what));
}

/// "[3,1,2]" as ids.
std::vector<Id> parse_order(const Connection& connection, std::string_view text) {
  std::vector<Id> order;
  if (text == "[]") return order;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end && *at == (order.empty() ? '[' : ',')) {
    Id id = 0;
    const auto [next, error] = std::from_chars(at + 1, end, id);
    if (error != std::errc()) break;
    order.push_back(id);
    at = next;
    if (end - at == 1 && *at == ']') return order;
  }
  fail_damaged(connection, fmt::format("'{}' is no list of trials", text));
}

std::vector<double> parse_ns(const Connection& connection, std::string_view blob) {
  if (blob.size() % sizeof(double) != 0) {
    fail_damaged(connection, fmt::format("a sample of {} bytes", blob.size()));
  }
  std::vector<double> ns(blob.size() / sizeof(double));
  if (!ns.empty()) std::memcpy(ns.data(), blob.data(), blob.size());
  return ns;
}

/// The mean of the two middle values where their number is even. Reorders them.
std::optional<double> median(std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

/// The measured times of each trial of a run in the good rounds of its last complete race. Whole
/// races are read, in the order in which they lie in the file.
std::unordered_map<Id, std::vector<double>> good_samples(Connection& connection, Id run) {
  std::unordered_map<Id, Id> race_of;  // by trial
  std::vector<Id> races;
  Statement last = connection.prepare(kLastRaces);
  last.bind(run);
  while (last.step()) {
    const Id trial = last.integer();
    const Id race = last.integer();
    race_of.emplace(trial, race);
    races.push_back(race);
  }
  std::sort(races.begin(), races.end());
  races.erase(std::unique(races.begin(), races.end()), races.end());

  std::unordered_map<Id, std::vector<double>> samples;
  Statement read = connection.prepare(kGoodSamples);
  for (const Id race : races) {
    read.bind(race);
    while (read.step()) {
      const Id trial = read.integer();
      const auto found = race_of.find(trial);
      if (found == race_of.end() || found->second != race) continue;
      std::vector<double>& values = samples[trial];
      for (const double ns : parse_ns(connection, read.blob())) {
        if (!std::isnan(ns)) values.push_back(ns);
      }
    }
  }
  return samples;
}

template <typename Row>
Row required(const Connection& connection, std::optional<Row> row, const char* what, Id id) {
  if (!row) fail_damaged(connection, fmt::format("no {} {}", what, id));
  return *std::move(row);
}

}  // namespace

std::vector<RunRow> Store::runs() const { return impl_->all(kRuns, read_run); }
std::optional<RunRow> Store::run(Id id) const { return impl_->first(kRun, read_run, id); }
std::optional<RunRow> Store::last_run() const { return impl_->first(kLastRun, read_run); }
std::vector<DeviceRow> Store::devices() const { return impl_->all(kDevices, read_device); }

DeviceRow Store::device(Id id) const {
  return required(*impl_->connection, impl_->first(kDevice, read_device, id), "device", id);
}

BuildRow Store::build(Id id) const {
  return required(*impl_->connection, impl_->first(kBuild, read_build, id), "build", id);
}

std::vector<KernelRow> Store::kernels() const { return impl_->all(kKernels, read_kernel); }

ProblemRow Store::problem(Id id) const {
  return required(*impl_->connection, impl_->first(kProblem, read_problem, id), "problem", id);
}

CandidateRow Store::candidate(Id id) const {
  return required(*impl_->connection, impl_->first(kCandidate, read_candidate, id), "candidate",
                  id);
}

TrialRow Store::trial(Id id) const {
  return required(*impl_->connection, impl_->first(kTrial, read_trial, id), "trial", id);
}

std::optional<Id> Store::find_device(const DeviceRow& row) const {
  return impl_->first(kFindDevice, read_id, row.kind, row.uuid, row.name, row.driver,
                      row.clock_policy, row.model, row.isa, row.cc, row.sm_count, row.l2_bytes,
                      row.driver_version);
}

std::optional<Id> Store::find_build(const BuildRow& row) const {
  return impl_->first(kFindBuild, read_id, row.version, row.revision, row.compiler, row.flags,
                      row.build_type, row.toolkit);
}

std::optional<Id> Store::find_problem(const std::string& key) const {
  return impl_->first(kFindProblem, read_id, key);
}

std::optional<Id> Store::find_candidate(const CandidateRow& row) const {
  return impl_->first(kFindCandidate, read_id, row.key, row.span, row.variant, row.pipeline);
}

std::optional<TrialRow> Store::find_trial(const TrialKey& key) const {
  return impl_->first(kFindTrial, read_trial, key.device_id, key.toolkit, key.code_hash,
                      key.candidate_id, key.handoff_in, key.problem_id, key.regime,
                      key.protocol_hash);
}

std::vector<TrialRow> Store::trials(Id candidate, Id problem) const {
  return impl_->all(kTrialsOf, read_trial, candidate, problem);
}

std::vector<Store::RunTrial> Store::run_trials(Id run) const {
  const auto read = [](Statement& s) {
    return RunTrial{read_trial(s), read_candidate(s), read_problem(s), s.flag(), std::nullopt, 0};
  };
  std::vector<RunTrial> trials = impl_->all(kRunTrials, read, run);
  auto samples = good_samples(*impl_->connection, run);
  for (RunTrial& one : trials) {
    // Whoever crashed in a race may have samples of its rounds; they are evidence, not a time.
    if (one.trial.state != "ok" && one.trial.state != "degraded") continue;
    const auto found = samples.find(one.trial.id);
    if (found == samples.end()) continue;
    one.sample_count = static_cast<int64_t>(found->second.size());
    one.median_ns = median(found->second);
  }
  return trials;
}

std::vector<RaceRow> Store::races(Id run) const { return impl_->all(kRaces, read_race, run); }
std::vector<RaceRow> Store::races(Id problem, const std::string& span,
                                  const std::string& handoff_in, const std::string& regime) const {
  return impl_->all(kRacesOfGroup, read_race, problem, span, handoff_in, regime);
}

std::optional<RaceRow> Store::race(Id id) const { return impl_->first(kRace, read_race, id); }

std::optional<Id> Store::last_race(Id trial) const {
  return impl_->first(kLastRace, read_id, trial);
}

std::vector<RoundRow> Store::rounds(Id race) const {
  const Connection& connection = *impl_->connection;
  const auto read_round = [&](Statement& s) {
    return RoundRow{
        s.integer(), s.integer(), s.integer(), s.flag(),   parse_order(connection, s.text()),
        s.real(-1),  s.real(-1),  s.real(-1),  s.real(-1), s.real(-1),
        s.integer(), s.real(-1),  s.real(-1),  s.text(),   s.text(),
        {}};
  };
  const auto read_sample = [&](Statement& s) {
    return SampleRow{s.integer(), parse_ns(connection, s.blob())};
  };
  std::vector<RoundRow> rounds = impl_->all(kRounds, read_round, race);
  for (RoundRow& round : rounds) round.samples = impl_->all(kSamples, read_sample, round.id);
  return rounds;
}

std::vector<ValidationRow> Store::validations(Id trial) const {
  return impl_->all(kValidations, read_validation, trial);
}

std::vector<SelectionRow> Store::selections(Id run) const {
  return impl_->all(kSelections, read_selection, run);
}

std::vector<InteractionRow> Store::interactions(Id run) const {
  return impl_->all(kInteractions, read_interaction, run);
}

std::vector<DispatchEntryRow> Store::dispatch_entries(Id run) const {
  return impl_->all(kDispatchEntries, read_dispatch_entry, run);
}

std::vector<QuarantineRow> Store::quarantines(Id device) const {
  return impl_->all(kQuarantines, read_quarantine, device);
}

}  // namespace muse::db
