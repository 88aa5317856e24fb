// SPDX-License-Identifier: Apache-2.0
// A check of an emitted table on the device at hand: its pipelines validated and raced by what a
// sweep does it with, shape by shape within a budget.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tuner/check.h"
#include "tuner/console.h"
#include "tuner/kernels.h"
#include "tuner/measurer.h"
#include "tuner/records.h"

namespace muse::tuner {

struct CheckOptions {
  uint64_t seed = 1;
  std::optional<std::chrono::duration<double>> budget;
  std::chrono::milliseconds deadline_floor{2000};
  const std::atomic<int>* stop_signal = nullptr;
  size_t most_pipelines = 8;    ///< on a shape; 0 = all of the table
  bool compare_times = true;    ///< with what is recorded: the timer is the same
  NotCompiledMap not_compiled;  ///< candidates that have no kernels
};

/// A row of the table (or, captured, of the table for every context) on a shape of its own.
struct CheckedRow {
  bool captured = false;
  size_t row = 0;  ///< in the table's rows
  std::string shape;
  Finding finding;
};

/// What one of the tables answers for a shape that made no row.
struct CheckedAnswer {
  dispatch::Match match = dispatch::Match::kBase;
  double distance = 0;
  std::string pick;  ///< chain key
  Finding finding;
};
struct CheckedUnseen {
  std::string shape;
  CheckedAnswer eager, captured;
};

struct CheckResult {
  std::vector<CheckedShape> shapes;  ///< in the order measured
  std::vector<CheckedRow> rows;
  std::vector<CheckedUnseen> unseen;
  int shapes_asked = 0;  ///< that there were to look at
  bool out_of_budget = false;
  int stop_signal = 0;
  bool device_lost = false;
  std::string no_worker;  ///< not empty: why none starts any more
};

/// How a shape is measured in a check: the stopping rules of a sweep, in one regime.
Spec check_spec(const DispatchTable& table, const CheckRules& rules);

/// The chains of what the table names, in its order; the error names the first that this binary
/// does not have.
tl::expected<std::vector<Chain>, std::string> table_chains(const DispatchTable& table,
                                                           const Registry& registry);

/// Why the chain cannot run such a problem on the device; empty = it can.
std::string why_not(const Chain& chain, const Problem& problem, const DeviceClass& device);

/// Looks at rows and `unseen` shapes by turns, in check_order() and the given one, until all are
/// done, the budget ends or it is stopped. `records` is a database of its own. What was under way
/// then is left out.
CheckResult check(const DispatchTable& table, dispatch::Guard guard,
                  const std::vector<Shape>& unseen, const CheckRules& rules, Records& records,
                  Measurer& measurer, const Hello& hello, const CheckOptions& options,
                  ProgressLine& progress);

/// The worst of the verdicts, failures of any pipeline of the table among them; nullopt where
/// nothing was looked at.
std::optional<CheckVerdict> verdict(const CheckResult& result);

/// kOk, kGateFailed (drifted, wrong), kUndecidable (noisy), kIncomplete (nothing was looked at),
/// kEnvironment, or how it was stopped.
ExitCode exit_code(const CheckResult& result);

}  // namespace muse::tuner
