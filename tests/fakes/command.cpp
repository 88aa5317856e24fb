// SPDX-License-Identifier: Apache-2.0
// Forks and execs a program with its streams in files, and kills it past its limit.
#include "tests/fakes/command.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace muse::fakes {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Between fork and exec only what is safe there.
[[noreturn]] void become(char* const* argv, const char* folder, const char* out, const char* err) {
  if (*folder != '\0' && chdir(folder) != 0) _exit(126);
  const int in = open("/dev/null", O_RDONLY);
  const int o = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int e = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (in < 0 || o < 0 || e < 0) _exit(126);
  dup2(in, 0);
  dup2(o, 1);
  dup2(e, 2);
  execvp(argv[0], argv);
  _exit(127);
}

}  // namespace

RunningCommand::RunningCommand(const std::vector<std::string>& argv, const CommandOptions& options)
    : limit_s_(options.limit_s), started_s_(now_s()) {
  char name[] = "/tmp/muse-command-XXXXXX";
  if (mkdtemp(name) == nullptr) throw std::runtime_error("mkdtemp failed");
  scratch_ = name;
  std::vector<std::string> words{"env"};
  words.insert(words.end(), options.environment.begin(), options.environment.end());
  words.insert(words.end(), argv.begin(), argv.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const std::string folder = options.folder.string(), out = scratch_ / "out",
                    err = scratch_ / "err";
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) become(pointers.data(), folder.c_str(), out.c_str(), err.c_str());
}

RunningCommand::~RunningCommand() {
  if (!done_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(scratch_, ignored);
}

CommandResult RunningCommand::wait() {
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (now_s() - started_s_ > limit_s_) kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  done_ = true;
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = read_file(scratch_ / "out"),
          .err = read_file(scratch_ / "err"),
          .seconds = now_s() - started_s_};
}

CommandResult run_command(const std::vector<std::string>& argv, const CommandOptions& options) {
  return RunningCommand(argv, options).wait();
}

TemporaryFolder::TemporaryFolder() {
  char name[] = "/tmp/muse-test-XXXXXX";
  if (mkdtemp(name) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

void write_file(const std::filesystem::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  if (!out.flush()) throw std::runtime_error("cannot write " + file.string());
}

}  // namespace muse::fakes
