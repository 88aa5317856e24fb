// SPDX-License-Identifier: Apache-2.0
// One line about one fault in the user's input: where and what to do.
#pragma once

#include <compare>
#include <string>
#include <vector>

namespace muse::tuner {

struct Mark {
  int line = 0, column = 0;  ///< from 1; 0 = the whole file
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

}  // namespace muse::tuner
