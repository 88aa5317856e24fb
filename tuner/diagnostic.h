// SPDX-License-Identifier: Apache-2.0
// One line about one fault in the user's input: where and what to do.
#pragma once

#include <compare>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muse::tuner {

struct Mark {
  int line = 0, column = 0;  ///< from 1, columns in bytes; 0 = the whole file
  auto operator<=>(const Mark&) const = default;
};

struct Diagnostic {
  std::string file;
  Mark mark;
  std::string message;
  /// "configs/h200.yaml:14:7: unknown key 'contxt'; did you mean 'context'?"
  std::string text() const;
};
using Diagnostics = std::vector<Diagnostic>;

/// Gathers the faults of one file, so that all are told at once.
class DiagnosticLog {
 public:
  explicit DiagnosticLog(std::string file) : file_(std::move(file)) {}
  /// A message may quote the file: control characters are made visible.
  void error(Mark mark, std::string_view message);
  bool empty() const { return diagnostics_.empty(); }
  size_t size() const { return diagnostics_.size(); }
  /// Ordered by mark, then message; each once.
  Diagnostics sorted() const;

 private:
  std::string file_;
  Diagnostics diagnostics_;
};

/// The text on one line (a newline becomes a space), control characters as \xNN: names and driver
/// messages cannot steer a terminal.
std::string printable(std::string_view text);
/// 'text', printable, cut after 60 bytes.
std::string in_quotes(std::string_view text);
/// "; did you mean 'x'?" for the nearest option; empty where none is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& options);
/// "a, b or c".
std::string any_of(const std::vector<std::string>& options);

}  // namespace muse::tuner
