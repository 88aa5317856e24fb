// SPDX-License-Identifier: Apache-2.0
// version: what this binary is.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tuner/build_info.h"
#include "tuner/commands/command.h"

namespace muse::tuner {

Command version_command() {
  return {"version", "Say what this binary is", [](CLI::App& app) {
            auto json = std::make_shared<bool>(false);
            add_json(app, *json);
            return [json] {
              const BuildInfo& info = build_info();
              std::vector<std::string> targets{"host"};
              if (has_cuda_target()) targets.emplace_back("cuda");
              if (*json) {
                print_json("version", {{"muse_tune", info.version},
                                       {"revision", info.revision},
                                       {"compiler", info.compiler},
                                       {"flags", info.flags},
                                       {"build_type", info.build_type},
                                       {"targets", targets},
                                       {"database_schema", db::kSchemaVersion}});
              } else {
                print(fmt::format("muse-tune {} ({})\n{}, {}\ntargets: {}\n", info.version,
                                  info.revision, info.compiler, info.build_type,
                                  fmt::join(targets, ", ")));
              }
              return ExitCode::kOk;
            };
          }};
}

}  // namespace muse::tuner
