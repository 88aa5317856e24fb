// SPDX-License-Identifier: Apache-2.0
// A sub-command: its options and what it does. One file each; table.cpp lists them.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "db/store.h"
#include "tuner/console.h"
#include "tuner/kernels.h"
#include "tuner/outcome.h"
#include "tuner/plan.h"
#include "tuner/protocol.h"
#include "tuner/spec.h"
#include "tuner/supervisor.h"

namespace muse::tuner {

/// Ends the command with this exit code; every line of what() goes to stderr as an error.
class CommandError : public std::runtime_error {
 public:
  CommandError(ExitCode code, const std::string& what) : std::runtime_error(what), code(code) {}
  ExitCode code;
};

struct Command {
  std::string name;
  std::string summary;
  /// Adds the command's options to its parser and gives what to run after parsing.
  std::function<std::function<ExitCode()>(CLI::App&)> setup;
  bool hidden = false;
};

/// Every command, in the order of a user's day.
const std::vector<Command>& commands();

// --- what commands share
// ---------------------------------------------------------------------------

/// CONFIG and the filters of plan, sweep, validate.
struct SelectionOptions {
  std::string config;
  std::string target = "auto";
  std::string stage, variant_glob, shape_glob, cache;
  void add_to(CLI::App& app);
  Filter filter() const;  ///< throws CommandError(kUsage) on an unknown stage
};

/// Loads and checks the config; throws CommandError(kUsage) with every diagnostic.
Spec load_config(const std::string& file);

/// What --target means here.
struct TargetAtHand {
  std::string name;  ///< "host" or "cuda:N"
  DeviceClass device_class;
  bool host() const { return device_class.host; }
};

/// auto: CUDA where a device answers a worker, else the host, with the reason said. Throws
/// CommandError: exit 2 for a target that is none, exit 3 where the target cannot be had, or may
/// not be passed over.
TargetAtHand resolve_target(const std::string& target);

struct TimerChoice {
  profiler::Timer timer = profiler::Timer::kHost;
  bool or_events = false;  ///< events will do where it cannot start
};

/// The timer that the spec and --timer ask for on this target; throws CommandError(kUsage) where
/// the target does not have it.
TimerChoice resolve_timer(const Spec& spec, const std::string& option, const std::string& target);

/// What compiles for the target; nothing on the host.
Toolchain toolchain_for(const TargetAtHand& target, const std::string& cache);

/// What a worker on the target needs to be told.
WorkerOptions worker_options(const TargetAtHand& target, const Toolchain& toolchain);

/// Throws CommandError(kEnvironment) where a candidate of the base has no machine code: nothing can
/// be measured without it.
void require_base(const Plan& plan, const NotCompiledMap& not_compiled);

/// A worker that has said hello.
struct StartedWorker {
  std::unique_ptr<Supervisor> supervisor;
  Hello hello;
  profiler::Timer timer;
};

/// Starts a worker with this timer, or with events where that will do, which is said. nullopt where
/// it was stopped; throws CommandError(kEnvironment) where it cannot be had.
std::optional<StartedWorker> start_worker(WorkerOptions options, const TimerChoice& timer);

/// What a worker with these options says; on the host without one.
Hello local_hello(const WorkerOptions& options, const TimerChoice& timer);

/// Adds --json; `json` is set by parsing.
void add_json(CLI::App& app, bool& json);
/// Adds --db with its default.
CLI::Option* add_database(CLI::App& app, std::string& file);
/// Opens for reading; throws db::Error.
db::Store open_for_reading(const std::string& file);
/// The same as one moment's copy, for long readers beside a sweep that writes.
db::Store open_snapshot(const std::string& file);
/// The run by number, or the last one; throws CommandError(kUsage) where there is none.
db::RunRow find_run(const db::Store& store, int64_t number, const std::string& file);

/// Says so where filters kept the run from looking at all of its config.
void warn_of_part(const db::RunRow& run);
/// Whether filters left out stages, variants or shapes.
bool is_part(const db::RunRow& run);

/// Makes the folder of an output where its own folder is there. One that cannot be made is what the
/// error of the first file in it is about.
void make_folder(const std::filesystem::path& folder);
/// Throws CommandError(kUsage) where the output would replace the database or a file of its.
void refuse_database(const std::filesystem::path& output, const std::string& database);
/// "90s", "10m", "1.5h", "500ms"; a bare number is refused: nobody agrees on its unit. Throws
/// CommandError(kUsage).
std::chrono::duration<double> parse_duration(const std::string& option, const std::string& text);
/// 0 to 2^64 - 1 in decimal; `otherwise` for an empty text. Throws CommandError(kUsage).
uint64_t parse_seed(const std::string& text, uint64_t otherwise);

/// Prints {schema: "muse.<name>", version: 1, ...fields}.
void print_json(const std::string& name, nlohmann::json fields);

// --- the commands
// ----------------------------------------------------------------------------------

Command init_command();
Command doctor_command();
Command list_command();
Command plan_command();
Command compile_command();
Command sweep_command();
Command status_command();
Command explain_command();
Command replay_command();
Command validate_command();
Command emit_command();
Command check_command();
Command report_command();
Command export_command();
Command version_command();
Command worker_command();
Command compile_worker_command();

}  // namespace muse::tuner
