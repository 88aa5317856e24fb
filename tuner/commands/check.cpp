// SPDX-License-Identifier: Apache-2.0
// check: an emitted table measured again, here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tuner/check_run.h"
#include "tuner/commands/command.h"
#include "tuner/commands/measuring.h"
#include "tuner/dispatch_file.h"
#include "tuner/held_out.h"

namespace muse::tuner {
namespace {

namespace fs = std::filesystem;

/// A table of thousands of rows has a few megabytes.
constexpr uintmax_t kMostBytes = uintmax_t{64} << 20;
constexpr int kDefaultPipelines = 8;

struct Options {
  std::string folder, shapes, budget = "60s", target = "auto", timer, cache, seed;
  std::string deadline = "2s";
  int pipelines = kDefaultPipelines;
  bool json = false, quiet = false, any_build = false;
};

[[noreturn]] void unreadable(const fs::path& file, const std::string& what) {
  throw CommandError(ExitCode::kEnvironment, fmt::format("{}: {}", printable(file.string()), what));
}

std::string read(const fs::path& file) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(file, error);
  if (error) {
    unreadable(file, fmt::format("{}; `muse-tune emit --out {}` writes it", error.message(),
                                 printable(file.parent_path().string())));
  }
  if (bytes > kMostBytes) unreadable(file, fmt::format("{} bytes are no table's", bytes));
  std::ifstream in(file, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  if (in.bad() || text.size() != bytes) unreadable(file, "cannot be read");
  return text;
}

/// The table, and that the header beside it is the one that it describes.
DispatchTable read_table(const fs::path& folder) {
  const fs::path file = folder / "muse_dispatch.json", header = folder / "muse_dispatch.h";
  auto parsed = parse_dispatch_json(read(file));
  if (!parsed) unreadable(file, parsed.error());
  if (hash_hex(read(header)) != parsed->header_hash) {
    unreadable(header, "it is not the header that muse_dispatch.json describes: emit both again");
  }
  if (!profiler::parse_regime(parsed->table.regime)) {
    unreadable(file, fmt::format("regime: '{}' is none", printable(parsed->table.regime)));
  }
  return std::move(parsed->table);
}

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

dispatch::Guard guard_here(const Options& options, const DispatchTable& table,
                           const DeviceClass& device, const std::string& toolkit) {
  const dispatch::Guard guard =
      dispatch::guard(lookup_device(table.device, table.toolkit), lookup_device(device, toolkit));
  switch (guard) {
    case dispatch::Guard::kTuned:
      return guard;
    case dispatch::Guard::kOtherDriver:
    case dispatch::Guard::kOtherCompiler:
      say(fmt::format("the same device class, {}: the table has {} and {}, here is {} and {}",
                      name(guard), table.device.driver_version, table.toolkit,
                      device.driver_version, toolkit));
      return guard;
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

const CheckedPipeline* measured(const CheckResult& result, const std::string& shape,
                                const std::string& pipeline) {
  for (const CheckedShape& here : result.shapes) {
    const CheckedPipeline* found = here.shape == shape ? here.find(pipeline) : nullptr;
    if (found != nullptr && found->measured()) return found;
  }
  return nullptr;
}

std::string best_of(const CheckResult& result, const std::string& shape) {
  for (const CheckedShape& here : result.shapes) {
    if (here.shape == shape && here.best() != nullptr) return here.best()->pipeline;
  }
  return {};
}

std::string time_text(const CheckedPipeline* pipeline) {
  return pipeline == nullptr ? "-" : format_ns(pipeline->median_ns);
}

std::string lost_text(const Finding& finding) {
  return finding.regret ? fmt::format("{:.1f} %", 100 * *finding.regret) : "-";
}

std::string rows_table(const DispatchTable& table, const CheckResult& result) {
  std::vector<std::vector<std::string>> lines{
      {"verdict", "shape", "pipeline", "then", "here", "base here", "loses", "why"}};
  for (const CheckedRow& row : result.rows) {
    const DispatchRow& entry = (row.captured ? table.captured : table.rows)[row.row];
    double then_ns = entry.median_ns;
    for (const ShapeRegret& one : entry.over) {
      if (one.shape == row.shape) then_ns = one.median_ns;
    }
    lines.push_back({std::string(name(row.finding.verdict)),
                     row.shape + (row.captured ? " (any context)" : ""), entry.pipeline,
                     format_ns(then_ns), time_text(measured(result, row.shape, entry.pipeline)),
                     time_text(measured(result, row.shape, table.base)), lost_text(row.finding),
                     row.finding.reason});
  }
  return format_table(lines);
}

std::string unseen_table(const CheckResult& result) {
  std::vector<std::vector<std::string>> lines{
      {"unseen shape", "table", "match", "distance", "answer", "here", "loses", "against"}};
  for (const CheckedUnseen& unseen : result.unseen) {
    for (const bool captured : {false, true}) {
      const CheckedAnswer& answer = captured ? unseen.captured : unseen.eager;
      const CheckedPipeline* here = measured(result, unseen.shape, answer.pick);
      lines.push_back({unseen.shape, captured ? "any context" : "by context", name(answer.match),
                       fmt::format("{:.2f}", answer.distance), answer.pick, time_text(here),
                       lost_text(answer.finding),
                       here == nullptr ? answer.finding.reason : best_of(result, unseen.shape)});
    }
  }
  return format_table(lines);
}

nlohmann::json number(const std::optional<double>& value, double factor = 1) {
  return value ? nlohmann::json(*value * factor) : nlohmann::json();
}

nlohmann::json finding_json(const CheckResult& result, const std::string& shape,
                              const std::string& pipeline, const Finding& finding) {
  nlohmann::json json{{"shape", shape},
                      {"pipeline", pipeline},
                      {"verdict", name(finding.verdict)},
                      {"reason", finding.reason},
                      {"regret_pct", number(finding.regret, 100)},
                      {"best", best_of(result, shape)},
                      {"median_ns", nullptr},
                      {"interval_ns", nullptr}};
  if (const CheckedPipeline* here = measured(result, shape, pipeline)) {
    json["median_ns"] = here->median_ns;
    json["interval_ns"] = {here->interval.low, here->interval.high};
  }
  return json;
}

nlohmann::json to_json(const DispatchTable& table, const CheckResult& result) {
  nlohmann::json entries = nlohmann::json::array(), unseen = nlohmann::json::array(),
                 pipelines = nlohmann::json::array();
  for (const CheckedRow& row : result.rows) {
    const DispatchRow& entry = (row.captured ? table.captured : table.rows)[row.row];
    nlohmann::json one = finding_json(result, row.shape, entry.pipeline, row.finding);
    one["table"] = row.captured ? "captured" : "entries";
    one["row"] = row.row;
    one["recorded_ns"] = entry.median_ns;
    entries.push_back(std::move(one));
  }
  for (const CheckedUnseen& shape : result.unseen) {
    for (const bool captured : {false, true}) {
      const CheckedAnswer& answer = captured ? shape.captured : shape.eager;
      nlohmann::json one = finding_json(result, shape.shape, answer.pick, answer.finding);
      one["table"] = captured ? "captured" : "entries";
      one["match"] = name(answer.match);
      one["distance"] = answer.distance;
      unseen.push_back(std::move(one));
    }
  }
  for (const CheckedShape& shape : result.shapes) {
    for (const CheckedPipeline& one : shape.pipelines) {
      pipelines.push_back(
          {{"shape", shape.shape},
           {"pipeline", one.pipeline},
           {"outcome", name(one.outcome)},
           {"reason", one.reason},
           {"median_ns", one.measured() ? nlohmann::json(one.median_ns) : nlohmann::json()}});
    }
  }
  const std::optional<CheckVerdict> worst = verdict(result);
  return {{"verdict", worst ? nlohmann::json(name(*worst)) : nlohmann::json()},
          {"shapes", result.shapes.size()},
          {"shapes_asked", result.shapes_asked},
          {"out_of_budget", result.out_of_budget},
          {"entries", entries},
          {"unseen", unseen},
          {"pipelines", pipelines}};
}

void say_failures(const CheckResult& result) {
  for (const CheckedShape& shape : result.shapes) {
    for (const CheckedPipeline& one : shape.pipelines) {
      if (!one.failed()) continue;
      say_error(fmt::format("{} on {}: {}: {}", one.pipeline, shape.shape, name(one.outcome),
                            one.reason));
    }
  }
}

void say_end(const Options& options, const CheckResult& result) {
  say_failures(result);
  std::map<CheckVerdict, int> counts;
  for (const CheckedRow& row : result.rows) ++counts[row.finding.verdict];
  std::string found;
  for (const auto& [verdict, count] : counts) {
    found += fmt::format("{}{} {}", found.empty() ? "" : ", ", count, name(verdict));
  }
  say(fmt::format("{} of {} shapes looked at{}: {}", result.shapes.size(), result.shapes_asked,
                  result.out_of_budget ? fmt::format(" in {}", options.budget) : "",
                  found.empty() ? "no row" : found));
  if (result.out_of_budget && result.shapes.empty()) {
    say_error(
        fmt::format("the budget of {} ended before one shape was done: give more", options.budget));
  }
  if (!result.no_worker.empty()) {
    say_error(fmt::format("no worker starts any more: {}", result.no_worker));
  } else if (result.device_lost) {
    say_error("workers cannot be ended, or die whatever they run: the device needs a look");
  }
}

std::vector<Shape> unseen_shapes(const Options& options) {
  std::vector<Shape> shapes;
  if (options.shapes.empty()) return shapes;
  for (const ShapeEntry& entry : load_config(options.shapes).shapes) shapes.push_back(entry.shape);
  return shapes;
}

ExitCode run(const Options& options) {
  const std::atomic<int>& stop_signal = catch_stops();
  require_release_build(options.any_build);
  CheckOptions check_options{
      .seed = parse_seed(options.seed, 1),
      .budget = parse_duration("--budget", options.budget),
      .deadline_floor = std::chrono::duration_cast<std::chrono::milliseconds>(
          parse_duration("--deadline", options.deadline)),
      .stop_signal = &stop_signal,
      .most_pipelines = static_cast<size_t>(options.pipelines),
      .not_compiled = {}};
  const std::vector<Shape> unseen = unseen_shapes(options);
  const DispatchTable table = read_table(options.folder);
  const std::vector<Chain> chains = chains_of(options, table);
  CheckRules rules;
  const Spec spec = check_spec(table, rules);
  const TargetAtHand target = target_for(options, table);
  const TimerChoice timer =
      resolve_timer(spec, options.timer.empty() ? table.timer : options.timer, target.name);
  const Toolchain toolchain = toolchain_for(target, options.cache);
  guard_here(options, table, target.device_class,
             target.host() ? table.toolkit : toolchain.toolkit);
  warn_of_other_sources(table, chains);

  ProgressLine compiling(!options.quiet);
  if (!target.host()) {
    check_options.not_compiled = prepare_kernels(compile_plan(table, chains), toolchain,
                                                 {.architecture = target.device_class.isa,
                                                  .stop = &stop_signal,
                                                  .progress = compile_progress(compiling)});
    compiling.clear();
  }
  WorkerOptions worker = worker_options(target, toolchain);
  worker.deadline = check_options.deadline_floor;
  worker.stop = &stop_signal;
  worker.on_wait = say_waiting(options.quiet);
  std::optional<StartedWorker> started = start_worker(worker, timer);
  if (!started) return exit_code(CheckResult{.stop_signal = stop_signal});
  const dispatch::Guard guard =
      dispatch::guard(lookup_device(table.device, table.toolkit),
                      lookup_device(started->hello.device_class, started->hello.toolkit));
  check_options.compare_times = profiler::name(started->timer) == table.timer;
  if (!check_options.compare_times) {
    say(fmt::format("times by {} are not compared with those recorded by {}",
                    profiler::name(started->timer), printable(table.timer)));
  }
  rules.step_ns = started->hello.step_ns;
  const TemporaryFolder folder;
  db::Store store = db::Store::open(folder.path() / "check.db", db::Open::kCreate);
  Records records(store, spec, started->hello,
                  {.command = "muse-tune check",
                   .timer = std::string(profiler::name(started->timer)),
                   .seed = check_options.seed,
                   .base = table.base});
  ProgressLine progress(!options.quiet);
  const CheckResult result = check(table, guard, unseen, rules, records, *started->supervisor,
                                   started->hello, check_options, progress);
  progress.clear();
  if (options.json) {
    print_json("check", to_json(table, result));
  } else {
    if (!result.rows.empty()) print(rows_table(table, result));
    if (!result.unseen.empty()) print(unseen_table(result));
  }
  say_end(options, result);
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
