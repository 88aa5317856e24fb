// SPDX-License-Identifier: Apache-2.0
// worker: the measuring process; only the supervisor starts it.
#include "tuner/commands/command.h"

namespace muse::tuner {

Command worker_command() {
  return {"worker", "Internal: the measuring process",
          [](CLI::App& app) {
            struct Options {
              std::string target;
              int fd = -1, progress_fd = -1, parent = 0;
            };
            auto options = std::make_shared<Options>();
            app.add_option("--target", options->target)->required();
            app.add_option("--fd", options->fd)->required();
            app.add_option("--progress-fd", options->progress_fd)->required();
            app.add_option("--parent", options->parent)->required();
            return [options] {
              return static_cast<ExitCode>(
                  worker_main(options->target, options->fd, options->progress_fd, options->parent));
            };
          },
          true};
}

}  // namespace muse::tuner
