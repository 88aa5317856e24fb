// SPDX-License-Identifier: Apache-2.0
// The SQL of every schema version.
#include "db/schema.h"

#include <fmt/format.h>

#include <array>

#include "db/store.h"

namespace muse::db {
namespace {

// Times are ns, dates ISO 8601 UTC text, NULL = unknown or none. Columns that name another table
// end in _id. A round's samples lie together in the file, so that a round is written at its end and
// read in one sweep; race_trial finds the races of a trial without touching the samples.
constexpr char kVersion1[] = R"sql(
CREATE TABLE device (
  id INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  uuid TEXT NOT NULL,
  name TEXT NOT NULL,
  driver TEXT NOT NULL,
  clock_policy TEXT NOT NULL,
  model TEXT NOT NULL,
  isa TEXT NOT NULL,
  cc INTEGER NOT NULL,
  sm_count INTEGER NOT NULL,
  memory_bytes INTEGER NOT NULL,
  l2_bytes INTEGER NOT NULL,
  driver_version INTEGER NOT NULL,
  UNIQUE (kind, uuid, name, driver, clock_policy, model, isa, cc, sm_count, l2_bytes,
          driver_version)
) STRICT;

CREATE TABLE build (
  id INTEGER PRIMARY KEY,
  version TEXT NOT NULL,
  revision TEXT NOT NULL,
  compiler TEXT NOT NULL,
  flags TEXT NOT NULL,
  build_type TEXT NOT NULL,
  toolkit TEXT NOT NULL,
  UNIQUE (version, revision, compiler, flags, build_type, toolkit)
) STRICT;

CREATE TABLE kernel (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  architecture TEXT NOT NULL,
  source_hash TEXT NOT NULL,
  cubin_hash TEXT NOT NULL,
  registers INTEGER,
  shared_bytes INTEGER,
  spill_bytes INTEGER,
  compile_ms REAL,
  log TEXT NOT NULL,
  UNIQUE (source_hash, cubin_hash, name, architecture)
) STRICT;

CREATE TABLE run (
  id INTEGER PRIMARY KEY,
  device_id INTEGER NOT NULL REFERENCES device (id),
  build_id INTEGER NOT NULL REFERENCES build (id),
  config_path TEXT NOT NULL,
  config_text TEXT NOT NULL,
  config_hash TEXT NOT NULL,
  command TEXT NOT NULL,
  timer TEXT NOT NULL,
  status TEXT NOT NULL,
  base TEXT NOT NULL,
  seed INTEGER NOT NULL,
  started TEXT NOT NULL,
  ended TEXT NOT NULL,
  environment TEXT NOT NULL
) STRICT;

CREATE TABLE problem (
  id INTEGER PRIMARY KEY,
  key TEXT NOT NULL UNIQUE,
  fields TEXT NOT NULL
) STRICT;

CREATE TABLE candidate (
  id INTEGER PRIMARY KEY,
  key TEXT NOT NULL,
  span TEXT NOT NULL,
  variant TEXT NOT NULL,
  pipeline INTEGER NOT NULL CHECK (pipeline IN (0, 1)),
  UNIQUE (key, span, variant, pipeline)
) STRICT;

CREATE TABLE trial (
  id INTEGER PRIMARY KEY,
  device_id INTEGER NOT NULL REFERENCES device (id),
  toolkit TEXT NOT NULL,
  code_hash TEXT NOT NULL,
  candidate_id INTEGER NOT NULL REFERENCES candidate (id),
  handoff_in TEXT NOT NULL,
  problem_id INTEGER NOT NULL REFERENCES problem (id),
  regime TEXT NOT NULL,
  protocol_hash TEXT NOT NULL,
  state TEXT NOT NULL,
  reason TEXT NOT NULL,
  strikes INTEGER NOT NULL,
  updated TEXT NOT NULL,
  UNIQUE (candidate_id, problem_id, device_id, regime, handoff_in, code_hash, toolkit,
          protocol_hash)
) STRICT;

CREATE TABLE run_trial (
  run_id INTEGER NOT NULL REFERENCES run (id),
  trial_id INTEGER NOT NULL REFERENCES trial (id),
  reused INTEGER NOT NULL CHECK (reused IN (0, 1)),
  PRIMARY KEY (run_id, trial_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE race (
  id INTEGER PRIMARY KEY,
  run_id INTEGER NOT NULL REFERENCES run (id),
  problem_id INTEGER NOT NULL REFERENCES problem (id),
  span TEXT NOT NULL,
  handoff_in TEXT NOT NULL,
  regime TEXT NOT NULL,
  timer TEXT NOT NULL,
  rules TEXT NOT NULL,
  seed INTEGER NOT NULL,
  step_ns REAL NOT NULL,
  status TEXT NOT NULL
) STRICT;
CREATE INDEX race_of_run ON race (run_id);
CREATE INDEX race_of_group ON race (problem_id, span);

CREATE TABLE round (
  id INTEGER PRIMARY KEY,
  race_id INTEGER NOT NULL REFERENCES race (id),
  number INTEGER NOT NULL,
  final INTEGER NOT NULL CHECK (final IN (0, 1)),
  trial_order TEXT NOT NULL,
  cpu_mhz REAL,
  sm_mhz REAL,
  memory_mhz REAL,
  power_w REAL,
  temperature_c REAL,
  reason_bits INTEGER NOT NULL,
  sentinel_first_ns REAL,
  sentinel_last_ns REAL,
  rejected TEXT NOT NULL,
  at TEXT NOT NULL
) STRICT;
CREATE INDEX round_of_race ON round (race_id);
CREATE UNIQUE INDEX round_number ON round (race_id, number) WHERE number >= 0;

CREATE TABLE race_trial (
  trial_id INTEGER NOT NULL REFERENCES trial (id),
  race_id INTEGER NOT NULL REFERENCES race (id),
  PRIMARY KEY (trial_id, race_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE sample (
  round_id INTEGER NOT NULL REFERENCES round (id),
  trial_id INTEGER NOT NULL REFERENCES trial (id),
  ns BLOB NOT NULL CHECK (length(ns) % 8 = 0),
  PRIMARY KEY (round_id, trial_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE validation (
  id INTEGER PRIMARY KEY,
  trial_id INTEGER NOT NULL REFERENCES trial (id),
  run_id INTEGER NOT NULL REFERENCES run (id),
  gate TEXT NOT NULL,
  passed INTEGER NOT NULL CHECK (passed IN (0, 1)),
  data TEXT NOT NULL,
  metric TEXT NOT NULL,
  message TEXT NOT NULL
) STRICT;
CREATE INDEX validation_of_trial ON validation (trial_id);

CREATE TABLE counter (
  id INTEGER PRIMARY KEY,
  trial_id INTEGER NOT NULL REFERENCES trial (id),
  run_id INTEGER NOT NULL REFERENCES run (id),
  name TEXT NOT NULL,
  unit TEXT NOT NULL,
  value REAL NOT NULL
) STRICT;
CREATE INDEX counter_of_trial ON counter (trial_id);

CREATE TABLE quarantine (
  id INTEGER PRIMARY KEY,
  device_id INTEGER NOT NULL REFERENCES device (id),
  code_hash TEXT NOT NULL,
  candidate TEXT NOT NULL,
  reason TEXT NOT NULL,
  since TEXT NOT NULL,
  UNIQUE (device_id, code_hash, candidate)
) STRICT;

CREATE TABLE selection (
  id INTEGER PRIMARY KEY,
  run_id INTEGER NOT NULL REFERENCES run (id),
  problem_id INTEGER NOT NULL REFERENCES problem (id),
  span TEXT NOT NULL,
  handoff_in TEXT NOT NULL,
  regime TEXT NOT NULL,
  trial_id INTEGER REFERENCES trial (id),
  base_trial_id INTEGER REFERENCES trial (id),
  median_ns REAL NOT NULL,
  low_ns REAL NOT NULL,
  high_ns REAL NOT NULL,
  base_median_ns REAL NOT NULL,
  tie_set TEXT NOT NULL,
  rule TEXT NOT NULL,
  status TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX selection_of_run ON selection (run_id, problem_id, span, handoff_in, regime);

CREATE TABLE dispatch_entry (
  id INTEGER PRIMARY KEY,
  run_id INTEGER NOT NULL REFERENCES run (id),
  selection_id INTEGER NOT NULL REFERENCES selection (id),
  header_path TEXT NOT NULL,
  header_hash TEXT NOT NULL,
  emitted TEXT NOT NULL,
  regret_pct REAL NOT NULL
) STRICT;
CREATE INDEX dispatch_entry_of_run ON dispatch_entry (run_id);
)sql";

// Which race decided; what a pipeline's stages took alone; where a run's time went. A selection of
// version 1 does not say which race it is of.
constexpr char kVersion2[] = R"sql(
ALTER TABLE selection ADD COLUMN race_id INTEGER REFERENCES race (id);

ALTER TABLE run ADD COLUMN cost TEXT NOT NULL DEFAULT '';

CREATE TABLE interaction (
  run_id INTEGER NOT NULL REFERENCES run (id),
  problem_id INTEGER NOT NULL REFERENCES problem (id),
  regime TEXT NOT NULL,
  candidate_id INTEGER NOT NULL REFERENCES candidate (id),
  stage_sum_ns REAL NOT NULL,
  PRIMARY KEY (run_id, problem_id, regime, candidate_id)
) STRICT, WITHOUT ROWID;
)sql";

constexpr std::array kMigrations{Migration{1, kVersion1}, Migration{2, kVersion2}};
static_assert(kMigrations.back().version == kSchemaVersion);

constexpr size_t kMaxFindings = 5;

}  // namespace

std::span<const Migration> migrations() { return kMigrations; }

int version(Connection& connection) { return std::stoi(connection.value("PRAGMA user_version")); }

void apply(Connection& connection, std::span<const Migration> steps) {
  connection.execute("BEGIN IMMEDIATE");
  try {
    const int from = version(connection);  // another process may have been first
    for (const Migration& step : steps) {
      if (step.version <= from) continue;
      connection.execute(step.sql);
      connection.execute(fmt::format("PRAGMA user_version={}", step.version).c_str());
    }
    connection.execute(fmt::format("PRAGMA application_id={}", kApplicationId).c_str());
    if (const std::string wrong = integrity(connection); !wrong.empty()) {
      throw Error(fmt::format("{}: cannot become schema version {}: {}; the file is unchanged",
                              connection.shown(), steps.back().version, wrong));
    }
    connection.execute("COMMIT");
  } catch (...) {
    connection.rollback();
    throw;
  }
}

std::string integrity(Connection& connection) {
  std::string findings;
  size_t count = 0;
  const auto add = [&](const std::string& finding) {
    if (count++ < kMaxFindings) findings += (findings.empty() ? "" : "; ") + finding;
  };
  try {
    Statement check = connection.prepare("PRAGMA quick_check(5)");
    while (check.step()) {
      if (const std::string finding = check.text(); finding != "ok") add(finding);
    }
    Statement orphans = connection.prepare("PRAGMA foreign_key_check");
    while (orphans.step()) {
      const std::string table = orphans.text();
      const int64_t row = orphans.integer();
      add(fmt::format("{} row {} names a missing row of {}", table, row, orphans.text()));
    }
  } catch (const SqliteError& error) {
    // The check itself could not read on: that is the finding, unless it says nothing of the file.
    const int primary = error.code & 0xFF;
    if (primary != SQLITE_CORRUPT && primary != SQLITE_NOTADB && primary != SQLITE_ERROR) throw;
    add(error.what());
  }
  return findings;
}

}  // namespace muse::db
