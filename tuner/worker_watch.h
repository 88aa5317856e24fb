// SPDX-License-Identifier: Apache-2.0
// What the supervisor sees of a worker from outside: its progress page, whether it still moves, and
// the end of what it said on stderr.
#pragma once

#include <chrono>
#include <cstdint>
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

  /// `deadline` holds while a variant's code runs, `host_deadline` otherwise.
  Patience(const Progress& progress, std::chrono::milliseconds deadline,
           std::chrono::milliseconds host_deadline);

  /// Nullopt while there is hope, else how long it stood still and in what.
  std::optional<std::string> exhausted(Clock::time_point now);

 private:
  const Progress& progress_;
  std::chrono::milliseconds deadline_, host_deadline_;
  uint64_t beat_;
  Clock::time_point since_;
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
