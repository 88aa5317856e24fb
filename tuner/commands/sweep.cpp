// SPDX-License-Identifier: Apache-2.0
// sweep: the main job.
#include "tuner/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "tuner/agreement.h"
#include "tuner/commands/command.h"
#include "tuner/commands/incumbents.h"
#include "tuner/commands/measuring.h"

namespace muse::tuner {
namespace {

struct Options : SelectionOptions {
  std::string database = "muse-tune.db", timer, deadline = "2s";
  std::optional<std::string> budget;
  std::string seed;
  std::vector<std::string> incumbents;  ///< folders that emit has written
  int repeat = 0;                       ///< 0: measure what the database does not know
  bool json = false, quiet = false, any_build = false;
};

std::string speed_up(const Winner& winner) {
  const Selection& s = winner.selection;
  return s.base_median_ns > 0 && s.median_ns > 0
             ? fmt::format("{:.2f}", s.base_median_ns / s.median_ns)
             : "-";
}

std::string winners_table(const SweepResult& result) {
  std::vector<std::vector<std::string>> rows{
      {"problem", "span", "winner", "time", "+-", "base/time", "status"}};
  for (const Winner& winner : result.winners) {
    const Selection& s = winner.selection;
    const std::string span =
        winner.handoff.empty() ? winner.span : winner.span + " of " + winner.handoff;
    if (winner.chain.empty()) {
      rows.push_back({winner.shape, span, "nothing valid", "-", "-", "-", "-"});
      continue;
    }
    rows.push_back({winner.shape, span, winner.chain, format_ns(s.median_ns),
                    fmt::format("{:.1f} %", 100 * s.interval.half_width() / s.median_ns),
                    speed_up(winner), s.status});
  }
  return format_table(rows);
}

std::string outcome_text(const SweepResult& result) {
  std::string text;
  for (const auto& [outcome, count] : result.outcomes) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name(outcome));
  }
  return text.empty() ? "no trial" : text;
}

// One line a span: how much of its candidates was seen over all shapes.
void say_searched(const SweepResult& result) {
  std::map<std::string, SearchedShare> by_span;
  for (const SearchedShare& one : result.searched) {
    SearchedShare& sum = by_span[one.span];
    sum.kind = one.kind;
    sum.seen += one.seen;
    sum.of += one.of;
  }
  for (const auto& [span, sum] : by_span) {
    if (sum.of == 0) continue;
    say(fmt::format("{}: {} ({:.0f} %)", span, text(sum), 100.0 * sum.seen / sum.of));
  }
}

nlohmann::json to_json(const SweepResult& result, const Records& records) {
  nlohmann::json winners = nlohmann::json::array(), outcomes = nlohmann::json::object();
  for (const Winner& winner : result.winners) {
    const Selection& s = winner.selection;
    winners.push_back({{"problem", winner.shape},
                       {"span", winner.span},
                       {"handoff", winner.handoff},
                       {"regime", winner.regime},
                       {"winner", winner.chain},
                       {"base", winner.base_chain},
                       {"median_ns", s.median_ns},
                       {"low_ns", s.interval.low},
                       {"high_ns", s.interval.high},
                       {"base_median_ns", s.base_median_ns},
                       {"tie_set_size", s.tie_set.size()},
                       {"rule", s.rule},
                       {"status", s.status}});
  }
  for (const auto& [outcome, count] : result.outcomes) outcomes[std::string(name(outcome))] = count;
  nlohmann::json searched = nlohmann::json::array();
  for (const SearchedShare& one : result.searched) {
    searched.push_back({{"problem", one.shape},
                        {"span", one.span},
                        {"handoff", one.handoff},
                        {"regime", one.regime},
                        {"kind", name(one.kind)},
                        {"seen", one.seen},
                        {"of", one.of}});
  }
  return {{"run", records.run()},
          {"resumed", records.resumed()},
          {"winners", winners},
          {"outcomes", outcomes},
          {"searched", searched},
          {"measured", result.measured},
          {"reused", result.reused},
          {"rounds", result.rounds},
          {"out_of_budget", result.out_of_budget},
          {"cost",
           {{"asking_s", result.cost.asking_s},
            {"rounds_s", result.cost.rounds_s},
            {"device_s", result.cost.device_s},
            {"validating_s", result.cost.validating_s},
            {"wall_s", result.cost.wall_s}}}};
}

nlohmann::json to_json(const Agreement& a) {
  nlohmann::json picks = nlohmann::json::array();
  for (const AgreedPick& pick : a.picks) {
    picks.push_back({{"problem", pick.problem},
                     {"span", pick.span},
                     {"handoff", pick.handoff},
                     {"regime", pick.regime},
                     {"first", pick.first},
                     {"second", pick.second},
                     {"agrees", pick.agrees()},
                     {"regret_pct", pick.regret_pct ? nlohmann::json(*pick.regret_pct)
                                                    : nlohmann::json(nullptr)}});
  }
  return {{"picks", picks},
          {"agreeing_share", a.agreeing_share()},
          {"narrow_ties_share", a.narrow_ties_share()},
          {"inconclusive_share", a.inconclusive_share()},
          {"mean_regret_pct", a.mean_regret_pct()},
          {"worst_regret_pct", a.worst_regret_pct()},
          {"only_in_one", a.only_in_one}};
}

/// A sweep with everything that its repetitions share.
struct Prepared {
  const Options& options;
  const Spec& spec;
  const Plan& plan;
  const TargetAtHand& target;
  const Toolchain& toolchain;
  StartedWorker& started;
  db::Store& store;
  SweepOptions sweep;
  ProgressLine& progress;

  // What selects trials belongs to the run's identity: another filter is another run.
  std::string command(int repetition) const {
    return fmt::format(
        "muse-tune sweep {} --target {} --timer {} --seed {}{}{}{}{}{}", options.config,
        target.name, profiler::name(started.timer), sweep.seed,
        options.incumbents.empty()
            ? ""
            : fmt::format(" --incumbent {}", fmt::join(options.incumbents, " --incumbent ")),
        options.stage.empty() ? "" : " --stage " + options.stage,
        options.variant_glob.empty() ? "" : " --variant " + options.variant_glob,
        options.shape_glob.empty() ? "" : " --shape " + options.shape_glob,
        options.repeat == 0 ? "" : fmt::format(" --repeat {}/{}", repetition, options.repeat));
  }

  RunIdentity identity(int repetition) const {
    return {.command = command(repetition),
            .timer = std::string(profiler::name(started.timer)),
            .seed = sweep.seed,
            .base = key(plan.base)};
  }
};

struct Swept {
  db::Id run;
  SweepResult result;
  nlohmann::json json;
};

Swept sweep_once(Prepared& prepared, int repetition) {
  const Plan& plan = prepared.plan;
  const Hello& hello = prepared.started.hello;
  Records records(prepared.store, prepared.spec, hello, prepared.identity(repetition));
  say(fmt::format("{} {} of {}, {}: {} shapes, base {}", records.resumed() ? "resuming run" : "run",
                  records.run(), prepared.options.database, hello.device_class.model,
                  plan.shapes.size(), key(plan.base)));
  if (!prepared.target.host()) {
    prepared.sweep.not_compiled =
        prepare_kernels(plan, prepared.toolchain, records,
                        {.architecture = prepared.target.device_class.isa,
                         .stop = prepared.sweep.stop_signal,
                         .progress = compile_progress(prepared.progress)});
    require_base(plan, prepared.sweep.not_compiled);
  }
  SweepOptions options = prepared.sweep;
  options.fresh = prepared.options.repeat > 0;
  options.repetition = repetition;
  const double began_s = prepared.progress.elapsed_s();
  const Supervisor& supervisor = *prepared.started.supervisor;
  const int respawns_before = supervisor.respawns();
  Swept swept{.run = records.run(),
              .result = sweep(plan, prepared.spec, records, *prepared.started.supervisor, hello,
                              options, prepared.progress),
              .json = {}};
  prepared.progress.clear();
  const SweepResult& result = swept.result;
  const int replaced = supervisor.respawns() - respawns_before;
  swept.json = to_json(result, records);
  swept.json["workers_replaced"] = replaced;
  if (!prepared.options.json) print(winners_table(result));
  say(fmt::format(
      "{} in {}: {}; measured {}, reused {}, {} rounds{}", records.resumed() ? "resumed" : "swept",
      format_seconds(prepared.progress.elapsed_s() - began_s), outcome_text(result),
      result.measured, result.reused, result.rounds,
      replaced == 0 ? ""
                    : fmt::format(", {} worker{} replaced", replaced, replaced == 1 ? "" : "s")));
  if (result.rounds > 0) {
    const MeasuringCost& cost = result.cost;
    const double overhead = cost.device_s > 0 ? cost.rounds_s / cost.device_s - 1 : 0;
    say(fmt::format(
        "measuring took {:.1f} s: rounds {:.1f} s, of that the device {:.1f} s (host "
        "overhead {:.0f} % of it), else setting up and waiting; validating {:.1f} s",
        cost.asking_s, cost.rounds_s, cost.device_s, 100 * overhead, cost.validating_s));
  }
  say_searched(result);
  return swept;
}

/// The repetition to start with: that which the last run was stopped in, else the first.
int first_repetition(const Prepared& prepared) {
  for (int i = 1; i <= prepared.options.repeat; ++i) {
    if (resumable_run(prepared.store, prepared.spec, prepared.started.hello, prepared.identity(i)))
      return i;
  }
  return 1;
}

/// The first repetition's run that the later ones are compared with: this process's own, or the one
/// that it goes on from.
std::optional<db::Id> first_run(const Prepared& prepared, const std::vector<Swept>& all,
                                int first) {
  if (first == 1) return all.front().run;
  const std::vector<db::RunRow> runs =
      like_runs(prepared.store, prepared.spec, prepared.started.hello, prepared.identity(1));
  const auto whole = std::find_if(runs.rbegin(), runs.rend(),
                                  [](const db::RunRow& run) { return run.status == "complete"; });
  return whole == runs.rend() ? std::nullopt : std::optional(whole->id);
}

/// How far the last run agrees with the first one, where both are whole.
void compare(const Prepared& prepared, std::vector<Swept>& all, int first) {
  Swept& last = all.back();
  const std::optional<db::Id> before = first_run(prepared, all, first);
  if (!before || *before == last.run) return;
  const Agreement agreed = agreement(prepared.store, *before, last.run);
  say(fmt::format("runs {} and {}: {}", *before, last.run, text(agreed)));
  last.json["agreement"] = to_json(agreed);
}

void say_why_it_ended(const Options& options, const SweepResult& result) {
  if (result.stop_signal != 0) say("stopped; the same command goes on from here");
  if (result.out_of_budget) say("the budget ended; the same command goes on from here");
  if (!result.no_worker.empty()) {
    say_error(
        fmt::format("no worker starts any more: {}; nothing is lost, the same command goes on",
                    result.no_worker));
  } else if (result.device_lost) {
    say_error("workers cannot be ended, or die whatever they run: the device needs a look");
  }
  const ExitCode code = exit_code(result);
  const bool failures =
      std::any_of(result.outcomes.begin(), result.outcomes.end(), [](const auto& one) {
        return one.second > 0 && is_final(one.first) && !is_measured(one.first) &&
               one.first != Outcome::kUnsupported;
      });
  if (failures && (code == ExitCode::kIncomplete || code == ExitCode::kGateFailed)) {
    say(fmt::format("why: muse-tune status --db {} --failures", options.database));
  }
}

ExitCode run(const Options& options) {
  const std::atomic<int>& stop_signal = catch_stops();
  require_release_build(options.any_build);
  const Spec spec = load_config(options.config);
  std::vector<DispatchTable> tables = read_incumbents(options.incumbents);
  SweepOptions sweep_options{.seed = parse_seed(options.seed, spec.measure.seed),
                             .budget = std::nullopt,
                             .stop_signal = &stop_signal};
  if (options.budget) sweep_options.budget = parse_duration("--budget", *options.budget);
  sweep_options.deadline_floor = std::chrono::duration_cast<std::chrono::milliseconds>(
      parse_duration("--deadline", options.deadline));
  // Usage first: finding a GPU takes a worker.
  if (options.target != "auto") resolve_timer(spec, options.timer, options.target);
  const TargetAtHand target = resolve_target(options.target);
  const TimerChoice timer = resolve_timer(spec, options.timer, target.name);
  const Known nothing_known = [](const auto&...) { return std::optional<Outcome>(); };
  const auto plan =
      make_plan(spec, Registry::global(), target.device_class, options.filter(), nothing_known);
  if (!plan) throw CommandError(ExitCode::kUsage, printable(options.config) + ": " + plan.error());

  db::Store store = db::Store::open(options.database, db::Open::kCreate);
  const Toolchain toolchain = toolchain_for(target, options.cache);
  WorkerOptions worker = worker_options(target, toolchain);
  worker.deadline = sweep_options.deadline_floor;
  worker.stop = &stop_signal;
  worker.on_wait = say_waiting(options.quiet);
  std::optional<ProgressLine> line;  // of the sweep, which begins once there is a worker
  worker.on_silence = [&line](std::chrono::milliseconds silent) {
    if (line) line->show(fmt::format("worker silent for {} s", silent.count() / 1000), {});
  };
  worker.on_replaced = [&line, quiet = options.quiet](const std::string& loss) {
    if (line) line->clear();
    if (!quiet) say(loss + "; a new one goes on");
  };
  std::optional<StartedWorker> started = start_worker(worker, timer);
  if (!started) return exit_code(SweepResult{.stop_signal = stop_signal});
  ProgressLine& progress = line.emplace(!options.quiet);
  sweep_options.incumbents = incumbents(options.incumbents, std::move(tables), started->hello);
  say_left_out(options.incumbents, sweep_options.incumbents, *plan, spec,
               !options.stage.empty() || !options.variant_glob.empty());
  Prepared prepared{options,  spec,  *plan,         target,  toolchain,
                    *started, store, sweep_options, progress};
  const int first = first_repetition(prepared);
  std::vector<Swept> all;
  for (int i = first; i == first || i <= options.repeat; ++i) {
    all.push_back(sweep_once(prepared, i));
    const SweepResult& result = all.back().result;
    if (result.stop_signal != 0 || result.out_of_budget || result.device_lost) break;
    compare(prepared, all, first);
  }
  if (options.json) print_json("sweep", all.back().json);
  say_why_it_ended(options, all.back().result);
  return exit_code(all.back().result);
}

}  // namespace

Command sweep_command() {
  return {
      "sweep", "Validate, race, store and select", [](CLI::App& app) {
        auto options = std::make_shared<Options>();
        options->add_to(app);
        add_database(app, options->database);
        app.add_option("--timer", options->timer, "cupti, events, host or auto");
        app.add_option("--budget", options->budget, "Stop after this time, e.g. 10m");
        app.add_option("--deadline", options->deadline,
                       "Least time a launch may take before it counts as hung; 50 times the base "
                       "where that is more")
            ->capture_default_str();
        app.add_option("--seed", options->seed, "Seed of inputs and orders; default: the config's");
        app.add_option("--repeat", options->repeat,
                       "Time all of it anew, that many times, and say how far the runs agree")
            ->check(CLI::Range(1, 100));
        app.add_option("--incumbent", options->incumbents,
                       "Folder that emit has written: what its tables answer races, too")
            ->type_name("DIR")
            ->allow_extra_args(false);
        app.add_flag("--quiet", options->quiet, "No progress");
        app.add_flag("--any-build", options->any_build, "Sweep with a build that is no Release");
        add_json(app, options->json);
        return [options] { return run(*options); };
      }};
}

}  // namespace muse::tuner
