// SPDX-License-Identifier: Apache-2.0
// report: a run as HTML, Markdown or JSON.
#include "reports/report.h"

#include <fmt/format.h>

#include "db/atomic_file.h"
#include "tuner/commands/command.h"

namespace muse::tuner {
namespace {

struct Options {
  std::string database = "muse-tune.db", out = "report.html", format = "html";
  int64_t run = 0;
  bool json = false;
};

ExitCode run(Options options, bool out_given) {
  const db::Store store = open_snapshot(options.database);
  const db::RunRow chosen = find_run(store, options.run, options.database);
  warn_of_part(chosen);
  if (options.json) options.format = "json";
  std::string text;
  if (options.format == "html") {
    text = reports::html_report(store, chosen.id);
  } else if (options.format == "md") {
    text = reports::markdown_report(store, chosen.id);
  } else {
    text = reports::json_report(store, chosen.id);
  }
  if (options.format != "html" && !out_given) {
    print(text);
    return ExitCode::kOk;
  }
  refuse_database(options.out, options.database);
  make_folder(std::filesystem::path(options.out).parent_path());
  db::write_atomically(options.out, text);
  say(fmt::format("{}: run {}, {} bytes", printable(options.out), chosen.id, text.size()));
  return ExitCode::kOk;
}

}  // namespace

Command report_command() {
  return {"report", "Write a run as HTML, Markdown or JSON", [](CLI::App& app) {
            auto options = std::make_shared<Options>();
            add_database(app, options->database);
            const CLI::Option* out =
                app.add_option("--out", options->out, "Output file; md and json default to stdout")
                    ->capture_default_str();
            app.add_option("--format", options->format, "html, md or json")
                ->check(CLI::IsMember({"html", "md", "json"}))
                ->capture_default_str();
            app.add_option("--run", options->run, "Run number; default: the last");
            app.add_flag("--json", options->json, "Same as --format json");
            return [options, out] { return run(*options, out->count() > 0); };
          }};
}

}  // namespace muse::tuner
