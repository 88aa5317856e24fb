// SPDX-License-Identifier: Apache-2.0
// replay: every selection of a run once more, from its stored samples, without a device.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "tuner/commands/command.h"
#include "tuner/stored_selection.h"

namespace muse::tuner {
namespace {

using nlohmann::json;

struct Options {
  std::string source, database = "muse-tune.db";
  int64_t run = 0;
  bool json = false;
};

// FILE#RUN, unless a file has that whole name.
void split_source(Options& options) {
  options.database = options.source;
  const size_t hash = options.source.rfind('#');
  if (hash == std::string::npos || std::filesystem::exists(options.source)) return;
  const std::string number = options.source.substr(hash + 1);
  int64_t run = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), run);
  if (error != std::errc() || end != number.data() + number.size() || run < 1) {
    throw CommandError(ExitCode::kUsage,
                       fmt::format("{}: '{}' is no run number; write FILE#RUN, e.g. {}#1",
                                   printable(options.source), printable(number),
                                   printable(options.source.substr(0, hash))));
  }
  if (options.run != 0 && options.run != run) {
    throw CommandError(ExitCode::kUsage, fmt::format("{} and --run {}: two runs are named",
                                                     printable(options.source), options.run));
  }
  options.database = options.source.substr(0, hash);
  options.run = run;
}

// What came of one selection.
struct Verdict {
  std::string result;  ///< ok, differs, not_replayable
  std::vector<std::string> why;
};

Verdict verdict_of(const StoredSelections& selections, const db::SelectionRow& row) {
  const auto replayed = selections.replay(row);
  if (!replayed) return {"not_replayable", {replayed.error()}};
  if (replayed->differences.empty()) return {"ok", {}};
  return {"differs", replayed->differences};
}

ExitCode run(const Options& options) {
  const db::Store store = open_snapshot(options.database);
  const db::RunRow chosen = find_run(store, options.run, options.database);
  const std::vector<db::SelectionRow> rows = store.selections(chosen.id);
  if (rows.empty()) {
    throw CommandError(ExitCode::kNotComparable,
                       fmt::format("run {} of {} has no selection to replay: it is {}", chosen.id,
                                   printable(options.database), chosen.status));
  }
  const StoredSelections selections(store, chosen);
  std::map<std::string, int> counts{{"ok", 0}, {"differs", 0}, {"not_replayable", 0}};
  json items = json::array();
  std::vector<std::vector<std::string>> table{
      {"problem", "span", "hand-off", "regime", "winner", "replay"}};
  for (const db::SelectionRow& row : rows) {
    const Verdict verdict = verdict_of(selections, row);
    ++counts[verdict.result];
    const std::string problem = store.problem(row.problem_id).key;
    const std::string winner =
        row.trial_id == 0 ? "" : store.candidate(store.trial(row.trial_id).key.candidate_id).key;
    items.push_back({{"problem", problem},
                     {"span", row.span},
                     {"handoff", row.handoff_in},
                     {"regime", row.regime},
                     {"winner", winner},
                     {"race", row.race_id == 0 ? json(nullptr) : json(row.race_id)},
                     {"result", verdict.result},
                     {"why", verdict.why}});
    const std::string what = verdict.result == "not_replayable" ? "not replayable" : verdict.result;
    table.push_back(
        {problem, row.span, row.handoff_in, row.regime, winner,
         verdict.why.empty() ? what : fmt::format("{}: {}", what, fmt::join(verdict.why, "; "))});
  }
  if (options.json) {
    print_json("replay", {{"run", chosen.id}, {"selections", items}, {"counts", counts}});
  } else {
    print(format_table(table));
    print(fmt::format("\nrun {}: {} ok, {} differ, {} not replayable\n", chosen.id, counts["ok"],
                      counts["differs"], counts["not_replayable"]));
  }
  if (counts["differs"] > 0) return ExitCode::kGateFailed;
  return counts["not_replayable"] > 0 ? ExitCode::kNotComparable : ExitCode::kOk;
}

}  // namespace

Command replay_command() {
  return {"replay", "Decide a run again from its stored samples, without a device",
          [](CLI::App& app) {
            auto options = std::make_shared<Options>();
            CLI::Option* database = add_database(app, options->database);
            app.add_option("source", options->source, "Database file, or FILE#RUN; instead of --db")
                ->excludes(database);
            app.add_option("--run", options->run, "Run number; default: the last");
            add_json(app, options->json);
            return [options] {
              if (!options->source.empty()) split_source(*options);
              return run(*options);
            };
          }};
}

}  // namespace muse::tuner
