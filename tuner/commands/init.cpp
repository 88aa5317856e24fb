// SPDX-License-Identifier: Apache-2.0
// init: a commented config for the device at hand.
#include <fmt/format.h>

#include <filesystem>

#include "db/atomic_file.h"
#include "tuner/commands/command.h"

namespace muse::tuner {

Command init_command() {
  return {
      "init", "Write a commented config for the device at hand", [](CLI::App& app) {
        struct Options {
          std::string file = "muse-tune.yaml", target = "auto";
          bool force = false, json = false;
        };
        auto options = std::make_shared<Options>();
        app.add_option("file", options->file, "Where to write it")->capture_default_str();
        app.add_option("--target", options->target, "auto, host or cuda:N")->capture_default_str();
        app.add_flag("--force", options->force, "Replace an existing file");
        add_json(app, options->json);
        return [options] {
          const bool host = resolve_target(options->target).host();
          if (std::filesystem::exists(options->file) && !options->force) {
            throw CommandError(
                ExitCode::kUsage,
                fmt::format("{}: exists already; --force replaces it", printable(options->file)));
          }
          db::write_atomically(options->file, starter_config(host));
          if (options->json) {
            print_json("init", {{"file", options->file}, {"target", host ? "host" : "cuda"}});
          } else {
            print(fmt::format("{}\n", options->file));
            say(fmt::format("next: muse-tune plan {0}; muse-tune sweep {0}",
                            printable(options->file)));
          }
          return ExitCode::kOk;
        };
      }};
}

}  // namespace muse::tuner
