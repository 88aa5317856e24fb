// SPDX-License-Identifier: Apache-2.0
// status: the runs of a database, and how one of them stands.
#include <fmt/format.h>

#include "tuner/commands/command.h"
#include "tuner/records.h"

namespace muse::tuner {
namespace {

struct Options {
  std::string database = "muse-tune.db";
  int64_t run = 0;
  bool failures = false, json = false;
};

ExitCode run(const Options& options) {
  const db::Store store = open_for_reading(options.database);
  nlohmann::json runs = nlohmann::json::array();
  std::vector<std::vector<std::string>> run_rows{{"run", "started", "status", "device", "command"}};
  for (const db::RunRow& r : store.runs()) {
    const std::string device = store.device(r.device_id).name;
    // Nobody was left to write how it ended.
    const std::string status = r.status == "running" && owner_is_gone(r) ? "killed" : r.status;
    runs.push_back({{"id", r.id},
                    {"started", r.started},
                    {"ended", r.ended},
                    {"status", status},
                    {"config", r.config_path},
                    {"command", r.command},
                    {"device", device}});
    run_rows.push_back({std::to_string(r.id), r.started, status, device, r.command});
  }
  const db::RunRow chosen = find_run(store, options.run, options.database);
  std::map<std::string, int> states;
  nlohmann::json failures = nlohmann::json::array();
  std::vector<std::vector<std::string>> failure_rows{{"state", "candidate", "problem", "reason"}};
  const bool under_way = chosen.status == "running" && !owner_is_gone(chosen);
  for (const db::Store::RunTrial& t : store.run_trials(chosen.id)) {
    const std::optional<Outcome> outcome = parse_outcome(t.trial.state);
    ++states[outcome == Outcome::kRunning && !under_way ? "unfinished" : t.trial.state];
    if (!outcome || is_measured(*outcome) || !is_final(*outcome) ||
        *outcome == Outcome::kUnsupported) {
      continue;  // no failure: the plan says why it is not tried
    }
    failures.push_back({{"state", t.trial.state},
                        {"candidate", t.candidate.key},
                        {"problem", t.problem.key},
                        {"reason", t.trial.reason}});
    failure_rows.push_back({t.trial.state, t.candidate.key, t.problem.key, t.trial.reason});
  }
  if (options.json) {
    print_json("status",
               {{"runs", runs}, {"run", chosen.id}, {"states", states}, {"failures", failures}});
    return ExitCode::kOk;
  }
  print(format_table(run_rows));
  std::string text = fmt::format("\nrun {}:", chosen.id);
  for (const auto& [state, count] : states) text += fmt::format(" {} {},", count, state);
  text.back() = '\n';
  print(text);
  if (options.failures && failure_rows.size() > 1) print("\n" + format_table(failure_rows));
  return ExitCode::kOk;
}

}  // namespace

Command status_command() {
  return {"status", "Show the runs of a database and how one stands", [](CLI::App& app) {
            auto options = std::make_shared<Options>();
            add_database(app, options->database);
            app.add_option("--run", options->run, "Run number; default: the last");
            app.add_flag("--failures", options->failures, "List trials without a time, and why");
            add_json(app, options->json);
            return [options] { return run(*options); };
          }};
}

}  // namespace muse::tuner
