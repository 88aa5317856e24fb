// SPDX-License-Identifier: Apache-2.0
// sweep: the main job.
#include "tuner/sweep.h"

#include <fmt/format.h>
#include <signal.h>

#include <filesystem>

#include "tuner/build_info.h"
#include "tuner/commands/command.h"

namespace muse::tuner {
namespace {

std::atomic<int> stop_signal{0};

extern "C" void on_stop(int signal) { stop_signal = signal; }

// The first signal ends the sweep in order; a second one ends the process at once.
void catch_stops() {
  struct sigaction action {};
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

struct Options : SelectionOptions {
  std::string database = "muse-tune.db", timer, budget, deadline = "2s";
  std::string seed;
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
  return {{"run", records.run()},        {"resumed", records.resumed()},
          {"winners", winners},          {"outcomes", outcomes},
          {"measured", result.measured}, {"reused", result.reused},
          {"rounds", result.rounds},     {"out_of_budget", result.out_of_budget}};
}

void require_release_build(bool any_build) {
  if (build_info().build_type == "Release" || any_build) return;
  throw CommandError(ExitCode::kUsage,
                     fmt::format("this is a {} build: its times say nothing about production; "
                                 "build with CMAKE_BUILD_TYPE=Release, or pass --any-build",
                                 build_info().build_type));
}

// At most one word of it per 10 s: with several sweeps on one device every round may wait.
std::function<void()> say_waiting(bool quiet) {
  return [quiet, last = std::chrono::steady_clock::time_point()]() mutable {
    const auto now = std::chrono::steady_clock::now();
    if (quiet || (last.time_since_epoch().count() != 0 && now - last < std::chrono::seconds(10))) {
      return;
    }
    last = now;
    say("waiting: another process measures on this device");
  };
}

ExitCode run(const Options& options) {
  catch_stops();
  require_release_build(options.any_build);
  const Spec spec = load_config(options.config);
  SweepOptions sweep_options{.seed = parse_seed(options.seed, spec.measure.seed),
                             .budget = std::nullopt,
                             .stop_signal = &stop_signal};
  if (!options.budget.empty()) sweep_options.budget = parse_duration("--budget", options.budget);
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
  const std::optional<StartedWorker> started = start_worker(worker, timer);
  if (!started) return exit_code(SweepResult{.stop_signal = stop_signal});
  const Hello& hello = started->hello;
  // What selects trials belongs to the run's identity: another filter is another run.
  const std::string command =
      fmt::format("muse-tune sweep {} --target {} --timer {} --seed {}{}{}{}", options.config,
                  target.name, profiler::name(started->timer), sweep_options.seed,
                  options.stage.empty() ? "" : " --stage " + options.stage,
                  options.variant_glob.empty() ? "" : " --variant " + options.variant_glob,
                  options.shape_glob.empty() ? "" : " --shape " + options.shape_glob);
  Records records(store, spec, hello,
                  {.command = command,
                   .timer = std::string(profiler::name(started->timer)),
                   .seed = sweep_options.seed,
                   .base = key(plan->base)});
  say(fmt::format("{} {} of {}, {}: {} shapes, base {}", records.resumed() ? "resuming run" : "run",
                  records.run(), options.database, hello.device_class.model, plan->shapes.size(),
                  key(plan->base)));
  ProgressLine progress(!options.quiet);
  if (!target.host()) {
    sweep_options.not_compiled = prepare_kernels(*plan, toolchain, records,
                                                 {.architecture = target.device_class.isa,
                                                  .stop = &stop_signal,
                                                  .progress = compile_progress(progress)});
    require_base(*plan, sweep_options.not_compiled);
  }
  const SweepResult result =
      sweep(*plan, spec, records, *started->supervisor, hello, sweep_options, progress);
  progress.clear();
  if (options.json) {
    print_json("sweep", to_json(result, records));
  } else {
    print(winners_table(result));
  }
  say(fmt::format("{} in {}: {}; measured {}, reused {}, {} rounds",
                  records.resumed() ? "resumed" : "swept", format_seconds(progress.elapsed_s()),
                  outcome_text(result), result.measured, result.reused, result.rounds));
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
  if (code == ExitCode::kIncomplete || code == ExitCode::kGateFailed) {
    say(fmt::format("why: muse-tune status --db {} --failures", options.database));
  }
  return code;
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
        app.add_flag("--quiet", options->quiet, "No progress");
        app.add_flag("--any-build", options->any_build, "Sweep with a build that is no Release");
        add_json(app, options->json);
        return [options] { return run(*options); };
      }};
}

}  // namespace muse::tuner
