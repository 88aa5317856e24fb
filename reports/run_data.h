// SPDX-License-Identifier: Apache-2.0
// What every report says about a run, collected once: rows joined, ordered and counted.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "db/store.h"

namespace muse::reports {

/// A selection with the names behind its ids.
struct Choice {
  db::SelectionRow row;
  std::string shape, winner, base;  ///< keys; base empty where the span has none
  std::vector<std::string> ties;    ///< candidate keys, the winner's included
  std::optional<double> speedup;    ///< base median / winner median
  bool whole() const { return row.span == "prepare..gate"; }
};

/// A trial of the run. `speedup` needs a selection on the same problem, span and regime.
struct Trial {
  std::string shape, candidate, span, handoff_in, regime, state, reason;
  bool reused = false;
  bool failed = false;  ///< neither measured nor unsupported nor unfinished
  std::optional<double> median_ns, speedup;
  int64_t samples = 0;
};

/// Trials that failed with the same reason, numbers in it aside.
struct Failure {
  std::string state;
  std::string reason;                   ///< of the first one
  std::vector<std::string> candidates;  ///< each once, by key
  int64_t count = 0;
};

/// Whole pipelines against the base under one regime.
struct Speedup {
  std::string regime;
  int64_t shapes = 0;
  double geometric_mean = 0, worst = 0;
  std::string worst_shape;
};

struct Banner {
  bool bad = false;  ///< red: the figures do not say what they seem to; else a caution
  std::string text;
};

struct Counts {
  int64_t trials = 0, valid = 0, reused = 0, failed = 0, unsupported = 0, unfinished = 0;
  int64_t selections = 0, tied = 0, inconclusive = 0, degraded = 0;
};

struct RunData {
  db::RunRow run;
  db::DeviceRow device;
  db::BuildRow build;
  std::vector<std::string> shapes;  ///< keys
  std::vector<Choice> choices;      ///< by shape, regime, whole pipelines first, span, hand-off
  std::vector<Trial> trials;        ///< by shape, regime, span, hand-off, time, key
  std::vector<Failure> failures;    ///< most frequent first
  std::vector<db::RaceRow> races;
  std::vector<db::QuarantineRow> quarantines;
  std::vector<db::DispatchEntryRow> dispatch_entries;
  std::vector<Speedup> speedups;
  std::vector<Banner> banners;
  Counts counts;
  int64_t runs_in_database = 0;
};

/// Throws db::Error where the store cannot be read, std::invalid_argument where it has no such run.
RunData collect(const db::Store& store, db::Id run);

/// The trials a table or data block of at most `most` rows keeps: the fastest of every shape and
/// span first, then the second ones and so on; in the order of `trials`. All where they fit.
std::vector<const Trial*> best_trials(const RunData& data, size_t most);

/// "12.35", microseconds with four significant digits; a dash where missing.
std::string microseconds(std::optional<double> ns);
/// "1.18x" with the multiplication sign; a dash where missing.
std::string times(std::optional<double> factor);

/// A finite number for a program to read: shortest text that gives it back, with a point.
std::string digits(double value);

/// JSON text of a run: schema muse.report, version 1. At most `most` trials, the number left out
/// beside them. ASCII; a number that is none is null.
std::string run_json(const RunData& data, size_t most, bool pretty);

}  // namespace muse::reports
