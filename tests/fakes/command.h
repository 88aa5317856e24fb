// SPDX-License-Identifier: Apache-2.0
// Runs a program as a user would: argv in, exit code and both streams out.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace muse::fakes {

struct CommandResult {
  int exit_code = -1;  ///< 128 + signal where a signal ended it
  std::string out, err;
  double seconds = 0;
};

struct CommandOptions {
  std::filesystem::path folder;          ///< working directory; empty = this process's own
  std::vector<std::string> environment;  ///< "NAME=value", on top of this process's own
  double limit_s = 120;                  ///< then KILL; exit_code 137
};

CommandResult run_command(const std::vector<std::string>& argv, const CommandOptions& options = {});

/// A started program whose streams go to files in `folder`; kill it with kill(2), then wait().
class RunningCommand {
 public:
  RunningCommand(const std::vector<std::string>& argv, const CommandOptions& options);
  ~RunningCommand();  ///< KILL and reap, where it still runs
  RunningCommand(const RunningCommand&) = delete;
  RunningCommand& operator=(const RunningCommand&) = delete;
  pid_t pid() const { return pid_; }
  CommandResult wait();

 private:
  std::filesystem::path scratch_;
  pid_t pid_ = -1;
  double limit_s_, started_s_;
  bool done_ = false;
};

/// A folder of its own, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::filesystem::path& file);
void write_file(const std::filesystem::path& file, const std::string& text);

}  // namespace muse::fakes
