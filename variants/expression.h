// SPDX-License-Identifier: Apache-2.0
// Integer expressions over tunables, as constraints write them: + - * / % comparisons && || ! ( ).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace muse {

/// A tunable's value by name; ordered, so that every print of it is canonical.
using Configuration = std::map<std::string, int64_t, std::less<>>;

/// One parsed expression. Values are int64; a comparison gives 0 or 1; && and || short-circuit.
class Expression {
 public:
  struct Error {
    size_t offset;  ///< byte in the text, from 0
    std::string message;
  };
  /// Errors: unknown character, missing operand, unbalanced parenthesis, nesting above 64, a number
  /// beyond int64.
  static tl::expected<Expression, Error> parse(std::string_view text);

  /// Names used, sorted, each once.
  const std::vector<std::string>& names() const { return names_; }
  /// Errors: a name without value, division by zero, overflow.
  tl::expected<int64_t, std::string> evaluate(const Configuration& values) const;
  const std::string& text() const { return text_; }

 private:
  struct Node;
  std::string text_;
  std::vector<std::string> names_;
  std::shared_ptr<const Node> root_;
};

}  // namespace muse
