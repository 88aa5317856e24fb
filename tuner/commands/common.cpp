// SPDX-License-Identifier: Apache-2.0
// What commands share: config, selection, database, values, JSON.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>

#include "tuner/commands/command.h"

namespace muse::tuner {
namespace {

/// Of a duration that somebody means; far from what a clock cannot count.
constexpr std::chrono::duration<double> kLongest = std::chrono::hours(24 * 366);

}  // namespace

void SelectionOptions::add_to(CLI::App& app) {
  app.add_option("config", config, "Config file (YAML)")->required();
  app.add_option("--target", target, "auto, host or cuda:N")->capture_default_str();
  app.add_option("--stage", stage, "Only variants whose span covers this stage");
  app.add_option("--variant", variant_glob, "Only variants that match this glob");
  app.add_option("--shape", shape_glob, "Only shapes whose key matches this glob");
  app.add_option("--cache", cache,
                 "Folder of compiled kernels; default: muse-tune in the XDG cache folder");
}

Filter SelectionOptions::filter() const {
  Filter filter{.variant_glob = variant_glob, .shape_glob = shape_glob};
  if (stage.empty()) return filter;
  std::vector<std::string> names;
  for (int i = 0; i < kStageCount; ++i) {
    names.emplace_back(muse::name(static_cast<Stage>(i)));
    if (names.back() == stage) filter.stage = static_cast<Stage>(i);
  }
  if (filter.stage) return filter;
  const std::string near = nearest_name(stage, names);
  throw CommandError(ExitCode::kUsage,
                     fmt::format("--stage {}: no such stage; {}", printable(stage),
                                 near.empty() ? "use prepare, attention, combine or gate"
                                              : fmt::format("did you mean '{}'?", near)));
}

Spec load_config(const std::string& file) {
  auto spec = load_spec(file, Registry::global());
  if (spec) return std::move(*spec);
  std::string lines;
  for (const Diagnostic& diagnostic : spec.error()) {
    lines += (lines.empty() ? "" : "\n") + diagnostic.text();
  }
  throw CommandError(ExitCode::kUsage, lines);
}

void add_json(CLI::App& app, bool& json) {
  app.add_flag("--json", json, "Print JSON on standard output");
}

CLI::Option* add_database(CLI::App& app, std::string& file) {
  return app.add_option("--db", file, "Database file")->capture_default_str();
}

db::Store open_for_reading(const std::string& file) {
  return db::Store::open(file, db::Open::kRead);
}

db::Store open_snapshot(const std::string& file) { return open_for_reading(file).snapshot(); }

db::RunRow find_run(const db::Store& store, int64_t number, const std::string& file) {
  const std::optional<db::RunRow> run = number == 0 ? store.last_run() : store.run(number);
  if (run) return *run;
  throw CommandError(
      ExitCode::kUsage,
      number == 0 ? fmt::format("{}: no run in it; `muse-tune sweep CONFIG` makes one", file)
                  : fmt::format("{}: no run {}; `muse-tune status` lists them", file, number));
}

bool is_part(const db::RunRow& run) {
  constexpr std::array kFilters{" --stage ", " --variant ", " --shape "};
  return std::any_of(kFilters.begin(), kFilters.end(), [&](const char* filter) {
    return run.command.find(filter) != std::string::npos;
  });
}

void warn_of_part(const db::RunRow& run) {
  if (!is_part(run)) return;
  say(
      fmt::format("warning: run {} looked at a part only ({}); --run N takes another one, "
                  "`muse-tune status` lists them",
                  run.id, printable(run.command)));
}

void make_folder(const std::filesystem::path& folder) {
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directory(folder, error);
  if (!error) return;
  throw CommandError(
      ExitCode::kEnvironment,
      fmt::format("{}: cannot be made: {}", printable(folder.string()), error.message()));
}

void refuse_database(const std::filesystem::path& output, const std::string& database) {
  std::error_code ignored;
  for (const char* ending : {"", ".lock", "-journal"}) {
    const std::filesystem::path taken = database + ending;
    if (!std::filesystem::equivalent(output, taken, ignored)) continue;
    throw CommandError(ExitCode::kUsage, fmt::format("--out {}: that is the database's own file; "
                                                     "choose another",
                                                     printable(output.string())));
  }
}

std::chrono::duration<double> parse_duration(const std::string& option, const std::string& text) {
  const std::pair<const char*, double> units[] = {{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
  for (const auto& [unit, seconds] : units) {
    if (!text.ends_with(unit)) continue;
    const std::string number = text.substr(0, text.size() - std::string_view(unit).size());
    if (number.empty() || number.find_first_not_of("0123456789.") != std::string::npos) continue;
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error == std::errc::result_out_of_range) value = HUGE_VAL;
    if (end != number.data() + number.size() || value <= 0) continue;
    if (value * seconds > kLongest.count()) {
      throw CommandError(ExitCode::kUsage, fmt::format("{} {}: longer than a year; leave it out "
                                                       "for no limit",
                                                       option, printable(text)));
    }
    return std::chrono::duration<double>(value * seconds);
  }
  throw CommandError(ExitCode::kUsage, fmt::format("{} {}: not a duration; write 500ms, 90s, 10m "
                                                   "or 2h",
                                                   option, printable(text)));
}

uint64_t parse_seed(const std::string& text, uint64_t otherwise) {
  if (text.empty()) return otherwise;
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error == std::errc() && end == text.data() + text.size()) return seed;
  throw CommandError(ExitCode::kUsage,
                     fmt::format("--seed {}: not a seed; use an integer from 0 to {}",
                                 printable(text), std::numeric_limits<uint64_t>::max()));
}

void print_json(const std::string& name, nlohmann::json fields) {
  fields["schema"] = "muse." + name;
  fields["version"] = 1;
  print(fields.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace muse::tuner
