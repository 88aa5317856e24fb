// SPDX-License-Identifier: Apache-2.0
// Child processes by posix_spawn, each the leader of its own process group.
#include "tuner/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <system_error>
#include <thread>

namespace muse::tuner {
namespace {

using Clock = std::chrono::steady_clock;

/// Descriptors are moved up here first, so that no dup2 into the child's numbers hits a source.
constexpr int kClearOfTheChild = 64;

std::string reason(const char* what, int error) {
  return fmt::format("{}: {}", what, std::generic_category().message(error));
}

/// File actions and attributes with their lifetimes; every call's failure is kept.
class Spawner {
 public:
  Spawner() {
    note(posix_spawn_file_actions_init(&actions_));
    note(posix_spawnattr_init(&attributes_));
  }
  ~Spawner() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  Spawner(const Spawner&) = delete;
  Spawner& operator=(const Spawner&) = delete;

  void set_signals_and_group() {
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD,
                             SIGTSTP, SIGTTIN, SIGTTOU}) {
      sigaddset(&defaults, signal);
    }
    note(posix_spawnattr_setsigmask(&attributes_, &none));
    note(posix_spawnattr_setsigdefault(&attributes_, &defaults));
    note(posix_spawnattr_setpgroup(&attributes_, 0));
    note(posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
  }

  void set_descriptors(const std::vector<Fd>& inherited, int error_output) {
    note(posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDWR, 0));
    note(posix_spawn_file_actions_adddup2(&actions_, STDIN_FILENO, STDOUT_FILENO));
    note(posix_spawn_file_actions_adddup2(
        &actions_, error_output >= 0 ? error_output : STDIN_FILENO, STDERR_FILENO));
    int number = kFirstInherited;
    for (const Fd& fd : inherited) {
      note(posix_spawn_file_actions_adddup2(&actions_, fd.get(), number++));
    }
    note(posix_spawn_file_actions_addclosefrom_np(&actions_, number));
  }

  tl::expected<pid_t, std::string> start(const SpawnOptions& options) {
    std::vector<char*> argv;
    for (const std::string& argument : options.arguments) {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    pid_t child = -1;
    if (error_ == 0) {
      note(posix_spawn(&child, options.executable.c_str(), &actions_, &attributes_, argv.data(),
                       environ));
    }
    if (error_ != 0) {
      return tl::unexpected(
          reason(fmt::format("cannot start '{}'", options.executable.string()).c_str(), error_));
    }
    return child;
  }

 private:
  void note(int error) {
    if (error_ == 0) error_ = error;
  }

  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
  int error_ = 0;
};

tl::expected<Fd, std::string> moved_up(int fd) {
  Fd copy(fcntl(fd, F_DUPFD_CLOEXEC, kClearOfTheChild));
  if (!copy) return tl::unexpected(reason("cannot copy a descriptor", errno));
  return copy;
}

/// Polls `done` until it holds or the time is up; the first looks are close together, since most
/// children end at once.
template <class Done>
bool poll_until(std::chrono::milliseconds limit, const Done& done) {
  const Clock::time_point end = Clock::now() + limit;
  auto pause = std::chrono::microseconds(200);
  while (!done()) {
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(10000));
  }
  return true;
}

}  // namespace

void Fd::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

tl::expected<pid_t, std::string> spawn(const SpawnOptions& options) {
  std::vector<Fd> inherited;
  for (const int fd : options.inherited) {
    tl::expected<Fd, std::string> copy = moved_up(fd);
    if (!copy) return tl::unexpected(copy.error());
    inherited.push_back(*std::move(copy));
  }
  Fd error_output;
  if (options.error_output >= 0) {
    tl::expected<Fd, std::string> copy = moved_up(options.error_output);
    if (!copy) return tl::unexpected(copy.error());
    error_output = *std::move(copy);
  }
  Spawner spawner;
  spawner.set_signals_and_group();
  spawner.set_descriptors(inherited, error_output.get());
  return spawner.start(options);
}

std::string Ending::text() const {
  if (signal == 0) return status < 0 ? "ended" : fmt::format("exited with status {}", status);
  const char* abbreviation = sigabbrev_np(signal);
  return abbreviation ? fmt::format("ended by signal {} (SIG{})", signal, abbreviation)
                      : fmt::format("ended by signal {}", signal);
}

std::optional<Ending> try_collect(pid_t child) {
  siginfo_t info{};
  int looked;
  do {
    looked = waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT);
  } while (looked != 0 && errno == EINTR);
  if (looked != 0) return Ending{};  // somebody else has collected it: gone, and nobody knows how
  if (info.si_pid == 0) return std::nullopt;
  // While the leader is a zombie its number cannot name another group.
  kill(-child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) return Ending{.status = -1, .signal = WTERMSIG(status)};
  return Ending{.status = WEXITSTATUS(status), .signal = 0};
}

std::chrono::nanoseconds cpu_time(pid_t process) {
  clockid_t clock;
  timespec taken{};
  if (clock_getcpuclockid(process, &clock) != 0 || clock_gettime(clock, &taken) != 0) {
    return std::chrono::nanoseconds(0);
  }
  return std::chrono::seconds(taken.tv_sec) + std::chrono::nanoseconds(taken.tv_nsec);
}

std::optional<Ending> collect(pid_t child, std::chrono::milliseconds limit) {
  std::optional<Ending> ending;
  poll_until(limit, [&] { return (ending = try_collect(child)).has_value(); });
  return ending;
}

std::optional<Ending> end_child(pid_t child, std::chrono::milliseconds grace,
                                std::chrono::milliseconds limit) {
  kill(-child, SIGTERM);
  kill(-child, SIGCONT);  // a stopped process takes TERM only when it goes on
  if (const std::optional<Ending> ending = collect(child, grace)) return ending;
  kill(-child, SIGKILL);
  return collect(child, limit);
}

std::optional<int64_t> out_of_memory_kills() {
  std::ifstream counters("/proc/vmstat");
  std::string key;
  for (int64_t value; counters >> key >> value;) {
    if (key == "oom_kill") return value;
  }
  return std::nullopt;
}

}  // namespace muse::tuner
