// SPDX-License-Identifier: Apache-2.0
// Integer expressions over tunables, as constraints write them: + - * / % comparisons && || ! ( ).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace muse {

/// A tunable's value by name; ordered, so that every print of it is canonical.
using Configuration = std::map<std::string, int64_t, std::less<>>;

/// One parsed expression. Values are int64; comparisons, && || ! give 0 or 1; && and ||
/// short-circuit. Precedence as in C, except that comparisons share one level and do not chain (a <
/// b < c).
class Expression {
 public:
  struct Error {
    size_t offset;  ///< byte in the text, from 0
    std::string message;
  };
  /// Errors: unknown character, missing operand, unbalanced parenthesis, nesting above 64, a number
  /// beyond int64, a chain of comparisons.
  static tl::expected<Expression, Error> parse(std::string_view text);

  /// Names used, sorted, each once.
  const std::vector<std::string>& names() const { return names_; }
  /// Errors: a name without value, division by zero, overflow.
  tl::expected<int64_t, std::string> evaluate(const Configuration& values) const;
  const std::string& text() const { return text_; }

 private:
  friend class ExpressionParser;
  Expression() = default;
  enum class Op : uint8_t {
    kValue,   ///< push operand
    kName,    ///< push the value of names_[operand]
    kNegate,  ///< these two work on the top
    kNot,
    kMultiply,  ///< from here to kGreaterEqual: pop two, push one
    kDivide,
    kRemainder,
    kAdd,
    kSubtract,
    kEqual,
    kNotEqual,
    kLess,
    kLessEqual,
    kGreater,
    kGreaterEqual,
    kTruth,  ///< the top becomes 0 or 1
    kAnd,    ///< top is 0: go on at operand; else pop
    kOr,     ///< top is not 0: go on at operand; else pop
  };
  struct Instruction {
    Op op;
    int64_t operand;
  };
  static tl::expected<int64_t, std::string> apply(Op op, int64_t left, int64_t right);

  std::string text_;
  std::vector<std::string> names_;
  /// For a stack machine: no recursion, however long the text.
  std::vector<Instruction> program_;
};

}  // namespace muse
