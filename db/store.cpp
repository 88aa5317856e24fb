// SPDX-License-Identifier: Apache-2.0
// The writing half of the store, and its transactions.
#include "db/store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <bit>
#include <span>

#include "db/open.h"
#include "db/side_lock.h"
#include "db/store_impl.h"

namespace muse::db {
namespace {

static_assert(std::endian::native == std::endian::little,
              "samples are stored as they lie in memory");

// memory_bytes is no part of a device's identity: the memory of a virtual machine changes by
// itself.
constexpr char kInsertDevice[] = R"sql(
INSERT INTO device (kind, uuid, name, driver, clock_policy, model, isa, cc, sm_count,
  memory_bytes, l2_bytes, driver_version) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))sql";

constexpr char kInsertBuild[] = R"sql(
INSERT INTO build (version, revision, compiler, flags, build_type, toolkit)
VALUES (?, ?, ?, ?, ?, ?))sql";

constexpr char kSetKernel[] = R"sql(
INSERT INTO kernel (name, architecture, source_hash, cubin_hash, registers, shared_bytes,
  spill_bytes, compile_ms, log) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (source_hash, cubin_hash, name, architecture) DO UPDATE SET
  registers = excluded.registers, shared_bytes = excluded.shared_bytes,
  spill_bytes = excluded.spill_bytes, compile_ms = excluded.compile_ms, log = excluded.log)sql";
constexpr char kFindKernel[] = R"sql(
SELECT id FROM kernel
WHERE source_hash = ? AND cubin_hash = ? AND name = ? AND architecture = ?)sql";

constexpr char kSetProblem[] = R"sql(
INSERT INTO problem (key, fields) VALUES (?, ?)
ON CONFLICT (key) DO UPDATE SET fields = excluded.fields WHERE fields <> excluded.fields)sql";

constexpr char kInsertCandidate[] =
    "INSERT INTO candidate (key, span, variant, pipeline) VALUES (?, ?, ?, ?)";

constexpr char kInsertRun[] = R"sql(
INSERT INTO run (device_id, build_id, config_path, config_text, config_hash, command, timer, status,
  base, seed, started, ended, environment, cost)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))sql";
constexpr char kResumeRun[] =
    "UPDATE run SET status = 'running', ended = '', environment = ? WHERE id = ?";
constexpr char kFinishRun[] = "UPDATE run SET status = ?, ended = ?, cost = ? WHERE id = ?";

constexpr char kInsertTrial[] = R"sql(
INSERT INTO trial (device_id, toolkit, code_hash, candidate_id, handoff_in, problem_id, regime,
  protocol_hash, state, reason, strikes, updated)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'pending', '', 0, ''))sql";
constexpr char kLinkTrial[] = R"sql(
INSERT INTO run_trial (run_id, trial_id, reused) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET reused = excluded.reused)sql";
constexpr char kSetTrial[] =
    "UPDATE trial SET state = ?, reason = ?, strikes = ?, updated = ? WHERE id = ?";
constexpr char kSetReused[] = "UPDATE run_trial SET reused = ? WHERE run_id = ? AND trial_id = ?";

constexpr char kInsertRace[] = R"sql(
INSERT INTO race (run_id, problem_id, span, handoff_in, regime, timer, rules, seed, step_ns, status)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?))sql";
constexpr char kFinishRace[] = "UPDATE race SET status = ? WHERE id = ?";

constexpr char kInsertRound[] = R"sql(
INSERT INTO round (race_id, number, final, trial_order, cpu_mhz, sm_mhz, memory_mhz, power_w,
  temperature_c, reason_bits, sentinel_first_ns, sentinel_last_ns, rejected, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))sql";
constexpr char kInsertSample[] = "INSERT INTO sample (round_id, trial_id, ns) VALUES (?, ?, ?)";
constexpr char kInsertRaceTrial[] =
    "INSERT INTO race_trial (trial_id, race_id) VALUES (?, ?) ON CONFLICT DO NOTHING";

constexpr char kInsertValidation[] = R"sql(
INSERT INTO validation (trial_id, run_id, gate, passed, data, metric, message)
VALUES (?, ?, ?, ?, ?, ?, ?))sql";
constexpr char kSetSelection[] = R"sql(
INSERT INTO selection (run_id, problem_id, span, handoff_in, regime, trial_id, base_trial_id,
  median_ns, low_ns, high_ns, base_median_ns, tie_set, rule, status, race_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id, problem_id, span, handoff_in, regime) DO UPDATE SET
  trial_id = excluded.trial_id, base_trial_id = excluded.base_trial_id,
  median_ns = excluded.median_ns, low_ns = excluded.low_ns, high_ns = excluded.high_ns,
  base_median_ns = excluded.base_median_ns, tie_set = excluded.tie_set, rule = excluded.rule,
  status = excluded.status, race_id = excluded.race_id)sql";
constexpr char kFindSelection[] = R"sql(
SELECT id FROM selection
WHERE run_id = ? AND problem_id = ? AND span = ? AND handoff_in = ? AND regime = ?)sql";
constexpr char kSetInteraction[] = R"sql(
INSERT INTO interaction (run_id, problem_id, regime, candidate_id, stage_sum_ns)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET stage_sum_ns = excluded.stage_sum_ns)sql";
constexpr char kInsertDispatchEntry[] = R"sql(
INSERT INTO dispatch_entry (run_id, selection_id, header_path, header_hash, emitted, regret_pct)
VALUES (?, ?, ?, ?, ?, ?))sql";
constexpr char kInsertQuarantine[] = R"sql(
INSERT INTO quarantine (device_id, code_hash, candidate, reason, since) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET reason = excluded.reason, since = excluded.since)sql";

template <typename Number>
std::optional<Number> known(Number value) {
  return value < 0 ? std::nullopt : std::optional(value);
}

std::optional<Id> present(Id id) { return id == 0 ? std::nullopt : std::optional(id); }

template <typename... Values>
Id insert_row(Connection& connection, std::string_view sql, const Values&... values) {
  connection.prepare(sql).bind(values...).run();
  return connection.last_id();
}

/// Runs an update that must meet one row: the caller got the id from this store.
void update_row(Connection& connection, Statement& statement, const char* what, Id id) {
  statement.run();
  if (connection.changes() == 0) {
    throw std::logic_error(fmt::format("{}: no {} {}", connection.shown(), what, id));
  }
}

}  // namespace

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;
Store::~Store() = default;

Store Store::open(const std::filesystem::path& file, Open how) {
  Opened opened = open_checked(file, how, migrations());
  auto impl = std::make_unique<Impl>();
  impl->file = std::move(opened.file);
  impl->connection = std::move(opened.connection);
  impl->writable = how != Open::kRead;
  impl->owner = ::getpid();
  return Store(std::move(impl));
}

bool Store::can_be_written(const std::filesystem::path& file) { return db::can_be_written(file); }

Store Store::snapshot() const {
  auto impl = std::make_unique<Impl>();
  impl->file = impl_->file;
  impl->connection =
      std::make_unique<Connection>("", impl_->connection->shown(), Connection::Mode::kMemory);
  impl_->connection->copy_to(*impl->connection);
  impl->connection->execute("PRAGMA query_only=ON");
  impl->owner = ::getpid();
  return Store(std::move(impl));
}

void Store::transaction(const std::function<void()>& body) {
  Impl& self = *impl_;
  if (!self.writable) throw std::logic_error("a database opened to read is written");
  if (self.owner != ::getpid()) throw std::logic_error("a database is used across fork");
  if (self.in_transaction) {
    try {
      body();
    } catch (...) {
      self.inner_failed = true;
      throw;
    }
    return;
  }
  const SideLock lock(self.file);
  self.connection->execute("BEGIN IMMEDIATE");
  self.in_transaction = true;
  self.inner_failed = false;
  try {
    body();
    if (self.inner_failed) throw std::logic_error("the failure of an inner transaction is ignored");
    self.connection->execute("COMMIT");
    self.in_transaction = false;
  } catch (...) {
    self.in_transaction = false;
    self.connection->rollback();
    throw;
  }
}

Id Store::upsert(const DeviceRow& row) {
  return impl_->write(*this, [&](Connection& c) {
    if (const std::optional<Id> found = find_device(row)) return *found;
    return insert_row(c, kInsertDevice, row.kind, row.uuid, row.name, row.driver, row.clock_policy,
                      row.model, row.isa, row.cc, row.sm_count, row.memory_bytes, row.l2_bytes,
                      row.driver_version);
  });
}

Id Store::upsert(const BuildRow& row) {
  return impl_->write(*this, [&](Connection& c) {
    if (const std::optional<Id> found = find_build(row)) return *found;
    return insert_row(c, kInsertBuild, row.version, row.revision, row.compiler, row.flags,
                      row.build_type, row.toolkit);
  });
}

Id Store::upsert(const KernelRow& row) {
  return impl_->write(*this, [&](Connection& c) {
    c.prepare(kSetKernel)
        .bind(row.name, row.architecture, row.source_hash, row.cubin_hash, known(row.registers),
              known(row.shared_bytes), known(row.spill_bytes), known(row.compile_ms), row.log)
        .run();
    return *impl_->first(
        kFindKernel, [](Statement& found) { return found.integer(); }, row.source_hash,
        row.cubin_hash, row.name, row.architecture);
  });
}

Id Store::upsert(const ProblemRow& row) {
  return impl_->write(*this, [&](Connection& c) {
    c.prepare(kSetProblem).bind(row.key, row.fields).run();
    return *find_problem(row.key);
  });
}

Id Store::upsert(const CandidateRow& row) {
  return impl_->write(*this, [&](Connection& c) {
    if (const std::optional<Id> found = find_candidate(row)) return *found;
    return insert_row(c, kInsertCandidate, row.key, row.span, row.variant, row.pipeline);
  });
}

Id Store::insert(const RunRow& row) {
  return impl_->write(*this, [&](Connection& c) {
    return insert_row(c, kInsertRun, row.device_id, row.build_id, row.config_path, row.config_text,
                      row.config_hash, row.command, row.timer, row.status, row.base, row.seed,
                      row.started, row.ended, row.environment, row.cost);
  });
}

void Store::resume_run(Id run, const std::string& environment) {
  impl_->write(*this, [&](Connection& c) {
    update_row(c, c.prepare(kResumeRun).bind(environment, run), "run", run);
  });
}

void Store::finish_run(Id run, const std::string& status, const std::string& ended,
                       const std::string& cost) {
  impl_->write(*this, [&](Connection& c) {
    update_row(c, c.prepare(kFinishRun).bind(status, ended, cost, run), "run", run);
  });
}

TrialRow Store::trial(const TrialKey& key, Id run, bool reused) {
  return impl_->write(*this, [&](Connection& c) {
    std::optional<TrialRow> row = find_trial(key);
    if (!row) {
      const Id id =
          insert_row(c, kInsertTrial, key.device_id, key.toolkit, key.code_hash, key.candidate_id,
                     key.handoff_in, key.problem_id, key.regime, key.protocol_hash);
      row = trial(id);
    }
    c.prepare(kLinkTrial).bind(run, row->id, reused).run();
    return *row;
  });
}

void Store::set_trial(Id trial, const std::string& state, const std::string& reason,
                      int64_t strikes, const std::string& at) {
  impl_->write(*this, [&](Connection& c) {
    update_row(c, c.prepare(kSetTrial).bind(state, reason, strikes, at, trial), "trial", trial);
  });
}

void Store::set_reused(Id run, Id trial, bool reused) {
  impl_->write(*this, [&](Connection& c) {
    update_row(c, c.prepare(kSetReused).bind(reused, run, trial), "trial in this run:", trial);
  });
}

Id Store::insert(const RaceRow& row) {
  return impl_->write(*this, [&](Connection& c) {
    return insert_row(c, kInsertRace, row.run_id, row.problem_id, row.span, row.handoff_in,
                      row.regime, row.timer, row.rules, row.seed, row.step_ns, row.status);
  });
}

void Store::finish_race(Id race, const std::string& status) {
  impl_->write(*this, [&](Connection& c) {
    update_row(c, c.prepare(kFinishRace).bind(status, race), "race", race);
  });
}

Id Store::insert(const RoundRow& row) {
  return impl_->write(*this, [&](Connection& c) {
    const Id id = insert_row(
        c, kInsertRound, row.race_id, row.number, row.final,
        fmt::format("[{}]", fmt::join(row.order, ",")), known(row.cpu_mhz), known(row.sm_mhz),
        known(row.memory_mhz), known(row.power_w), known(row.temperature_c), row.reason_bits,
        known(row.sentinel_first_ns), known(row.sentinel_last_ns), row.rejected, row.at);
    for (const SampleRow& sample : row.samples) {
      c.prepare(kInsertSample).bind(id, sample.trial_id, std::as_bytes(std::span(sample.ns))).run();
      c.prepare(kInsertRaceTrial).bind(sample.trial_id, row.race_id).run();
    }
    return id;
  });
}

void Store::insert(const ValidationRow& row) {
  impl_->write(*this, [&](Connection& c) {
    insert_row(c, kInsertValidation, row.trial_id, row.run_id, row.gate, row.passed, row.data,
               row.metric, row.message);
  });
}

Id Store::upsert(const SelectionRow& row) {
  return impl_->write(*this, [&](Connection& c) {
    c.prepare(kSetSelection)
        .bind(row.run_id, row.problem_id, row.span, row.handoff_in, row.regime,
              present(row.trial_id), present(row.base_trial_id), row.median_ns, row.low_ns,
              row.high_ns, row.base_median_ns, row.tie_set, row.rule, row.status,
              present(row.race_id))
        .run();
    return *impl_->first(
        kFindSelection, [](Statement& found) { return found.integer(); }, row.run_id,
        row.problem_id, row.span, row.handoff_in, row.regime);
  });
}

void Store::upsert(const InteractionRow& row) {
  impl_->write(*this, [&](Connection& c) {
    c.prepare(kSetInteraction)
        .bind(row.run_id, row.problem_id, row.regime, row.candidate_id, row.stage_sum_ns)
        .run();
  });
}

Id Store::insert(const DispatchEntryRow& row) {
  return impl_->write(*this, [&](Connection& c) {
    return insert_row(c, kInsertDispatchEntry, row.run_id, row.selection_id, row.header_path,
                      row.header_hash, row.emitted, row.regret_pct);
  });
}

void Store::insert(const QuarantineRow& row) {
  impl_->write(*this, [&](Connection& c) {
    insert_row(c, kInsertQuarantine, row.device_id, row.code_hash, row.candidate, row.reason,
               row.since);
  });
}

}  // namespace muse::db
