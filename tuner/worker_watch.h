// SPDX-License-Identifier: Apache-2.0
// What the supervisor sees of a worker from outside: its progress page, whether it still moves, and
// the end of what it said on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "tuner/process.h"
#include "tuner/protocol.h"

namespace muse::tuner {

/// The page both sides map. Its size is sealed: a worker that shrank it would kill the supervisor
/// at its next look.
class ProgressPage {
 public:
  ProgressPage();  ///< throws std::system_error
  ~ProgressPage();
  ProgressPage(const ProgressPage&) = delete;
  ProgressPage& operator=(const ProgressPage&) = delete;

  int fd() const { return file_.get(); }
  Progress& progress() const { return *progress_; }

 private:
  Fd file_;
  Progress* progress_;
};

/// Tells a worker that works from one that stands still.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  using CpuTime = std::function<std::chrono::nanoseconds()>;

  struct Limits {
    std::chrono::milliseconds deadline;       ///< without progress while a variant's code runs
    std::chrono::milliseconds host_deadline;  ///< without progress otherwise
    std::chrono::milliseconds silence;        ///< otherwise, and without taking CPU time either
  };
  struct Exhausted {
    std::string why;      ///< how long it stood still and in what
    bool silent = false;  ///< it took no CPU time: stopped or blocked, by no variant's code
  };

  /// `cpu_time`: what the worker has taken so far. A reference may be at work for minutes without
  /// progress, but never without that.
  Patience(const Progress& progress, const Limits& limits, CpuTime cpu_time);

  /// Nullopt while there is hope.
  std::optional<Exhausted> exhausted(Clock::time_point now);
  /// How long it had shown neither progress nor CPU time at the last look.
  std::chrono::milliseconds silent_for() const { return silent_for_; }

 private:
  const Progress& progress_;
  Limits limits_;
  CpuTime cpu_time_;
  uint64_t beat_;
  std::chrono::nanoseconds cpu_;
  Clock::time_point since_, alive_;
  std::chrono::milliseconds silent_for_{0};
};

inline constexpr size_t kLastWordsBytes = 8192;

/// The last bytes of a stream of any length, in bounded memory.
class LastWords {
 public:
  void add(std::string_view bytes);
  /// At most kLastWordsBytes of it, as plain_text().
  std::string text() const;
  /// The last line that says something, short enough for a table; empty where there is none.
  std::string line() const;

 private:
  std::string bytes_;
};

}  // namespace muse::tuner
