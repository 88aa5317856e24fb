// SPDX-License-Identifier: Apache-2.0
// worker: the measuring process; only the supervisor starts it.
#include "tuner/commands/command.h"

namespace muse::tuner {

Command worker_command() {
  return {"worker", "Internal: the measuring process",
          [](CLI::App& app) {
            auto call = std::make_shared<WorkerCall>();
            app.add_option("--target", call->target)->required();
            app.add_option("--timer", call->timer)->required();
            app.add_option("--cache", call->cache)->required();
            app.add_option("--toolkit", call->toolkit)->required();
            app.add_option("--fd", call->fd)->required();
            app.add_option("--progress-fd", call->progress_fd)->required();
            app.add_option("--parent", call->parent_pid)->required();
            return [call] { return static_cast<ExitCode>(worker_main(*call)); };
          },
          true};
}

}  // namespace muse::tuner
