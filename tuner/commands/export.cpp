// SPDX-License-Identifier: Apache-2.0
// export: the database's tables as JSON or CSV.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "db/atomic_file.h"
#include "tuner/commands/command.h"

namespace muse::tuner {
namespace {

struct Options {
  std::string database = "muse-tune.db", table, format = "json", out;
  bool json = false;
};

// A spreadsheet takes a cell that starts so for a formula.
std::string csv_cell(const std::string& text) {
  std::string cell = text;
  double number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool numeric = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
  if (!numeric && !cell.empty() &&
      std::string_view("=+-@\t\r").find(cell[0]) != std::string::npos) {
    cell.insert(cell.begin(), '\'');
  }
  if (cell.find_first_of(",\"\r\n") == std::string::npos) return cell;
  std::string quoted = "\"";
  for (const char c : cell) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

std::string csv(const db::Store::Table& table) {
  std::string out;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    out += (i == 0 ? "" : ",") + csv_cell(table.columns[i]);
  }
  out += "\r\n";
  for (const auto& row : table.rows) {
    for (size_t i = 0; i < row.size(); ++i)
      out += (i == 0 ? "" : ",") + csv_cell(row[i].value_or(""));
    out += "\r\n";
  }
  return out;
}

nlohmann::json json_rows(const db::Store::Table& table) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& row : table.rows) {
    nlohmann::json object = nlohmann::json::object();
    for (size_t i = 0; i < row.size(); ++i) {
      object[table.columns[i]] = row[i] ? nlohmann::json(*row[i]) : nlohmann::json(nullptr);
    }
    rows.push_back(std::move(object));
  }
  return rows;
}

ExitCode run(Options options) {
  const db::Store store = open_snapshot(options.database);
  const std::vector<std::string> names = store.table_names();
  if (!options.table.empty() &&
      std::find(names.begin(), names.end(), options.table) == names.end()) {
    const std::string near = nearest_name(options.table, names);
    throw CommandError(ExitCode::kUsage,
                       fmt::format("--table {}: no such table{}", printable(options.table),
                                   near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
  }
  if (options.json) options.format = "json";
  if (options.format == "csv" && options.table.empty()) {
    throw CommandError(ExitCode::kUsage,
                       "--format csv holds one table: add --table, e.g. --table trial");
  }
  std::string text;
  if (options.format == "csv") {
    text = csv(store.table(options.table));
  } else {
    nlohmann::json tables = nlohmann::json::object();
    for (const std::string& name : names) {
      if (options.table.empty() || name == options.table)
        tables[name] = json_rows(store.table(name));
    }
    const nlohmann::json document = {
        {"schema", "muse.export"}, {"version", 1}, {"tables", std::move(tables)}};
    text = document.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  if (options.out.empty()) {
    print(text);
  } else {
    refuse_database(options.out, options.database);
    db::write_atomically(options.out, text);
  }
  return ExitCode::kOk;
}

}  // namespace

Command export_command() {
  return {"export", "Write the database's tables as JSON or CSV", [](CLI::App& app) {
            auto options = std::make_shared<Options>();
            add_database(app, options->database);
            app.add_option("--table", options->table, "Only this table");
            app.add_option("--format", options->format, "json or csv")
                ->check(CLI::IsMember({"json", "csv"}))
                ->capture_default_str();
            app.add_option("--out", options->out, "Output file; default: standard output");
            app.add_flag("--json", options->json, "Same as --format json");
            return [options] { return run(*options); };
          }};
}

}  // namespace muse::tuner
