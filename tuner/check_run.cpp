// SPDX-License-Identifier: Apache-2.0
// Measures the shapes of a check and judges what the table says of them.
#include "tuner/check_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "tuner/held_out.h"
#include "tuner/race_runner.h"
#include "tuner/settle.h"
#include "tuner/stored_selection.h"

namespace muse::tuner {
namespace {

/// Good rounds of a race at most: what they leave open is said to be noisy.
constexpr int kMostRounds = 256;

/// One shape to look at.
struct Work {
  Shape shape;
  bool unseen = false;
};

class Checker {
 public:
  Checker(const DispatchTable& table, dispatch::Guard guard, const CheckRules& rules,
          Records& records, Measurer& measurer, const Hello& hello, const CheckOptions& options,
          ProgressLine& progress)
      : table_(table),
        guard_(guard),
        rules_(rules),
        spec_(check_spec(table, rules)),
        records_(records),
        measurer_(measurer),
        hello_(hello),
        options_(options),
        progress_(progress),
        pipelines_(named_pipelines(table)),
        eager_(table.rows, pipelines_, true),
        captured_(table.captured, pipelines_, false),
        runner_(records, measurer, options.seed, [this] { return keep_on(); }),
        settler_(spec_, hello, options.seed, false, records, runner_,
                 [this](const RaceGroup& group) { calibrate(group); }) {}

  CheckResult run(const std::vector<Shape>& unseen);

 private:
  std::vector<Work> work(const std::vector<Shape>& unseen) const;
  bool stopped();
  bool keep_on();
  void calibrate(const RaceGroup& group);
  Chain chain(const std::string& text) const;
  std::vector<std::string> picks(const Work& work) const;
  CheckedAnswer look_up(const Shape& shape, const IndexedRows& rows, bool contexts) const;
  std::optional<CheckedShape> measure(const Work& work);
  void take_races(const RaceGroup& group, const std::map<db::Id, size_t>& at,
                  CheckedShape& shape) const;
  void note_busy_host(double load, int cpus);
  void judge_rows(const CheckedShape& here);
  void judge_unseen(const Shape& shape, const CheckedShape& here);

  const DispatchTable& table_;
  dispatch::Guard guard_;
  const CheckRules& rules_;
  Spec spec_;
  Records& records_;
  Measurer& measurer_;
  const Hello& hello_;
  const CheckOptions& options_;
  ProgressLine& progress_;
  std::vector<std::string> pipelines_;
  IndexedRows eager_, captured_;
  RaceRunner runner_;
  bool host_busy_ = false;
  Settler settler_;
  CheckResult result_;
  std::string calibrated_;  ///< shape that the deadline follows
};

bool Checker::stopped() {
  if (options_.stop_signal != nullptr && *options_.stop_signal != 0) {
    result_.stop_signal = *options_.stop_signal;
  } else if (measurer_.lost_device() || runner_.gave_up()) {
    result_.device_lost = true;
    result_.no_worker = runner_.no_worker();
  } else {
    return result_.out_of_budget;
  }
  return true;
}

bool Checker::keep_on() {
  if (stopped()) return false;
  result_.out_of_budget = options_.budget && progress_.elapsed_s() > options_.budget->count();
  return !result_.out_of_budget;
}

// As in a sweep: the deadline of a launch follows the base on the shape.
void Checker::calibrate(const RaceGroup& group) {
  const std::string shape = key(group.shape);
  if (calibrated_ == shape) return;
  calibrated_ = shape;
  measurer_.set_deadline(std::chrono::minutes(5));
  const auto ns = runner_.time_once(group, Entrant{.chain = chain(table_.base)});
  const auto fifty_times = std::chrono::milliseconds(
      ns ? static_cast<int64_t>(std::ceil(*ns * 50 / 1e6)) : int64_t{60'000});
  measurer_.set_deadline(std::max(options_.deadline_floor, fifty_times));
}

// Precondition: table_chains() had them all.
Chain Checker::chain(const std::string& text) const {
  return *Registry::global().parse_chain(text);
}

// Rows and unseen shapes by turns, each shape once.
std::vector<Work> Checker::work(const std::vector<Shape>& unseen) const {
  std::vector<Work> rows;
  std::vector<std::string> known;
  for (const size_t row : check_order(table_.rows, options_.seed)) {
    const std::string text = key(table_.rows[row].shape);
    if (std::find(known.begin(), known.end(), text) != known.end()) continue;
    known.push_back(text);
    rows.push_back({.shape = table_.rows[row].shape});
  }
  std::vector<Work> all;
  for (size_t i = 0; i < std::max(rows.size(), unseen.size()); ++i) {
    if (i < rows.size()) all.push_back(rows[i]);
    if (i < unseen.size()) all.push_back({.shape = unseen[i], .unseen = true});
  }
  return all;
}

CheckedAnswer Checker::look_up(const Shape& shape, const IndexedRows& rows, bool contexts) const {
  std::vector<char> feasible;
  for (const std::string& text : pipelines_) {
    feasible.push_back(why_not(chain(text), shape.problem, hello_.device_class).empty() ? 1 : 0);
  }
  const auto takes = [&](dispatch::Pipeline p) noexcept {
    return feasible[static_cast<size_t>(p)] != 0;
  };
  const dispatch::Choice choice = dispatch::find(rows.index().table(), table_.rules,
                                                 dispatch_key(shape, contexts), guard_, takes);
  return {.match = choice.match,
          .distance = choice.distance,
          .pick = pipelines_[static_cast<size_t>(choice.pipeline)],
          .finding = {}};
}

// What the tables answer with for the shape, and what its rows name.
std::vector<std::string> Checker::picks(const Work& work) const {
  std::vector<std::string> picks;
  const std::string text = key(work.shape);
  for (const DispatchRow& row : table_.rows) {
    if (key(row.shape) == text) picks.push_back(row.pipeline);
  }
  for (const DispatchRow& row : table_.captured) {
    for (const ShapeRegret& one : row.over) {
      if (one.shape == text) picks.push_back(row.pipeline);
    }
  }
  if (work.unseen) {
    picks.push_back(look_up(work.shape, eager_, true).pick);
    picks.push_back(look_up(work.shape, captured_, false).pick);
  }
  return picks;
}

// Races newest first: what a pipeline is judged by is the newest one that it took part in.
void Checker::take_races(const RaceGroup& group, const std::map<db::Id, size_t>& at,
                         CheckedShape& shape) const {
  bool newest = true;
  for (const StoredRace& stored : records_.races(group)) {
    if (stored.row.status != kDecidingRace) continue;
    const std::vector<Standing> standings = stored.race.standings();
    const std::vector<int> deciding = deciding_entrants(stored, stored.trials);
    for (size_t i = 0; i < standings.size(); ++i) {
      const auto found = at.find(stored.trials[i]);
      if (found == at.end() || standings[i].samples == 0) continue;
      CheckedPipeline& mine = shape.pipelines[found->second];
      if (mine.median_ns > 0) continue;
      mine.ns = stored.race.samples(static_cast<int>(i));
      mine.median_ns = standings[i].median_ns;
      mine.interval = standings[i].interval;
      mine.behind = standings[i].behind;
      mine.decides = newest && std::find(deciding.begin(), deciding.end(), static_cast<int>(i)) !=
                                   deciding.end();
    }
    if (newest) shape.degraded = stored.race.degraded();
    newest = false;
  }
}

// nullopt where it was stopped.
std::optional<CheckedShape> Checker::measure(const Work& work) {
  const size_t most = options_.most_pipelines == 0 ? pipelines_.size() : options_.most_pipelines;
  CheckedShape shape{.shape = key(work.shape), .pipelines = {}};
  const RaceGroup group{.shape = work.shape, .regime = spec_.measure.regimes.front()};
  std::vector<Chain> racing;
  Chain base;
  for (const std::string& text : check_rivals(table_, work.shape, picks(work), most)) {
    const Chain candidates = chain(text);
    CheckedPipeline one{.pipeline = text};
    one.reason = why_not(candidates, work.shape.problem, hello_.device_class);
    if (!one.reason.empty()) {
      one.outcome = Outcome::kUnsupported;
    } else if (const auto failed = std::find_if(
                   candidates.begin(), candidates.end(),
                   [&](const Candidate& c) { return options_.not_compiled.contains(key(c)); });
               failed != candidates.end()) {
      const NotCompiled& how = options_.not_compiled.at(key(*failed));
      one.outcome = how.outcome;
      one.reason = how.reason;
    } else if (text == table_.base) {
      base = candidates;
    } else {
      racing.push_back(candidates);
    }
    shape.pipelines.push_back(std::move(one));
  }
  if (!racing.empty() || !base.empty()) {
    if (!settler_.settle(group, racing, base, {})) return std::nullopt;
  }
  std::map<db::Id, size_t> at;
  for (size_t i = 0; i < shape.pipelines.size(); ++i) {
    CheckedPipeline& one = shape.pipelines[i];
    if (one.outcome != Outcome::kOk) continue;
    const std::optional<db::TrialRow> trial = records_.find(chain(one.pipeline), group);
    if (!trial) continue;
    one.outcome = *parse_outcome(trial->state);
    one.reason = trial->reason;
    at[trial->id] = i;
  }
  take_races(group, at, shape);
  return shape;
}

void Checker::judge_rows(const CheckedShape& here) {
  for (size_t i = 0; i < table_.rows.size(); ++i) {
    const DispatchRow& row = table_.rows[i];
    if (key(row.shape) != here.shape) continue;
    Recorded recorded{.pipeline = row.pipeline, .interval = {}, .allowed_pct = row.regret_pct};
    if (options_.compare_times && !host_busy_) {
      recorded.interval = {row.low_ns, row.high_ns};
      recorded.base = table_.base;
      recorded.base_median_ns = row.base_median_ns;
    }
    result_.rows.push_back({false, i, here.shape, judge(here, recorded, rules_)});
  }
  for (size_t i = 0; i < table_.captured.size(); ++i) {
    for (const ShapeRegret& one : table_.captured[i].over) {
      if (one.shape != here.shape) continue;
      const Recorded recorded{
          .pipeline = table_.captured[i].pipeline, .interval = {}, .allowed_pct = one.regret_pct};
      result_.rows.push_back({true, i, here.shape, judge(here, recorded, rules_)});
    }
  }
}

void Checker::judge_unseen(const Shape& shape, const CheckedShape& here) {
  CheckedUnseen unseen{.shape = here.shape,
                       .eager = look_up(shape, eager_, true),
                       .captured = look_up(shape, captured_, false)};
  for (CheckedAnswer* answer : {&unseen.eager, &unseen.captured}) {
    answer->finding = judge(here, {.pipeline = answer->pick, .interval = {}}, rules_);
  }
  result_.unseen.push_back(std::move(unseen));
}

// Other work slows everything here down: that says nothing of the table, while pipelines raced in
// turns still compare.
void Checker::note_busy_host(double load, int cpus) {
  if (std::exchange(host_busy_, true)) return;
  progress_.clear();
  say(
      fmt::format("the host is busy (load {:.1f} on {} CPUs): times are no longer compared with "
                  "those recorded",
                  load, cpus));
}

CheckResult Checker::run(const std::vector<Shape>& unseen) {
  const std::vector<Work> all = work(unseen);
  result_.shapes_asked = static_cast<int>(all.size());
  runner_.placements = spec_.measure.placements;
  runner_.on_busy_host = [this](double load, int cpus) { note_busy_host(load, cpus); };
  runner_.tick = [&] {
    const double left_s = options_.budget ? options_.budget->count() - progress_.elapsed_s() : 0;
    progress_.show(
        fmt::format("{} of {} shapes; {}", result_.shapes.size(), all.size(), settler_.at()),
        left_s > 0 ? std::optional(left_s) : std::nullopt);
  };
  for (const Work& one : all) {
    if (!keep_on()) break;
    const std::optional<CheckedShape> here = measure(one);
    if (!here) break;
    result_.shapes.push_back(*here);
    if (one.unseen) {
      judge_unseen(one.shape, *here);
    } else {
      judge_rows(*here);
    }
  }
  stopped();
  return result_;
}

}  // namespace

Spec check_spec(const DispatchTable& table, const CheckRules& rules) {
  Spec spec;
  spec.path = "check";
  spec.hash = hash_hex("check");
  spec.measure.regimes = {*profiler::parse_regime(table.regime)};
  spec.measure.tie_pct = rules.tie_pct;
  spec.measure.switch_margin_pct = rules.switch_margin_pct;
  spec.measure.max_rounds = kMostRounds;
  return spec;
}

tl::expected<std::vector<Chain>, std::string> table_chains(const DispatchTable& table,
                                                           const Registry& registry) {
  std::vector<Chain> chains;
  for (const std::string& text : named_pipelines(table)) {
    auto chain = registry.parse_chain(text);
    if (!chain) return tl::unexpected(chain.error());
    if (muse::span(*chain) != kWholeStep) {
      return tl::unexpected(fmt::format("'{}' does not cover the four stages", printable(text)));
    }
    chains.push_back(*std::move(chain));
  }
  return chains;
}

std::string why_not(const Chain& chain, const Problem& problem, const DeviceClass& device) {
  for (const Candidate& candidate : chain) {
    const Target& target = candidate.variant->target;
    const bool here = (target.kind == TargetKind::kHost) == device.host &&
                      (device.host || accepts(target, device.cc));
    if (!here) return fmt::format("{} is not for this device", candidate.variant->name);
    const Support support = candidate.variant->supports(problem, candidate.configuration, device);
    if (!support.ok()) return fmt::format("{}: {}", candidate.variant->name, support.reason);
  }
  return joins(problem, chain).reason;
}

CheckResult check(const DispatchTable& table, dispatch::Guard guard,
                  const std::vector<Shape>& unseen, const CheckRules& rules, Records& records,
                  Measurer& measurer, const Hello& hello, const CheckOptions& options,
                  ProgressLine& progress) {
  return Checker(table, guard, rules, records, measurer, hello, options, progress).run(unseen);
}

std::optional<CheckVerdict> verdict(const CheckResult& result) {
  std::optional<CheckVerdict> worst;
  const auto add = [&](CheckVerdict one) { worst = worst ? std::max(*worst, one) : one; };
  for (const CheckedRow& row : result.rows) add(row.finding.verdict);
  // What a near row loses is its regret, and what nobody supports is nobody's fault.
  for (const CheckedUnseen& unseen : result.unseen) {
    for (const CheckedAnswer* answer : {&unseen.eager, &unseen.captured}) {
      const bool noisy = answer->finding.verdict == CheckVerdict::kNoisy;
      add(noisy ? CheckVerdict::kNoisy : CheckVerdict::kTuned);
    }
  }
  for (const CheckedShape& shape : result.shapes) {
    for (const CheckedPipeline& one : shape.pipelines) {
      if (one.failed()) add(CheckVerdict::kWrong);
    }
  }
  return worst;
}

ExitCode exit_code(const CheckResult& result) {
  if (result.stop_signal != 0) {
    return result.stop_signal == 2 ? ExitCode::kInterrupted : ExitCode::kTerminated;
  }
  if (!result.no_worker.empty() || result.device_lost) return ExitCode::kEnvironment;
  const std::optional<CheckVerdict> worst = verdict(result);
  if (!worst) return ExitCode::kIncomplete;
  switch (*worst) {
    case CheckVerdict::kTuned:
      return ExitCode::kOk;
    case CheckVerdict::kNoisy:
      return ExitCode::kUndecidable;
    case CheckVerdict::kDrifted:
    case CheckVerdict::kWrong:
      return ExitCode::kGateFailed;
  }
  std::abort();
}

}  // namespace muse::tuner
