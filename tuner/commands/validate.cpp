// SPDX-License-Identifier: Apache-2.0
// validate: the five gates without timing.
#include "tuner/validate.h"

#include <fmt/format.h>

#include "tuner/commands/command.h"

namespace muse::tuner {
namespace {

struct Options : SelectionOptions {
  std::string seed, deadline = "60s";
  bool json = false, quiet = false;
};

struct Verdict {
  std::string candidate, problem, reason;
  Outcome outcome = Outcome::kOk;
  std::vector<GateResult> gates;
};

nlohmann::json to_json(const Verdict& verdict) {
  nlohmann::json gates = nlohmann::json::array();
  for (const GateResult& g : verdict.gates) {
    gates.push_back({{"gate", name(g.gate)},
                     {"data", name(g.fill)},
                     {"passed", g.passed},
                     {"metrics", g.metrics},
                     {"failure", g.failure ? g.failure->text(g.gate) : ""}});
  }
  return {{"candidate", verdict.candidate},
          {"problem", verdict.problem},
          {"outcome", name(verdict.outcome)},
          {"reason", verdict.reason},
          {"gates", gates}};
}

Verdict judge(Supervisor& supervisor, const PlanItem& item, const Shape& shape, uint64_t seed,
              const NotCompiledMap& not_compiled) {
  Verdict verdict{.candidate = key(item.candidate), .problem = key(shape)};
  if (item.action == Action::kSkip) {
    verdict.outcome = Outcome::kUnsupported;
    verdict.reason = item.reason;
    return verdict;
  }
  if (const auto failed = not_compiled.find(verdict.candidate); failed != not_compiled.end()) {
    verdict.outcome = failed->second.outcome;
    verdict.reason = failed->second.reason;
    return verdict;
  }
  auto report =
      supervisor.validate({.shape = verdict.problem, .chain = verdict.candidate, .seed = seed});
  if (report) {
    verdict.outcome = report->outcome;
    verdict.reason = report->reason;
    verdict.gates = std::move(report->gates);
  } else {
    verdict.outcome = report.error().outcome;
    verdict.reason = report.error().reason;
  }
  return verdict;
}

ExitCode run(const Options& options) {
  Spec spec = load_config(options.config);
  for (ShapeEntry& entry : spec.shapes) entry.race = RaceAmong::kAll;  // nothing races
  const TargetAtHand target = resolve_target(options.target);
  const Known nothing_known = [](const auto&...) { return std::optional<Outcome>(); };
  const auto plan =
      make_plan(spec, Registry::global(), target.device_class, options.filter(), nothing_known);
  if (!plan) throw CommandError(ExitCode::kUsage, printable(options.config) + ": " + plan.error());
  const Toolchain toolchain = toolchain_for(target, options.cache);
  WorkerOptions worker = worker_options(target, toolchain);
  worker.deadline = std::chrono::duration_cast<std::chrono::milliseconds>(
      parse_duration("--deadline", options.deadline));
  worker.timer = profiler::name(target.host() ? profiler::Timer::kHost : profiler::Timer::kEvents);
  Supervisor supervisor(worker);
  ProgressLine progress(!options.quiet);
  NotCompiledMap not_compiled;
  if (!target.host()) {
    not_compiled = prepare_kernels(
        *plan, toolchain,
        {.architecture = target.device_class.isa, .progress = compile_progress(progress)});
  }
  std::vector<std::vector<std::string>> rows{{"outcome", "candidate", "problem", "reason"}};
  nlohmann::json verdicts = nlohmann::json::array();
  std::map<Outcome, int> counts;
  double done = 0;
  for (const PlanItem& item : plan->items) {
    if (item.regime != spec.measure.regimes.front()) continue;  // right does not depend on it
    const Verdict verdict = judge(supervisor, item, plan->shapes[item.shape].shape,
                                  parse_seed(options.seed, spec.measure.seed), not_compiled);
    progress.update(verdict.candidate, ++done / static_cast<double>(plan->items.size()));
    ++counts[verdict.outcome];
    verdicts.push_back(to_json(verdict));
    rows.push_back(
        {std::string(name(verdict.outcome)), verdict.candidate, verdict.problem, verdict.reason});
  }
  progress.clear();
  if (options.json) {
    print_json("validate", {{"trials", verdicts}});
  } else {
    print(format_table(rows));
  }
  const int valid = counts[Outcome::kOk], unsupported = counts[Outcome::kUnsupported];
  const int failed = static_cast<int>(verdicts.size()) - valid - unsupported;
  say(fmt::format("{} valid, {} failed, {} unsupported", valid, failed, unsupported));
  if (valid == 0) return ExitCode::kGateFailed;
  return failed > 0 ? ExitCode::kIncomplete : ExitCode::kOk;
}

}  // namespace

Command validate_command() {
  return {"validate", "Run the five gates without timing", [](CLI::App& app) {
            auto options = std::make_shared<Options>();
            options->add_to(app);
            app.add_option("--seed", options->seed, "Seed of the inputs; default: the config's");
            app.add_option("--deadline", options->deadline,
                           "Time a launch may take before it counts as hung")
                ->capture_default_str();
            app.add_flag("--quiet", options->quiet, "No progress");
            add_json(app, options->json);
            return [options] { return run(*options); };
          }};
}

}  // namespace muse::tuner
