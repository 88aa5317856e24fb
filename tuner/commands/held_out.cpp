// SPDX-License-Identifier: Apache-2.0
// Whether another sweep can be held against the tables, and what is said of it.
#include "tuner/commands/held_out.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "tuner/commands/command.h"
#include "tuner/held_out.h"
#include "tuner/stored_selection.h"

namespace muse::tuner {
namespace {

/// At most so many keys are said.
constexpr size_t kToldKeys = 5;

struct Found {
  db::RunRow run;
  MeasuredRun measured;
};

/// The last run with whole pipelines in the regime.
Found last_whole_run(const db::Store& store, const std::string& file, const std::string& regime) {
  std::vector<db::RunRow> runs = store.runs();
  std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.id > b.id; });
  for (const db::RunRow& run : runs) {
    try {
      MeasuredRun measured = measured_run(store, run, regime);
      if (!measured.shapes.empty()) return {run, std::move(measured)};
    } catch (const std::runtime_error& error) {
      throw CommandError(ExitCode::kEnvironment,
                         fmt::format("{}: run {}: {}", printable(file), run.id, error.what()));
    }
  }
  throw CommandError(ExitCode::kGateFailed,
                     fmt::format("--heldout {}: no whole pipeline was measured to the end there in "
                                 "regime {}; no file was touched",
                                 printable(file), regime));
}

dispatch::Guard guard_of(const std::string& file, const DispatchTable& table,
                         const DeviceClass& there, const std::string& toolkit) {
  const dispatch::Guard guard =
      dispatch::guard(lookup_device(table.device, table.toolkit), lookup_device(there, toolkit));
  switch (guard) {
    case dispatch::Guard::kTuned:
    case dispatch::Guard::kOtherDriver:
    case dispatch::Guard::kOtherCompiler:
      return guard;
    case dispatch::Guard::kNearDevice:
    case dispatch::Guard::kForeign:
      break;
  }
  throw CommandError(
      ExitCode::kNotComparable,
      fmt::format("--heldout {}: measured on another device class ({}) than the tables ({}); no "
                  "file was touched",
                  printable(file), text(there), text(table.device)));
}

void require_protocol(const std::string& file, const DispatchTable& table, const MeasuredRun& tuned,
                      const Found& found) {
  if (found.measured.protocols == tuned.protocols) return;
  throw CommandError(
      ExitCode::kNotComparable,
      fmt::format("--heldout {}: measured by another protocol ({}, timer {}) than the tables "
                  "({}, timer {}); no file was touched",
                  printable(file), fmt::join(found.measured.protocols, ", "), found.run.timer,
                  fmt::join(tuned.protocols, ", "), table.timer));
}

std::string few(const std::vector<std::string>& keys) {
  const size_t told = std::min(keys.size(), kToldKeys);
  std::string out = fmt::format("{}", fmt::join(keys.begin(), keys.begin() + told, ", "));
  if (told < keys.size()) out += fmt::format(" and {} more", keys.size() - told);
  return out;
}

/// Picks whose times there are those of other code.
void warn_of_other_code(const HeldOut& held_out, const MeasuredRun& tuned,
                        const MeasuredRun& there) {
  std::set<std::string> other;
  for (const auto* shapes : {&held_out.shapes, &held_out.captured}) {
    for (const HeldOutShape& shape : *shapes) {
      const auto a = tuned.code_hashes.find(shape.pick), b = there.code_hashes.find(shape.pick);
      if (a != tuned.code_hashes.end() && b != there.code_hashes.end() && a->second != b->second) {
        other.insert(shape.pick);
      }
    }
  }
  if (other.empty()) return;
  say(fmt::format("warning: held out: other sources or another compiler there: {}",
                  few({other.begin(), other.end()})));
}

void tell_table(const char* which, const std::vector<HeldOutShape>& shapes) {
  const HeldOutSummary s = summary(shapes);
  const std::string lost = s.regret
                               ? fmt::format("regret {:.2f} % at worst ({}), {:.2f} % in the mean",
                                             100 * s.regret->worst, s.worst, 100 * s.regret->mean)
                               : "no regret is known";
  say(fmt::format("held out, {}: {} shapes, {} exact, {} near, {} by default; {} measured, {}",
                  which, s.shapes, s.exact, s.near, s.base, s.measured, lost));
  if (s.unmeasured.empty()) return;
  say(fmt::format(
      "held out, {}: {} not measured, as what the table picks was not raced on them: {}", which,
      s.unmeasured.size(), few(s.unmeasured)));
}

nlohmann::json counts(const std::vector<HeldOutShape>& shapes) {
  const HeldOutSummary s = summary(shapes);
  nlohmann::json result{{"shapes", s.shapes},  {"measured", s.measured}, {"exact", s.exact},
                        {"near", s.near},      {"base", s.base},         {"worst_pct", nullptr},
                        {"mean_pct", nullptr}, {"worst_shape", nullptr}};
  if (s.regret) {
    result["worst_pct"] = 100 * s.regret->worst;
    result["mean_pct"] = 100 * s.regret->mean;
    result["worst_shape"] = s.worst;
  }
  return result;
}

}  // namespace

HeldOut held_out_of(const std::string& file, const std::string& database,
                    const DispatchTable& table, const MeasuredRun& tuned) {
  std::error_code ignored;  // a file that is not there is what opening it is about
  if (std::filesystem::equivalent(file, database, ignored)) {
    throw CommandError(ExitCode::kUsage,
                       fmt::format("--heldout {}: that is the database the tables are made of; "
                                   "sweep other shapes into another one",
                                   printable(file)));
  }
  const db::Store store = open_for_reading(file);
  const Found found = last_whole_run(store, file, table.regime);
  const db::DeviceRow device = store.device(found.run.device_id);
  const dispatch::Guard guard = guard_of(file, table, device_class(device), found.measured.toolkit);
  require_protocol(file, table, tuned, found);
  HeldOut result = held_out(table, found.measured.shapes, guard);
  result.provenance = {{"database", file},
                       {"run", std::to_string(found.run.id)},
                       {"started", found.run.started},
                       {"status", found.run.status},
                       {"config", found.run.config_path},
                       {"config_hash", found.run.config_hash},
                       {"device_uuid", device.uuid},
                       {"driver", device.driver},
                       {"toolkit", found.measured.toolkit}};
  warn_of_other_code(result, tuned, found.measured);
  return result;
}

void tell_held_out(const HeldOut& held_out) {
  if (held_out.guard != dispatch::Guard::kTuned) {
    say(fmt::format("held out: measured on the same device class, {}", name(held_out.guard)));
  }
  tell_table("rows with context", held_out.shapes);
  tell_table("one choice for every context", held_out.captured);
}

nlohmann::json held_out_counts(const HeldOut& held_out) {
  return {{"guard", name(held_out.guard)},
          {"entries", counts(held_out.shapes)},
          {"captured", counts(held_out.captured)}};
}

}  // namespace muse::tuner
