// SPDX-License-Identifier: Apache-2.0
// emit: the winners of a run as a dispatch header.
#include "tuner/emit.h"

#include <fmt/format.h>

#include <filesystem>

#include "db/atomic_file.h"
#include "tuner/build_info.h"
#include "tuner/commands/command.h"
#include "tuner/emit_kernels.h"
#include "tuner/records.h"
#include "tuner/stored_selection.h"

namespace muse::tuner {
namespace {

struct Options {
  std::string database = "muse-tune.db", out = ".", regime;
  int64_t run = 0;
  bool json = false;
};

// Every variant the table names, with its ABI; a name that this binary does not have ends the
// command.
Chain add_variants(DispatchTable& table, const std::string& chain_text) {
  const auto chain = Registry::global().parse_chain(chain_text);
  if (!chain) {
    throw CommandError(
        ExitCode::kNotComparable,
        fmt::format("run names a pipeline that this binary does not have: {}", chain.error()));
  }
  for (const Candidate& candidate : *chain) {
    table.variants.push_back({candidate.variant->name, candidate.variant->abi});
  }
  return *chain;
}

// The hash that ties the header to the sources it was measured with.
std::string source_hash(DispatchTable& table) {
  std::sort(table.variants.begin(), table.variants.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  table.variants.erase(std::unique(table.variants.begin(), table.variants.end(),
                                   [](const auto& a, const auto& b) { return a.name == b.name; }),
                       table.variants.end());
  std::string text;
  for (const VariantAbi& v : table.variants) {
    text += v.name + " " + code_hash(Chain{{Registry::global().find(v.name), {}}}) + "\n";
  }
  return hash_hex(text);
}

struct Emitted {
  DispatchTable table;
  std::vector<Chain> chains;  ///< what the table names
  std::vector<db::SelectionRow> selections;
};

Emitted collect(const db::Store& store, const db::RunRow& run, const std::string& regime) {
  const db::DeviceRow device = store.device(run.device_id);
  const db::BuildRow build = store.build(run.build_id);
  Emitted emitted;
  DispatchTable& table = emitted.table;
  table.base = run.base;
  table.regime = regime;
  table.timer = run.timer;
  table.device = device_class(device);
  table.driver = device.driver;
  table.toolkit = build.toolkit;
  table.generator = "muse-tune " + build_info().version;
  emitted.chains.push_back(add_variants(table, table.base));
  for (const db::SelectionRow& selection : store.selections(run.id)) {
    if (selection.span != muse::name(kWholeStep) || selection.regime != regime) continue;
    const db::TrialRow trial = store.trial(selection.trial_id);
    const auto shape = parse_shape(store.problem(selection.problem_id).key);
    if (!shape) {
      throw CommandError(ExitCode::kEnvironment,
                         "run has a problem key that is none: " + shape.error());
    }
    const std::string pipeline = store.candidate(trial.key.candidate_id).key;
    emitted.chains.push_back(add_variants(table, pipeline));
    table.rows.push_back({.shape = *shape,
                          .pipeline = pipeline,
                          .median_ns = selection.median_ns,
                          .low_ns = selection.low_ns,
                          .high_ns = selection.high_ns,
                          .base_median_ns = selection.base_median_ns,
                          .status = selection.status,
                          .run = run.id,
                          .date = run.started});
    emitted.selections.push_back(selection);
  }
  table.source_hash = source_hash(table);
  return emitted;
}

ExitCode run(const Options& options) {
  db::Store store = db::Store::open(options.database, db::Open::kWrite);
  const db::RunRow chosen = find_run(store, options.run, options.database);
  const Spec spec = [&] {
    auto parsed = parse_spec(chosen.config_text, chosen.config_path, Registry::global());
    if (parsed) return std::move(*parsed);
    throw CommandError(ExitCode::kNotComparable,
                       fmt::format("run {}: its config no longer loads: {}", chosen.id,
                                   parsed.error().front().text()));
  }();
  const std::string regime =
      options.regime.empty() ? std::string(profiler::name(spec.dispatch.regime)) : options.regime;
  const Emitted emitted = collect(store, chosen, regime);
  if (emitted.table.rows.empty()) {
    throw CommandError(
        ExitCode::kGateFailed,
        fmt::format("run {} has no valid pipeline in regime {}: nothing to emit, and no "
                    "file was touched",
                    chosen.id, regime));
  }
  const std::string text = dispatch_header(emitted.table);
  const std::filesystem::path file = std::filesystem::path(options.out) / "muse_dispatch.h";
  const std::filesystem::path kernels = std::filesystem::path(options.out) / "muse_kernels.cu";
  refuse_database(file, options.database);
  refuse_database(kernels, options.database);
  std::error_code ignored;  // a folder that cannot be made is what the first file's error is about
  std::filesystem::create_directory(options.out, ignored);
  // The header last: where it is new, what it names is there.
  db::write_atomically(kernels, kernels_source(emitted.chains));
  db::write_atomically(file, text);
  const std::string hash = hash_hex(text);
  store.transaction([&] {
    for (const db::SelectionRow& selection : emitted.selections) {
      store.insert(db::DispatchEntryRow{.run_id = chosen.id,
                                        .selection_id = selection.id,
                                        .header_path = file.string(),
                                        .header_hash = hash,
                                        .emitted = utc_now()});
    }
  });
  if (options.json) {
    print_json("emit", {{"run", chosen.id},
                        {"file", file.string()},
                        {"kernels", kernels.string()},
                        {"hash", hash},
                        {"rows", emitted.table.rows.size()},
                        {"base", emitted.table.base},
                        {"regime", regime}});
  } else {
    print(file.string() + "\n" + kernels.string() + "\n");
    say(fmt::format("{} rows of run {}, regime {}", emitted.table.rows.size(), chosen.id, regime));
  }
  for (const char* filter : {" --stage ", " --variant ", " --shape "}) {
    if (chosen.command.find(filter) == std::string::npos) continue;
    say(
        fmt::format("warning: run {} looked at a part only ({}); --run N emits another one, "
                    "`muse-tune status` lists them",
                    chosen.id, printable(chosen.command)));
    break;
  }
  if (chosen.status != "complete") say(fmt::format("run {} is {}", chosen.id, chosen.status));
  return ExitCode::kOk;
}

}  // namespace

Command emit_command() {
  return {"emit", "Write the winners as a dispatch header, and their kernels", [](CLI::App& app) {
            auto options = std::make_shared<Options>();
            add_database(app, options->database);
            app.add_option("--out", options->out, "Folder for muse_dispatch.h and muse_kernels.cu")
                ->capture_default_str();
            app.add_option("--run", options->run, "Run number; default: the last");
            app.add_option("--regime", options->regime, "Default: the config's dispatch.regime")
                ->check(CLI::IsMember({"cold", "warm", "rotating"}));
            add_json(app, options->json);
            return [options] { return run(*options); };
          }};
}

}  // namespace muse::tuner
