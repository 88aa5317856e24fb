// SPDX-License-Identifier: Apache-2.0
// Runs, trials and races as rows, and back.
#include "tuner/records.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tuner/build_info.h"
#include "tuner/known_trials.h"
#include "tuner/revalidate.h"

namespace muse::tuner {
namespace {

using nlohmann::json;

std::string read_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

const std::string& executable_hash() {
  static const std::string hash = hash_hex(read_file("/proc/self/exe"));
  return hash;
}

// Field 22 of /proc/PID/stat: tells a process from a later one with the same id. Empty where there
// is none, or one that has ended and is merely not waited for yet.
std::string process_start(int64_t pid) {
  const std::string stat = read_file(fmt::format("/proc/{}/stat", pid));
  const size_t paren = stat.rfind(')');
  if (paren == std::string::npos) return {};
  std::istringstream fields(stat.substr(paren + 1));
  std::string field;
  fields >> field;  // the third: its state
  if (field == "Z" || field == "X") return {};
  for (int i = 4; i <= 22; ++i) fields >> field;
  return field;
}

}  // namespace

bool owner_is_gone(const db::RunRow& run) {
  const json environment = json::parse(run.environment, nullptr, false);
  if (!environment.is_object()) return false;
  const int64_t pid = environment.value("pid", int64_t{0});
  if (pid <= 0) return false;
  return process_start(pid) != environment.value("pid_start", std::string("?"));
}

namespace {

json environment() { return {{"pid", getpid()}, {"pid_start", process_start(getpid())}}; }

}  // namespace

std::string hash_hex(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

std::string protocol_hash(const Hello& hello, profiler::Regime regime) {
  return hash_hex(fmt::format("{}\n{}", name(regime), hello.protocol));
}

std::string code_hash(const Chain& chain) {
  std::string joined;
  for (const Candidate& candidate : chain) {
    if (!joined.empty()) joined += '+';
    joined += muse::code_hash(*candidate.variant).value_or(executable_hash());
  }
  return joined;
}

std::string key(const Handoff& handoff) {
  if (handoff.kind != HandoffKind::kPartials) return {};
  return fmt::format("partials_{}_s{}", handoff.partial_type == PartialType::kF32 ? "f32" : "bf16",
                     handoff.split_capacity);
}

db::CandidateRow candidate_row(const Chain& chain) {
  const Span span = muse::span(chain);
  return {.key = muse::key(chain),
          .span = std::string(muse::name(span)),
          .variant = chain.size() == 1 ? chain[0].variant->name : "",
          .pipeline = span == kWholeStep};
}

db::DeviceRow device_row(const Hello& hello) {
  const DeviceClass& c = hello.device_class;
  const profiler::DeviceInstance& i = hello.device_instance;
  return {.kind = i.kind,
          .uuid = i.uuid,
          .name = i.name,
          .driver = i.driver,
          .clock_policy = i.clock_policy,
          .model = c.model,
          .isa = c.isa,
          .cc = c.cc,
          .sm_count = c.sm_count,
          .memory_bytes = c.memory_bytes,
          .l2_bytes = c.l2_bytes,
          .driver_version = c.driver_version};
}

db::BuildRow build_row() {
  const BuildInfo& info = build_info();
  return {.version = info.version,
          .revision = info.revision,
          .compiler = info.compiler,
          .flags = info.flags,
          .build_type = info.build_type,
          .toolkit = info.toolkit};
}

std::vector<db::RunRow> like_runs(const db::Store& store, const Spec& spec, const Hello& hello,
                                  const RunIdentity& identity) {
  const std::optional<db::Id> device = store.find_device(device_row(hello));
  const std::optional<db::Id> build = store.find_build(build_row());
  std::vector<db::RunRow> like;
  for (db::RunRow& run : store.runs()) {
    if (run.config_hash == spec.hash && run.command == identity.command &&
        run.seed == identity.seed && run.device_id == device && run.build_id == build) {
      like.push_back(std::move(run));
    }
  }
  return like;
}

std::vector<db::RunRow> runs_cut_short(const db::Store& store, const Spec& spec, const Hello& hello,
                                       const RunIdentity& identity) {
  std::vector<db::RunRow> like = like_runs(store, spec, hello, identity);
  const auto whole = std::find_if(like.rbegin(), like.rend(),
                                  [](const db::RunRow& run) { return run.status == "complete"; });
  like.erase(like.begin(), whole.base());
  if (!std::all_of(like.begin(), like.end(), owner_is_gone)) return {};
  return like;
}

std::optional<db::RunRow> resumable_run(const db::Store& store, const Spec& spec,
                                        const Hello& hello, const RunIdentity& identity) {
  const std::vector<db::RunRow> cut_short = runs_cut_short(store, spec, hello, identity);
  return cut_short.empty() ? std::nullopt : std::optional(cut_short.back());
}

Records::Records(db::Store& store, const Spec& spec, const Hello& hello,
                 const RunIdentity& identity)
    : store_(store), hello_(hello), timer_(identity.timer), seed_(identity.seed) {
  store_.transaction([&] {
    device_ = store_.upsert(device_row(hello));
    build_ = store_.upsert(build_row());
    const std::vector<db::RunRow> cut_short = runs_cut_short(store_, spec, hello, identity);
    for (const db::RunRow& run : cut_short) continued_.insert(run.id);
    // Where another run came between, a new one goes on: the last run is what commands look at.
    if (!cut_short.empty() && cut_short.back().id == store_.last_run()->id) {
      run_ = cut_short.back().id;
      resumed_ = true;
      store_.resume_run(run_, environment().dump());
      return;
    }
    run_ = store_.insert(db::RunRow{.device_id = device_,
                                    .build_id = build_,
                                    .config_path = spec.path,
                                    .config_text = spec.text,
                                    .config_hash = spec.hash,
                                    .command = identity.command,
                                    .timer = identity.timer,
                                    .status = "running",
                                    .base = identity.base,
                                    .seed = identity.seed,
                                    .started = utc_now(),
                                    .environment = environment().dump()});
  });
}

db::Id Records::problem_id(const Shape& shape) {
  const std::string text = muse::key(shape);
  const auto known = problems_.find(text);
  if (known != problems_.end()) return known->second;
  const Problem& p = shape.problem;
  const json fields = {{"batch", p.batch},
                       {"q_len", p.q_len},
                       {"num_q_heads", p.num_q_heads},
                       {"num_kv_heads", p.num_kv_heads},
                       {"head_dim", p.head_dim},
                       {"page_size", p.page_size},
                       {"window", p.window},
                       {"rope_theta", p.rope_theta},
                       {"kv_scale", p.kv_scale},
                       {"max_context", p.max_context},
                       {"context", shape.lengths.context},
                       {"profile", muse::name(shape.lengths.profile)},
                       {"page_order", muse::name(shape.lengths.page_order)},
                       {"seed", shape.lengths.seed},
                       {"pool_bytes", shape.lengths.pool_bytes}};
  return problems_[text] = store_.upsert(db::ProblemRow{.key = text, .fields = fields.dump()});
}

db::Id Records::candidate_id(const Chain& chain) {
  const std::string text = muse::key(chain);
  const auto known = candidates_.find(text);
  if (known != candidates_.end()) return known->second;
  return candidates_[text] = store_.upsert(candidate_row(chain));
}

db::TrialKey Records::trial_key(const Chain& chain, const RaceGroup& group) {
  return {.device_id = device_,
          .toolkit = hello_.toolkit,
          .code_hash = code_hash(chain),
          .candidate_id = candidate_id(chain),
          .handoff_in = key(group.handoff),
          .problem_id = problem_id(group.shape),
          .regime = std::string(profiler::name(group.regime)),
          .protocol_hash = protocol_hash(hello_, group.regime)};
}

db::TrialRow Records::trial(const Chain& chain, const RaceGroup& group) {
  db::TrialRow row;
  store_.transaction([&] { row = store_.trial(trial_key(chain, group), run_, false); });
  return row;
}

std::optional<db::TrialRow> Records::find(const Chain& chain, const RaceGroup& group) const {
  return find_trial(store_, hello_, chain, group);
}

void Records::leave_out(const Chain& chain, const RaceGroup& group, const std::string& reason) {
  store_.transaction([&] {
    const std::optional<db::TrialRow> known = find(chain, group);
    const std::optional<Outcome> outcome =
        known ? parse_outcome(known->state) : std::optional(Outcome::kPending);
    if (!outcome || is_final(*outcome)) return;
    db::TrialRow row = trial(chain, group);
    set(row, Outcome::kPending, reason);
  });
}

void Records::set(db::TrialRow& trial, Outcome outcome, const std::string& reason) {
  trial.state = name(outcome);
  trial.reason = reason;
  if (is_measured(outcome)) trial.strikes = 0;  // whatever ended its workers, it was not at fault
  store_.transaction(
      [&] { store_.set_trial(trial.id, trial.state, reason, trial.strikes, utc_now()); });
}

void Records::set_reused(db::Id trial) {
  store_.transaction([&] { store_.set_reused(run_, trial, true); });
}

void Records::add(const db::TrialRow& trial, const ValidationReport& report) {
  store_.transaction([&] {
    for (const GateResult& result : report.gates) {
      json metrics = json::object();
      for (const auto& [name, value] : result.metrics) {
        metrics[name] = std::isfinite(value) ? json(value) : json(nullptr);
      }
      store_.insert(
          db::ValidationRow{.trial_id = trial.id,
                            .run_id = run_,
                            .gate = std::string(name(result.gate)),
                            .passed = result.passed,
                            .data = std::string(name(result.fill)),
                            .metric = metrics.dump(),
                            .message = result.failure ? result.failure->text(result.gate) : ""});
    }
  });
}

bool Records::validated(const db::TrialRow& trial) const {
  const std::vector<db::ValidationRow> rows = store_.validations(trial.id);
  return !rows.empty() &&
         std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row.passed; });
}

bool Records::revalidated(const db::TrialRow& trial) const {
  const std::vector<db::ValidationRow> rows = store_.validations(trial.id);
  return std::any_of(rows.begin(), rows.end(), [](const auto& row) {
    return row.passed && json::parse(row.metric).contains(kOtherDataSeed);
  });
}

bool Records::judged_here(const db::TrialRow& trial) const {
  const std::vector<db::ValidationRow> rows = store_.validations(trial.id);
  return !rows.empty() && rows.back().run_id == run_;
}

void Records::quarantine(const Entrant& entrant, const std::string& reason) {
  store_.transaction([&] {
    store_.insert(db::QuarantineRow{.device_id = device_,
                                    .code_hash = code_hash(entrant.chain),
                                    .candidate = muse::key(entrant.chain),
                                    .reason = reason,
                                    .since = utc_now()});
  });
}

bool Records::quarantined(const Chain& chain) const {
  const std::string text = muse::key(chain), code = code_hash(chain);
  for (const db::QuarantineRow& row : store_.quarantines(device_)) {
    if (row.candidate == text && row.code_hash == code) return true;
  }
  return false;
}

db::Id Records::start_race(const RaceGroup& group, const std::vector<Entrant>& entrants, int base,
                           const RaceRules& rules, bool scout) {
  std::vector<db::Id> trials;
  for (const Entrant& entrant : entrants) trials.push_back(entrant.trial.id);
  db::Id id = 0;
  store_.transaction([&] {
    id = store_.insert(db::RaceRow{.run_id = run_,
                                   .problem_id = problem_id(group.shape),
                                   .span = std::string(muse::name(group.span)),
                                   .handoff_in = key(group.handoff),
                                   .regime = std::string(profiler::name(group.regime)),
                                   .timer = timer_,
                                   .rules = race_text(trials, base, rules),
                                   .seed = rules.seed,
                                   .step_ns = rules.step_ns,
                                   .status = std::string(scout ? kScoutingRace : kRunningRace)});
  });
  return id;
}

int64_t Records::next_number(db::Id race) {
  const auto [at, unknown] = next_number_.try_emplace(race, 0);
  if (unknown) at->second = static_cast<int64_t>(store_.rounds(race).size());
  return at->second++;
}

void Records::add_round(db::Id race, const std::vector<Entrant>& entrants, const RoundOrder& order,
                        const profiler::ClockReading& clock, const RoundSamples& samples) {
  db::RoundRow row{.race_id = race,
                   .number = next_number(race),
                   .final = order.final,
                   .cpu_mhz = clock.cpu_mhz,
                   .sm_mhz = clock.sm_mhz,
                   .memory_mhz = clock.memory_mhz,
                   .power_w = clock.power_w,
                   .temperature_c = clock.temperature_c,
                   .reason_bits = clock.reason_bits};
  std::map<db::Id, size_t> at;
  for (size_t i = 0; i < order.entrants.size(); ++i) {
    const Entrant& entrant = entrants[order.entrants[i]];
    row.order.push_back(entrant.trial.id);
    const auto [place, fresh] = at.try_emplace(entrant.trial.id, row.samples.size());
    if (fresh) row.samples.push_back({.trial_id = entrant.trial.id, .ns = {}});
    row.samples[place->second].ns.push_back(samples.ns[i]);
    if (entrant.base && i == 0) row.sentinel_first_ns = samples.ns[i];
    if (entrant.base && i + 1 == order.entrants.size()) row.sentinel_last_ns = samples.ns[i];
  }
  row.rejected = samples.rejected;
  row.at = utc_now();
  store_.transaction([&] { store_.insert(row); });
}

void Records::add_exclusion(db::Id race, const Entrant& entrant, const std::string& why) {
  store_.transaction([&] {
    store_.insert(db::RoundRow{.race_id = race,
                               .number = next_number(race),
                               .rejected = exclusion_text(entrant.trial.id, why),
                               .at = utc_now()});
  });
}

void Records::finish_race(db::Id race, bool scout) {
  store_.transaction(
      [&] { store_.finish_race(race, std::string(scout ? kScoutRace : kDecidingRace)); });
}

std::vector<StoredRace> Records::races(const RaceGroup& group) const {
  std::vector<StoredRace> result;
  const std::optional<db::Id> problem = store_.find_problem(muse::key(group.shape));
  if (!problem) return result;
  for (const db::RaceRow& row :
       store_.races(*problem, std::string(muse::name(group.span)), key(group.handoff),
                    std::string(profiler::name(group.regime)))) {
    if (auto stored = replay(row, store_.rounds(row.id))) result.push_back(std::move(*stored));
  }
  std::sort(result.begin(), result.end(),
            [](const StoredRace& a, const StoredRace& b) { return a.row.id > b.row.id; });
  return result;
}

db::Id Records::add(const db::SelectionRow& row) {
  db::SelectionRow mine = row;
  mine.run_id = run_;
  db::Id id = 0;
  store_.transaction([&] { id = store_.upsert(mine); });
  return id;
}

void Records::finish(const std::string& status, const std::string& cost) {
  store_.transaction([&] { store_.finish_run(run_, status, utc_now(), cost); });
}

std::string Records::cost() const { return store_.run(run_)->cost; }

void Records::add_stage_sum(const Chain& chain, const RaceGroup& group, double ns) {
  store_.transaction([&] {
    store_.upsert(db::InteractionRow{.run_id = run_,
                                     .problem_id = problem_id(group.shape),
                                     .regime = std::string(profiler::name(group.regime)),
                                     .candidate_id = candidate_id(chain),
                                     .stage_sum_ns = ns});
  });
}

}  // namespace muse::tuner
