// SPDX-License-Identifier: Apache-2.0
// The sweep: validate, race and select every span of every shape, then whole pipelines.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tuner/challengers.h"
#include "tuner/console.h"
#include "tuner/kernels.h"
#include "tuner/measurer.h"
#include "tuner/plan.h"
#include "tuner/records.h"
#include "tuner/scout.h"
#include "tuner/settle.h"

namespace muse::tuner {

struct SweepResult {
  std::vector<Winner> winners;      ///< in the order decided
  std::map<Outcome, int> outcomes;  ///< of every trial of the run
  int measured = 0;                 ///< trials timed in this run
  int reused = 0;                   ///< trials taken from the database
  int rounds = 0;
  MeasuringCost cost;                   ///< of this run since it was started or resumed
  std::vector<SearchedShare> searched;  ///< of groups that a search chose from, in the order done
  bool out_of_budget = false;
  int stop_signal = 0;  ///< SIGINT, SIGTERM or 0
  bool device_lost = false;
  std::string no_worker;  ///< not empty: why none starts any more
};

struct SweepOptions {
  uint64_t seed = 1;
  std::optional<std::chrono::duration<double>> budget;
  std::chrono::milliseconds deadline_floor{2000};
  const std::atomic<int>* stop_signal = nullptr;  ///< set by the signal handler
  int repetition = 1;                             ///< each orders its rounds in its own way
  bool fresh = false;                             ///< times all of it anew, whatever is stored
  NotCompiledMap not_compiled;                    ///< candidates that have no kernels
  /// What these answer for a shape races there, whatever its spans bring up.
  std::vector<Incumbent> incumbents;
};

/// Runs the plan with one worker and stores everything. A stop or an empty budget ends it between
/// two rounds.
SweepResult sweep(const Plan& plan, const Spec& spec, Records& records, Measurer& measurer,
                  const Hello& hello, const SweepOptions& options, ProgressLine& progress);

/// The exit code of DESIGN section 5 for a sweep that ended so.
ExitCode exit_code(const SweepResult& result);

}  // namespace muse::tuner
