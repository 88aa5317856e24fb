// SPDX-License-Identifier: Apache-2.0
// emit: the winners of a run as a folder that production builds: a dispatch header, its kernels,
// its evidence and a CMakeLists.txt.
#include "tuner/emit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include "db/atomic_file.h"
#include "tuner/build_info.h"
#include "tuner/commands/command.h"
#include "tuner/commands/held_out.h"
#include "tuner/dispatch_losses.h"
#include "tuner/dispatch_rows.h"
#include "tuner/emit_build.h"
#include "tuner/emit_kernels.h"
#include "tuner/records.h"
#include "tuner/stored_selection.h"

namespace muse::tuner {
namespace {

struct Options {
  std::string database = "muse-tune.db", out = "muse_dispatch", regime, held_out;
  int64_t run = 0;
  int64_t max_variants = 0;                              ///< 0 = as many as there are
  double max_regret_pct = -1, max_mean_regret_pct = -1;  ///< negative = any
  bool json = false;

  bool limited() const {
    return max_variants > 0 || max_regret_pct >= 0 || max_mean_regret_pct >= 0;
  }
  SubsetLimits limits() const {
    SubsetLimits limits;
    if (max_variants > 0) limits.variants = static_cast<size_t>(max_variants);
    if (max_regret_pct >= 0) limits.worst = max_regret_pct / 100;
    if (max_mean_regret_pct >= 0) limits.mean = max_mean_regret_pct / 100;
    return limits;
  }
};

/// Throws where this binary does not have what the text names.
Chain parse_chain(const std::string& text) {
  auto chain = Registry::global().parse_chain(text);
  if (chain) return *std::move(chain);
  throw CommandError(
      ExitCode::kNotComparable,
      fmt::format("run names a pipeline that this binary does not have: {}", chain.error()));
}

/// The hashes in a chain's code_hash(), one for each candidate.
std::vector<std::string> split_hashes(const std::string& joined) {
  std::vector<std::string> hashes{""};
  for (const char c : joined) {
    if (c == '+') {
      hashes.emplace_back();
    } else {
      hashes.back() += c;
    }
  }
  return hashes;
}

/// The variants of the chains with the sources that they were measured with, and the hash over
/// these. Gives the names of those whose sources in this binary are other ones.
std::vector<std::string> add_variants(DispatchTable& table, const std::vector<Chain>& chains,
                                      const std::map<std::string, std::string>& code_hashes) {
  std::map<std::string, VariantAbi> variants;
  std::set<std::string> changed;
  for (const Chain& chain : chains) {
    const auto found = code_hashes.find(key(chain));  // a base may have been measured nowhere
    const std::vector<std::string> here = split_hashes(code_hash(chain));
    const std::vector<std::string> there =
        found == code_hashes.end() ? here : split_hashes(found->second);
    if (there.size() != here.size()) {
      throw CommandError(ExitCode::kEnvironment,
                         fmt::format("{}: its code hash '{}' is none", key(chain), found->second));
    }
    for (size_t i = 0; i < chain.size(); ++i) {
      const Variant& variant = *chain[i].variant;
      variants.insert_or_assign(variant.name, VariantAbi{variant.name, variant.abi, there[i]});
      if (here[i] != there[i]) changed.insert(variant.name);
    }
  }
  std::string text;
  for (const auto& [name, variant] : variants) {
    table.variants.push_back(variant);
    text += name + " " + variant.source_hash + "\n";
  }
  table.source_hash = hash_hex(text);
  return {changed.begin(), changed.end()};
}

MeasuredRun measured(const db::Store& store, const db::RunRow& run, const std::string& regime) {
  MeasuredRun measured;
  try {
    measured = measured_run(store, run, regime);
  } catch (const std::runtime_error& error) {
    throw CommandError(ExitCode::kEnvironment, fmt::format("run {}: {}", run.id, error.what()));
  }
  if (!measured.shapes.empty()) return measured;
  if (run.status != "complete") {
    throw CommandError(
        ExitCode::kIncomplete,
        fmt::format("run {} is {}: its budget ended, or it was stopped, before a whole pipeline "
                    "was decided in regime {}; the same sweep goes on. No file was touched",
                    run.id, run.status, regime));
  }
  throw CommandError(ExitCode::kGateFailed,
                     fmt::format("run {} has no valid pipeline in regime {}: nothing to emit, and "
                                 "no file was touched",
                                 run.id, regime));
}

/// The pipelines that the limits leave; throws where they cannot be kept.
std::optional<std::vector<std::string>> allowed(const Options& options,
                                                const std::vector<MeasuredShape>& shapes,
                                                const std::string& base) {
  if (!options.limited()) return std::nullopt;
  const SubsetLimits limits = options.limits();
  Fewer fewer = fewer_pipelines(shapes, base, limits);
  if (fewer.regret.worst > limits.worst || fewer.regret.mean > limits.mean) {
    throw CommandError(
        ExitCode::kGateFailed,
        fmt::format("with {} pipelines (the base is one) the regret is {:.2f} % at worst, {:.2f} % "
                    "in the mean: allow more with --max-variants or --max-regret; no file was "
                    "touched",
                    fewer.pipelines.size(), 100 * fewer.regret.worst, 100 * fewer.regret.mean));
  }
  return std::move(fewer.pipelines);
}

DispatchTable empty_table(const db::Store& store, const db::RunRow& run, const Spec& spec,
                          const std::string& regime) {
  const db::DeviceRow device = store.device(run.device_id);
  const db::BuildRow build = store.build(run.build_id);
  DispatchTable table;
  table.base = run.base;
  table.regime = regime;
  table.timer = run.timer;
  table.device = device_class(device);
  table.driver = device.driver;
  table.rules = dispatch_rules(spec.dispatch.axes, spec.dispatch.max_distance);
  table.generator = "muse-tune " + build_info().version;
  table.provenance = {{"run", std::to_string(run.id)},
                      {"started", run.started},
                      {"status", run.status},
                      {"command", run.command},
                      {"config", run.config_path},
                      {"config_hash", run.config_hash},
                      {"seed", std::to_string(run.seed)},
                      {"device_uuid", device.uuid},
                      {"device_name", device.name},
                      {"clock_policy", device.clock_policy},
                      {"swept_with", build.version},
                      {"revision", build.revision},
                      {"compiler", build.compiler},
                      {"environment", run.environment}};
  return table;
}

Spec spec_of(const db::RunRow& run) {
  auto parsed = parse_spec(run.config_text, run.config_path, Registry::global());
  if (parsed) return *std::move(parsed);
  throw CommandError(ExitCode::kNotComparable, fmt::format("run {}: its config no longer loads: {}",
                                                           run.id, parsed.error().front().text()));
}

/// The four files of a folder.
/// The first words of the header and of the kernels.
constexpr std::string_view kGeneratedMark =
    "// SPDX-License-Identifier: Apache-2.0\n// Generated: ";

struct Written {
  std::filesystem::path header, kernels, json, build;
  std::string hash = {};  ///< of the header

  explicit Written(const std::filesystem::path& folder)
      : header(folder / "muse_dispatch.h"),
        kernels(folder / "muse_kernels.cu"),
        json(folder / "muse_dispatch.json"),
        build(folder / "CMakeLists.txt") {}
  /// In the order of writing. The header last: where it is new, what it names is there.
  std::vector<std::filesystem::path> files() const { return {kernels, json, build, header}; }
  /// Whether emit has written the file that is there now; also where there is none.
  bool is_ours(const std::filesystem::path& file) const {
    std::ifstream in(file, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    if (!in) return true;
    if (file == json) return text.find("\"muse.dispatch\"") != std::string::npos;
    return text.starts_with(file == build ? kBuildMark : kGeneratedMark);
  }
};

/// Throws where a file of the folder is somebody else's.
void refuse_what_others_wrote(const Options& options) {
  const Written written(options.out);
  for (const auto& file : written.files()) {
    refuse_database(file, options.database);
    if (!options.held_out.empty()) refuse_database(file, options.held_out);
  }
  for (const auto& file : written.files()) {
    if (written.is_ours(file)) continue;
    throw CommandError(
        ExitCode::kUsage,
        fmt::format("--out {}: its {} was not written by emit, which writes one; choose another "
                    "folder, e.g. {}; no file was touched",
                    printable(options.out), file.filename().string(),
                    printable((std::filesystem::path(options.out) / "muse_dispatch")
                                  .lexically_normal()
                                  .string())));
  }
}

/// Throws where a table would be replaced by that of a run which merely happens to be the last.
void refuse_a_part(const Options& options, const db::RunRow& run) {
  if (options.run != 0 || !is_part(run) || !std::filesystem::exists(Written(options.out).json)) {
    return;
  }
  throw CommandError(
      ExitCode::kUsage,
      fmt::format(
          "run {} looked at a part only ({}), and {} holds a table: --run {} replaces it all "
          "the same, --run N takes another run (`muse-tune status` lists them), --out "
          "another folder; no file was touched",
          run.id, printable(run.command), printable(options.out), run.id));
}

Written write(const Options& options, const DispatchTable& table,
              const std::vector<Chain>& chains) {
  const std::string text = dispatch_header(table);
  Written written(options.out);
  written.hash = hash_hex(text);
  make_folder(options.out);
  db::write_atomically(written.kernels, kernels_source(chains, emit_id(table)));
  db::write_atomically(written.json, dispatch_json(table, written.hash));
  db::write_atomically(written.build, build_text(table, build_info().version));
  db::write_atomically(written.header, text);
  return written;
}

void record(db::Store& store, const Written& written, const DispatchTable& table,
            const std::vector<db::SelectionRow>& selections) {
  std::map<std::string, double> regret;
  for (const DispatchRow& row : table.rows) regret[key(row.shape)] = row.regret_pct;
  store.transaction([&] {
    for (const db::SelectionRow& selection : selections) {
      const auto found = regret.find(store.problem(selection.problem_id).key);
      if (found == regret.end()) continue;
      store.insert(db::DispatchEntryRow{.run_id = selection.run_id,
                                        .selection_id = selection.id,
                                        .header_path = written.header.string(),
                                        .header_hash = written.hash,
                                        .emitted = utc_now(),
                                        .regret_pct = found->second});
    }
  });
}

void tell(const Options& options, const db::RunRow& run, const Written& written,
          const DispatchTable& table, bool recorded) {
  const size_t pipelines = named_pipelines(table).size(), between = generalists(table).size();
  const auto regret = [](const Regret& r) {
    return nlohmann::json{{"worst_pct", 100 * r.worst}, {"mean_pct", 100 * r.mean}};
  };
  if (options.json) {
    nlohmann::json fields{{"run", run.id},
                          {"file", written.header.string()},
                          {"kernels", written.kernels.string()},
                          {"evidence", written.json.string()},
                          {"build", written.build.string()},
                          {"hash", written.hash},
                          {"recorded", recorded},
                          {"rows", table.rows.size()},
                          {"captured_rows", table.captured.size()},
                          {"pipelines", pipelines},
                          {"generalists", between},
                          {"regret", regret(table.regret)},
                          {"captured_regret", regret(table.captured_regret)},
                          {"base", table.base},
                          {"regime", table.regime}};
    if (table.held_out) fields["held_out"] = held_out_counts(*table.held_out);
    print_json("emit", std::move(fields));
    return;
  }
  for (const auto& file : {written.header, written.kernels, written.json, written.build}) {
    print(file.string() + "\n");
  }
  say(
      fmt::format("run {}, regime {}: {} rows, {} for every context; {} pipelines, the base among "
                  "them",
                  run.id, table.regime, table.rows.size(), table.captured.size(), pipelines));
  if (between > 0) {
    say(
        fmt::format("{} of the pipelines won on no shape: they answer between the rows, where each "
                    "is expected to save more than {} %",
                    between, kWorthAKernelPct));
  }
  say(
      fmt::format("regret against the best measured: {:.2f} % at worst, {:.2f} % in the mean; one "
                  "choice for every context: {:.2f} %, {:.2f} %",
                  100 * table.regret.worst, 100 * table.regret.mean,
                  100 * table.captured_regret.worst, 100 * table.captured_regret.mean));
}

void warn(const db::RunRow& run, const std::vector<std::string>& changed) {
  if (!changed.empty()) {
    say(fmt::format(
        "warning: other sources or another compiler than run {} measured: {}; a build "
        "of these sources that checks its tables refuses this one: sweep and emit again",
        run.id, fmt::join(changed, ", ")));
  }
  warn_of_part(run);
  if (run.status != "complete") say(fmt::format("run {} is {}", run.id, run.status));
}

ExitCode run(const Options& options) {
  refuse_what_others_wrote(options);
  // Whose database cannot be written may still use it: the files do not depend on the record.
  const bool recorded = db::Store::can_be_written(options.database);
  db::Store store =
      db::Store::open(options.database, recorded ? db::Open::kWrite : db::Open::kRead);
  const db::RunRow chosen = find_run(store, options.run, options.database);
  refuse_a_part(options, chosen);
  const Spec spec = spec_of(chosen);
  const std::string regime =
      options.regime.empty() ? std::string(profiler::name(spec.dispatch.regime)) : options.regime;
  const MeasuredRun of_run = measured(store, chosen, regime);
  DispatchTable table = empty_table(store, chosen, spec, regime);
  table.toolkit = of_run.toolkit;
  fill_rows(table, of_run.shapes, allowed(options, of_run.shapes, table.base));
  fill_losses(table, of_run.shapes, !options.limited());
  tell_races(table, spec);
  std::vector<Chain> chains;
  for (const std::string& name : named_pipelines(table)) chains.push_back(parse_chain(name));
  const std::vector<std::string> changed = add_variants(table, chains, of_run.code_hashes);
  if (!options.held_out.empty()) {
    table.held_out = held_out_of(options.held_out, options.database, table, of_run);
  }
  const Written written = write(options, table, chains);
  if (recorded) record(store, written, table, of_run.selections);
  tell(options, chosen, written, table, recorded);
  if (table.held_out) tell_held_out(*table.held_out);
  if (!recorded) {
    say(
        fmt::format("warning: {} or its folder is read-only: that this table was emitted is not "
                    "recorded, and reports of the run will not name it",
                    printable(options.database)));
  }
  warn(chosen, changed);
  return ExitCode::kOk;
}

}  // namespace

Command emit_command() {
  return {"emit", "Write the winners as a folder that production builds", [](CLI::App& app) {
            auto options = std::make_shared<Options>();
            // A NaN is in every range.
            const CLI::Validator finite(
                [](const std::string& text) {
                  double value = 0;
                  const bool number = CLI::detail::lexical_cast(text, value);
                  return number && std::isfinite(value) ? "" : "is no number: " + text;
                },
                "");
            add_database(app, options->database);
            app.add_option("--out", options->out,
                           "Folder for muse_dispatch.h, .json, muse_kernels.cu and CMakeLists.txt")
                ->capture_default_str();
            app.add_option("--run", options->run, "Run number; default: the last");
            app.add_option("--regime", options->regime, "Default: the config's dispatch.regime")
                ->check(CLI::IsMember({"cold", "warm", "rotating"}));
            app.add_option("--max-variants", options->max_variants,
                           "At most so many distinct pipelines, the base among them")
                ->check(CLI::Range(1, 65535));
            app.add_option(
                   "--max-regret", options->max_regret_pct,
                   "Few pipelines, of which no shape loses more than so many percent by the table "
                   "with context")
                ->check(CLI::Range(0.0, 1e6) & finite);
            app.add_option("--max-mean-regret", options->max_mean_regret_pct,
                           "The same for the geometric mean over the shapes")
                ->check(CLI::Range(0.0, 1e6) & finite);
            app.add_option("--heldout", options->held_out,
                           "Database of a sweep of other shapes: what the tables lose on them")
                ->type_name("FILE");
            add_json(app, options->json);
            return [options] { return run(*options); };
          }};
}

}  // namespace muse::tuner
