// SPDX-License-Identifier: Apache-2.0
// Folders of --incumbent: read, refused, and what of them does not race.
#include "tuner/commands/incumbents.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tuner/check_run.h"
#include "tuner/commands/command.h"
#include "tuner/commands/emitted.h"
#include "tuner/held_out.h"
#include "tuner/step_races.h"

namespace muse::tuner {

std::vector<DispatchTable> read_incumbents(const std::vector<std::string>& folders) {
  std::vector<DispatchTable> tables;
  for (const std::string& folder : folders) {
    tables.push_back(read_emitted(folder));
    if (const auto chains = table_chains(tables.back(), Registry::global()); !chains) {
      throw CommandError(
          ExitCode::kNotComparable,
          fmt::format(
              "--incumbent {}: the table names a pipeline that this binary does not have: {}",
              printable(folder), chains.error()));
    }
  }
  return tables;
}

std::vector<Incumbent> incumbents(const std::vector<std::string>& folders,
                                  std::vector<DispatchTable> tables, const Hello& hello) {
  std::vector<Incumbent> all;
  for (size_t i = 0; i < tables.size(); ++i) {
    DispatchTable& table = tables[i];
    const dispatch::Guard guard = dispatch::guard(lookup_device(table.device, table.toolkit),
                                                  lookup_device(hello.device_class, hello.toolkit));
    if (guard == dispatch::Guard::kForeign) {
      throw CommandError(
          ExitCode::kNotComparable,
          fmt::format("--incumbent {}: the table is of another device class ({}) "
                      "than this one ({}), and answers nothing here",
                      printable(folders[i]), text(table.device), text(hello.device_class)));
    }
    all.push_back({std::move(table), guard});
  }
  return all;
}

void say_left_out(const std::vector<std::string>& folders, const std::vector<Incumbent>& incumbents,
                  const Plan& plan, const Spec& spec, bool filtered) {
  for (size_t i = 0; i < incumbents.size(); ++i) {
    for (const LeftOut& one : left_out(incumbents[i], plan, spec)) {
      say(fmt::format("warning: --incumbent {}: '{}' does not race: {}{} leaves out {}",
                      printable(folders[i]), one.pipeline, printable(spec.path),
                      filtered ? " with --stage or --variant" : "",
                      fmt::join(one.candidates, ", ")));
    }
  }
}

}  // namespace muse::tuner
