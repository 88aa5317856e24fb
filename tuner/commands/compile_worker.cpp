// SPDX-License-Identifier: Apache-2.0
// compile-worker: a compiler process; only the pool of compilers starts it.
#include "tuner/commands/command.h"
#include "tuner/compile.h"

namespace muse::tuner {

Command compile_worker_command() {
  return {"compile-worker", "Internal: a compiler process",
          [](CLI::App& app) {
            struct Call {
              int fd = -1, parent_pid = 0;
            };
            auto call = std::make_shared<Call>();
            app.add_option("--fd", call->fd)->required();
            app.add_option("--parent", call->parent_pid)->required();
            return [call] {
              return static_cast<ExitCode>(compile_worker_main(call->fd, call->parent_pid));
            };
          },
          true};
}

}  // namespace muse::tuner
