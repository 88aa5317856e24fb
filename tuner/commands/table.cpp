// SPDX-License-Identifier: Apache-2.0
// The one table of sub-commands.
#include "tuner/commands/command.h"

namespace muse::tuner {

const std::vector<Command>& commands() {
  static const std::vector<Command> table{
      init_command(),          doctor_command(),   list_command(),    plan_command(),
      compile_command(),       sweep_command(),    status_command(),  explain_command(),
      replay_command(),        validate_command(), emit_command(),    check_command(),
      report_command(),        export_command(),   version_command(), worker_command(),
      compile_worker_command()};
  return table;
}

}  // namespace muse::tuner
