// SPDX-License-Identifier: Apache-2.0
// Child processes: spawn without a shell, watch, end. Knows nothing of what the child does.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace muse::tuner {

/// An open descriptor, closed at the end of its life; -1 = none.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

inline constexpr int kFirstInherited = 3;  ///< number in the child of SpawnOptions::inherited[0]

struct SpawnOptions {
  std::filesystem::path executable;
  std::vector<std::string> arguments;  ///< argv, [0] included
  std::vector<int> inherited;          ///< become 3, 4, ... in the child; nothing else is inherited
  int error_output = -1;               ///< becomes the child's stderr
};

/// Starts the child in a process group of its own, signals unblocked and at their defaults, stdin
/// and stdout at /dev/null. The error says what failed and why.
tl::expected<pid_t, std::string> spawn(const SpawnOptions& options);

/// How a child ended.
struct Ending {
  int status = -1;  ///< exit status, -1 where a signal ended it
  int signal = 0;   ///< the signal that ended it, 0 = none
  /// "exited with status 0", "ended by signal 11 (SIGSEGV)".
  std::string text() const;
};

/// Collects the child if it has ended, and kills what is left of its process group.
std::optional<Ending> try_collect(pid_t child);
/// That all threads of a process have taken so far; 0 of one that is gone.
std::chrono::nanoseconds cpu_time(pid_t process);
/// The same, waiting at most `limit`.
std::optional<Ending> collect(pid_t child, std::chrono::milliseconds limit);
/// TERM to the child's group, `grace` later KILL, `limit` later nullopt: the child cannot be ended
/// (it hangs in the kernel).
std::optional<Ending> end_child(pid_t child, std::chrono::milliseconds grace,
                                std::chrono::milliseconds limit);

/// The kernel's count of processes killed for want of memory, on the whole machine; nullopt where
/// it is not told.
std::optional<int64_t> out_of_memory_kills();

}  // namespace muse::tuner
