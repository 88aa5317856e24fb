// SPDX-License-Identifier: Apache-2.0
// The rows of the database: text and numbers. Times are ns, dates ISO 8601 UTC. Every member has an
// initialiser, so that designated ones may leave any out without a warning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muse::db {

using Id = int64_t;

struct DeviceRow {
  Id id = 0;
  std::string kind{}, uuid{}, name{}, driver{}, clock_policy{};  // instance
  std::string model{}, isa{};                                    // class
  int64_t cc = 0, sm_count = 0, memory_bytes = 0, l2_bytes = 0, driver_version = 0;
};

struct BuildRow {
  Id id = 0;
  std::string version{}, revision{}, compiler{}, flags{}, build_type{}, toolkit{};
};

/// One kernel in a cubin.
struct KernelRow {
  Id id = 0;
  std::string name{}, architecture{}, source_hash{}, cubin_hash{};
  // Negative where unknown (NULL in the file).
  int64_t registers = -1, shared_bytes = -1, spill_bytes = -1;
  double compile_ms = -1;  ///< of the whole cubin
  std::string log{};
};

struct RunRow {
  Id id = 0;
  Id device_id = 0, build_id = 0;
  std::string config_path{}, config_text{}, config_hash{}, command{}, timer{}, status{}, base{};
  // status: running, complete, incomplete, interrupted
  uint64_t seed = 0;
  std::string started{}, ended{};  ///< ended empty while running
  std::string environment{};       ///< JSON object
  /// Where its time went, JSON object of seconds: asking_s, rounds_s, device_s, validating_s, wall_s; empty
  /// until it ends.
  std::string cost{};
};

struct ProblemRow {
  Id id = 0;
  std::string key{};     ///< canonical
  std::string fields{};  ///< JSON object of its dimensions
};

struct CandidateRow {
  Id id = 0;
  std::string key{};      ///< candidate key or chain key
  std::string span{};     ///< e.g. "attention..combine"; "prepare..gate" for a pipeline
  std::string variant{};  ///< empty for a chain of several
  bool pipeline = false;
};

/// What makes two trials the same measurement.
struct TrialKey {
  Id device_id = 0;
  std::string toolkit{};
  std::string code_hash{};  ///< of every variant in the chain
  Id candidate_id = 0;
  std::string handoff_in{};  ///< of a combine: what it is fed with; else empty
  Id problem_id = 0;
  std::string regime{};
  std::string protocol_hash{};
};

struct TrialRow {
  Id id = 0;
  TrialKey key{};
  std::string state{};  ///< pending, running, ok, unsupported, ... (DESIGN section 6)
  std::string reason{};
  int64_t strikes = 0;  ///< crashes and hangs named on it so far
  std::string updated{};
};

struct RaceRow {
  Id id = 0;
  Id run_id = 0, problem_id = 0;
  std::string span{}, handoff_in{}, regime{}, timer{}, rules{};  ///< rules: JSON
  uint64_t seed = 0;
  double step_ns = 0;
  std::string status{};  ///< running, complete, interrupted
};

struct SampleRow {
  Id trial_id = 0;
  /// Stored as little-endian doubles; several for the sentinel. NaN = this one was rejected.
  std::vector<double> ns{};
};

struct RoundRow {
  Id id = 0;
  Id race_id = 0;
  int64_t number = 0;       ///< once in a race; negative: a note, no pass over the entrants
  bool final = false;       ///< a round among the finalists: what decides
  std::vector<Id> order{};  ///< trial ids as run
  // Negative where unknown (NULL in the file).
  double cpu_mhz = -1, sm_mhz = -1, memory_mhz = -1, power_w = -1, temperature_c = -1;
  int64_t reason_bits = 0;
  double sentinel_first_ns = -1, sentinel_last_ns = -1;
  std::string rejected{};  ///< empty = good
  std::string at{};
  std::vector<SampleRow> samples{};
};

struct ValidationRow {
  Id trial_id = 0, run_id = 0;
  std::string gate{};  ///< poison, prepare, attention, gate, end_to_end
  bool passed = false;
  std::string data{};     ///< input kind
  std::string metric{};   ///< JSON object: name -> number
  std::string message{};  ///< empty if passed
};

struct SelectionRow {
  Id id = 0;
  Id run_id = 0, problem_id = 0;
  std::string span{}, handoff_in{}, regime{};
  Id trial_id = 0;       ///< the chosen one
  Id base_trial_id = 0;  ///< 0 where the span has no base
  double median_ns = 0, low_ns = 0, high_ns = 0, base_median_ns = 0;
  std::string tie_set{};  ///< JSON array of candidate keys
  std::string rule{};     ///< why it was chosen
  std::string status{};   ///< winner, tie(n), inconclusive, degraded
  Id race_id = 0;         ///< the race that decided, of whichever run; 0 where it is not known
};

/// What the stages of a pipeline took when each was measured alone, whether or not the pipeline
/// itself was. Its own median less this sum is what they do to each other.
struct InteractionRow {
  Id run_id = 0, problem_id = 0;
  std::string regime{};
  Id candidate_id = 0;
  double stage_sum_ns = 0;
};

struct DispatchEntryRow {
  Id id = 0;
  Id run_id = 0, selection_id = 0;
  std::string header_path{}, header_hash{}, emitted{};
  double regret_pct = 0;
};

struct QuarantineRow {
  Id device_id = 0;
  std::string code_hash{}, candidate{}, reason{}, since{};
};

}  // namespace muse::db
