// SPDX-License-Identifier: Apache-2.0
// check: an emitted table measured again, here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "tuner/check_run.h"
#include "tuner/commands/check_report.h"
#include "tuner/commands/command.h"
#include "tuner/commands/emitted.h"
#include "tuner/commands/measuring.h"
#include "tuner/held_out.h"

namespace muse::tuner {
namespace {

namespace fs = std::filesystem;

constexpr int kDefaultPipelines = 8;

struct Options {
  std::string folder, shapes, budget = "60s", target = "auto", timer, cache, seed;
  std::string deadline = "2s";
  int pipelines = kDefaultPipelines;
  bool json = false, quiet = false, any_build = false;
};

[[noreturn]] void not_comparable(const std::string& what) {
  throw CommandError(ExitCode::kNotComparable, what);
}

/// auto is what the table is for.
TargetAtHand target_for(const Options& options, const DispatchTable& table) {
  const bool host = table.device.host;
  const TargetAtHand target =
      resolve_target(options.target == "auto" && host ? "host" : options.target);
  if (target.host() != host) {
    not_comparable(fmt::format("{}: the table is for {}, and --target {} is {}",
                               printable(options.folder), host ? "a CPU" : "a GPU",
                               printable(options.target), target.host() ? "the host" : "a GPU"));
  }
  return target;
}

void require_device_class(const Options& options, const DispatchTable& table,
                          const DeviceClass& device, const std::string& toolkit) {
  const dispatch::Guard guard =
      dispatch::guard(lookup_device(table.device, table.toolkit), lookup_device(device, toolkit));
  switch (guard) {
    case dispatch::Guard::kTuned:
      return;
    case dispatch::Guard::kOtherDriver:
    case dispatch::Guard::kOtherCompiler:
      say(fmt::format("the same device class, {}: the table has {} and {}, here is {} and {}",
                      name(guard), table.device.driver_version, table.toolkit,
                      device.driver_version, toolkit));
      return;
    case dispatch::Guard::kNearDevice:
    case dispatch::Guard::kForeign:
      break;
  }
  not_comparable(
      fmt::format("{}: the table is of another device class ({}) than this one ({}): a sweep here "
                  "makes one for it",
                  printable(options.folder), text(table.device), text(device)));
}

std::vector<Chain> chains_of(const Options& options, const DispatchTable& table) {
  auto chains = table_chains(table, Registry::global());
  if (!chains) {
    not_comparable(fmt::format("{}: the table names a pipeline that this binary does not have: {}",
                               printable(options.folder), chains.error()));
  }
  return *std::move(chains);
}

void warn_of_other_sources(const DispatchTable& table, const std::vector<Chain>& chains) {
  std::map<std::string, std::string> there;
  for (const VariantAbi& variant : table.variants) there[variant.name] = variant.source_hash;
  std::set<std::string> other;
  for (const Chain& chain : chains) {
    for (const Candidate& candidate : chain) {
      const std::string& variant = candidate.variant->name;
      if (there[variant] != code_hash(Chain{candidate})) other.insert(variant);
    }
  }
  if (other.empty()) return;
  say(
      fmt::format("warning: other sources or another compiler than the table was measured with: "
                  "{}; what is checked is this binary's",
                  fmt::join(other, ", ")));
}

/// What has to be compiled: every candidate of the table.
Plan compile_plan(const DispatchTable& table, const std::vector<Chain>& chains) {
  Plan plan{.shapes = {},
            .target = table.device.host ? TargetKind::kHost : TargetKind::kCuda,
            .base = chains.front(),
            .items = {}};
  for (const Chain& chain : chains) {
    for (const Candidate& candidate : chain) plan.items.push_back({.candidate = candidate});
  }
  return plan;
}

/// A folder that is gone with this.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    std::string name = (fs::temp_directory_path(error) / "muse-check-XXXXXX").string();
    if (error || ::mkdtemp(name.data()) == nullptr) {
      throw IoError("no folder for temporary files can be made: set TMPDIR to one");
    }
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::vector<Shape> unseen_shapes(const Options& options) {
  std::vector<Shape> shapes;
  if (options.shapes.empty()) return shapes;
  for (const ShapeEntry& entry : load_config(options.shapes).shapes) shapes.push_back(entry.shape);
  return shapes;
}

/// What run() has found to be there.
struct Prepared {
  const Options& options;
  const DispatchTable& table;
  const std::vector<Shape>& unseen;
  const TargetAtHand& target;
  const Toolchain& toolchain;
  TimerChoice timer;
  CheckRules rules;
  CheckOptions check;
};

std::optional<StartedWorker> start(const Prepared& prepared) {
  WorkerOptions worker = worker_options(prepared.target, prepared.toolchain);
  worker.deadline = prepared.check.deadline_floor;
  worker.stop = prepared.check.stop_signal;
  worker.on_wait = say_waiting(prepared.options.quiet);
  return start_worker(worker, prepared.timer);
}

CheckResult measure(Prepared& prepared, StartedWorker& started) {
  const DispatchTable& table = prepared.table;
  const Hello& hello = started.hello;
  const std::string timer(profiler::name(started.timer));
  prepared.check.compare_times = timer == table.timer;
  if (!prepared.check.compare_times) {
    say(fmt::format("times by {} are not compared with those recorded by {}", timer,
                    printable(table.timer)));
  }
  prepared.rules.step_ns = hello.step_ns;
  const dispatch::Guard guard = dispatch::guard(lookup_device(table.device, table.toolkit),
                                                lookup_device(hello.device_class, hello.toolkit));
  const TemporaryFolder folder;
  db::Store store = db::Store::open(folder.path() / "check.db", db::Open::kCreate);
  Records records(store, check_spec(table, prepared.rules), hello,
                  {.command = "muse-tune check",
                   .timer = timer,
                   .seed = prepared.check.seed,
                   .base = table.base});
  ProgressLine progress(!prepared.options.quiet);
  CheckResult result = check(table, guard, prepared.unseen, prepared.rules, records,
                             *started.supervisor, hello, prepared.check, progress);
  progress.clear();
  return result;
}

CheckOptions check_options(const Options& options) {
  return {.seed = parse_seed(options.seed, 1),
          .budget = parse_duration("--budget", options.budget),
          .deadline_floor = std::chrono::duration_cast<std::chrono::milliseconds>(
              parse_duration("--deadline", options.deadline)),
          .stop_signal = &catch_stops(),
          .most_pipelines = static_cast<size_t>(options.pipelines),
          .not_compiled = {}};
}

NotCompiledMap compile(const Prepared& prepared, const std::vector<Chain>& chains) {
  if (prepared.target.host()) return {};
  ProgressLine progress(!prepared.options.quiet);
  NotCompiledMap failed = prepare_kernels(compile_plan(prepared.table, chains), prepared.toolchain,
                                          {.architecture = prepared.target.device_class.isa,
                                           .stop = prepared.check.stop_signal,
                                           .progress = compile_progress(progress)});
  progress.clear();
  return failed;
}

ExitCode run(const Options& options) {
  require_release_build(options.any_build);
  CheckOptions wanted = check_options(options);
  const std::vector<Shape> unseen = unseen_shapes(options);
  const DispatchTable table = read_emitted(options.folder);
  const std::vector<Chain> chains = chains_of(options, table);
  const CheckRules rules;
  const TargetAtHand target = target_for(options, table);
  const TimerChoice timer = resolve_timer(
      check_spec(table, rules), options.timer.empty() ? table.timer : options.timer, target.name);
  const Toolchain toolchain = toolchain_for(target, options.cache);
  require_device_class(options, table, target.device_class,
                       target.host() ? table.toolkit : toolchain.toolkit);
  warn_of_other_sources(table, chains);
  Prepared prepared{options, table, unseen, target, toolchain, timer, rules, std::move(wanted)};
  prepared.check.not_compiled = compile(prepared, chains);
  std::optional<StartedWorker> started = start(prepared);
  if (!started) return exit_code(CheckResult{.stop_signal = *prepared.check.stop_signal});
  const CheckResult result = measure(prepared, *started);
  if (options.json) {
    print_json("check", check_json(table, result));
  } else {
    print_check(table, result);
  }
  say_end(result, options.budget);
  return exit_code(result);
}

}  // namespace

Command check_command() {
  return {
      "check", "Measure an emitted table again: tuned, drifted or wrong", [](CLI::App& app) {
        auto options = std::make_shared<Options>();
        app.add_option("folder", options->folder, "Folder that emit wrote")->required();
        app.add_option("--shapes", options->shapes,
                       "Config whose shapes are looked up and measured, too")
            ->type_name("FILE");
        app.add_option("--budget", options->budget, "Stop after this time, e.g. 10m")
            ->capture_default_str();
        app.add_option("--target", options->target, "auto (what the table is for), host or cuda:N")
            ->capture_default_str();
        app.add_option("--timer", options->timer,
                       "cupti, events, host or auto; default: the table's");
        app.add_option("--cache", options->cache,
                       "Folder of compiled kernels; default: muse-tune in the XDG cache folder");
        app.add_option("--pipelines", options->pipelines,
                       "At most so many pipelines race on a shape; 0: all of the table")
            ->check(CLI::Range(0, 65535))
            ->capture_default_str();
        app.add_option("--deadline", options->deadline,
                       "Least time a launch may take before it counts as hung")
            ->capture_default_str();
        app.add_option("--seed", options->seed, "Seed of sample, inputs and orders; default: 1");
        app.add_flag("--quiet", options->quiet, "No progress");
        app.add_flag("--any-build", options->any_build, "Check with a build that is no Release");
        add_json(app, options->json);
        return [options] { return run(*options); };
      }};
}

}  // namespace muse::tuner
