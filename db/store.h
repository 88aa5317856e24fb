// SPDX-License-Identifier: Apache-2.0
// The database file: opening it safely, one transaction per round, typed reads and writes.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "db/error.h"
#include "db/rows.h"

namespace muse::db {

inline constexpr int kApplicationId = 0x4D555345;  // "MUSE"
inline constexpr int kSchemaVersion = 2;

enum class Open { kRead, kWrite, kCreate };

/// One open database file. Not thread-safe; not to be used in a forked child. Every function throws
/// Error where the file or the system fails.
class Store {
 public:
  /// kRead never writes (no journal, no lock file), with one exception: where a killed writer left
  /// a transaction half done, it is rolled back (an Error where file or folder are read-only).
  /// kWrite and kCreate hold the side lock FILE.lock only during a transaction. kCreate makes the
  /// file where it is missing; it appears whole or not at all. An older schema is migrated, with a
  /// backup beside the file (kRead: in memory). Throws Error.
  static Store open(const std::filesystem::path& file, Open how);
  /// Whether file, folder and lock file let this process write; false for a missing one.
  static bool can_be_written(const std::filesystem::path& file);
  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;
  ~Store();

  /// BEGIN IMMEDIATE under the side lock, body, COMMIT; rolled back and rethrown on an exception. A
  /// transaction inside another joins it: if the inner one fails, so does the outer one. Every
  /// write below is a transaction of its own where none is open. std::logic_error on a store opened
  /// to read.
  void transaction(const std::function<void()>& body);

  // Upserts by natural key give the id. The key is the whole row, save a device's
  // memory (that of a virtual machine changes by itself) and a problem's fields (the newest stand).
  Id upsert(const DeviceRow& row);
  Id upsert(const BuildRow& row);
  /// Its key: hashes, name and architecture; the newest numbers and log stand.
  Id upsert(const KernelRow& row);
  Id upsert(const ProblemRow& row);
  Id upsert(const CandidateRow& row);
  Id insert(const RunRow& row);
  /// `cost`: see RunRow.
  void finish_run(Id run, const std::string& status, const std::string& ended,
                  const std::string& cost = "");
  /// The run goes on in this process: status running, no end, a new environment.
  void resume_run(Id run, const std::string& environment);
  /// Finds or makes the trial of this key (state pending) and links it to the run.
  TrialRow trial(const TrialKey& key, Id run, bool reused);
  void set_trial(Id trial, const std::string& state, const std::string& reason, int64_t strikes,
                 const std::string& at);
  /// Marks the link run -> trial as reused (nothing measured in this run).
  void set_reused(Id run, Id trial, bool reused);
  Id insert(const RaceRow& row);
  void finish_race(Id race, const std::string& status);
  Id insert(const RoundRow& row);  ///< with its samples
  void insert(const ValidationRow& row);
  /// One per run, problem, span, hand-off and regime: the later one stands.
  Id upsert(const SelectionRow& row);
  /// One per run, problem, regime and candidate: the later one stands.
  void upsert(const InteractionRow& row);
  Id insert(const DispatchEntryRow& row);
  void insert(const QuarantineRow& row);

  // Reads, each ordered by key or id.
  std::vector<RunRow> runs() const;
  std::optional<RunRow> run(Id id) const;
  std::optional<RunRow> last_run() const;
  DeviceRow device(Id id) const;
  std::vector<DeviceRow> devices() const;
  BuildRow build(Id id) const;
  /// Ordered by name, architecture, id.
  std::vector<KernelRow> kernels() const;
  ProblemRow problem(Id id) const;
  CandidateRow candidate(Id id) const;
  /// By natural key (memory_bytes of a device is no part of it).
  std::optional<Id> find_device(const DeviceRow& row) const;
  std::optional<Id> find_build(const BuildRow& row) const;
  std::optional<Id> find_problem(const std::string& key) const;
  std::optional<Id> find_candidate(const CandidateRow& row) const;
  std::optional<TrialRow> find_trial(const TrialKey& key) const;
  /// All trials of a candidate on a problem, whatever else their keys say, newest first.
  std::vector<TrialRow> trials(Id candidate, Id problem) const;
  TrialRow trial(Id id) const;
  struct RunTrial {
    TrialRow trial;
    CandidateRow candidate;
    ProblemRow problem;
    bool reused = false;
    /// Over the good rounds of the trial's last complete race, of whichever run; NaN samples left
    /// out. Only where the trial is ok or degraded.
    std::optional<double> median_ns;
    int64_t sample_count = 0;  ///< what the median was taken of
  };
  /// Ordered by problem key, regime, span, candidate key, hand-off, id.
  std::vector<RunTrial> run_trials(Id run) const;
  std::vector<RaceRow> races(Id run) const;
  /// Races of every run over one span of a problem, fed with one hand-off in one regime, by id.
  std::vector<RaceRow> races(Id problem, const std::string& span, const std::string& handoff_in,
                             const std::string& regime) const;
  /// Rounds of a race with samples (by trial id), in the order in which they were written; rejected
  /// ones included.
  std::vector<RoundRow> rounds(Id race) const;
  /// The last complete race that raced this trial; nullopt if none.
  std::optional<Id> last_race(Id trial) const;
  std::optional<RaceRow> race(Id id) const;
  std::vector<ValidationRow> validations(Id trial) const;
  std::vector<SelectionRow> selections(Id run) const;
  std::vector<InteractionRow> interactions(Id run) const;
  std::vector<DispatchEntryRow> dispatch_entries(Id run) const;
  std::vector<QuarantineRow> quarantines(Id device) const;

  /// A copy in memory, consistent in itself and open to read only: for long readers beside writers.
  Store snapshot() const;
  /// quick_check and foreign_key_check; empty if sound, else what is wrong.
  std::string integrity() const;
  /// The tables and their rows as text cells for export; blobs as hex. Ordered by the
  /// first two columns (ids).
  struct Table {
    std::string name;
    std::vector<std::string> columns;
    std::vector<std::vector<std::optional<std::string>>> rows;
  };
  std::vector<std::string> table_names() const;
  Table table(const std::string& name) const;

 private:
  struct Impl;
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace muse::db
