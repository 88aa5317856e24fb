// SPDX-License-Identifier: Apache-2.0
// What the tool says: talk on stderr, data on stdout, tables, progress.
#pragma once

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/diagnostic.h"

namespace muse::tuner {

/// Something outside cannot be read or written: exit 3.
class IoError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// "muse-tune: <text>" on stderr.
void say(const std::string& text);
/// "muse-tune: error: <text>".
void say_error(const std::string& text);
/// On stdout. Throws IoError where it cannot be written, except for a closed pipe, which is no
/// fault.
void print(const std::string& text);

/// Columns aligned by width; the first row is the head. Cells that look like numbers align right.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

/// 0.58 us, 12.3 us, 4.56 ms, 1.20 s: three digits.
std::string format_ns(double ns);
/// 12 s, 3 min 20 s, 2 h 5 min.
std::string format_seconds(double seconds);

/// Progress on stderr: one line rewritten on a terminal, else a plain line every 10 s and no
/// escape.
class ProgressLine {
 public:
  explicit ProgressLine(bool enabled);
  ~ProgressLine();
  /// `fraction`: of the whole that is done.
  void update(const std::string& text, double fraction);
  /// `left_s`: how long the rest will take; nullopt where nothing is known of it.
  void show(const std::string& text, std::optional<double> left_s);
  /// Ends the rewritten line, so that other talk starts on its own.
  void clear();
  double elapsed_s() const;

 private:
  bool enabled_, terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace muse::tuner
