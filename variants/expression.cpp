// SPDX-License-Identifier: Apache-2.0
// Parser of constraint expressions (recursive descent into a stack program) and its evaluation.
#include "variants/expression.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <optional>

namespace muse {
namespace {

constexpr int kMaxNesting = 64;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

}  // namespace

/// Grammar, loosest first: or = and {"||" and}; and = comparison {"&&" comparison};
/// comparison = sum [op sum]; sum = product {(+|-) product}; product = unary {(*|/|%) unary};
/// unary = {(-|!)} primary; primary = number | name | "(" or ")".
class ExpressionParser {
 public:
  explicit ExpressionParser(std::string_view text) : text_(text) {}

  tl::expected<Expression, Expression::Error> parse() {
    parse_or();
    if (!error_ && peek() != '\0') fail(peek() == ')' ? "')' without '('" : unexpected());
    if (error_) return tl::unexpected(*error_);
    result_.text_ = text_;
    sort_names();
    return std::move(result_);
  }

 private:
  using Op = Expression::Op;

  // The next character that is not a space; NUL at the end. A NUL inside the text is not in the
  // grammar and so reported as unexpected by whoever sees it before the end.
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    if (at_ == text_.size()) return '\0';
    return text_[at_] == '\0' ? '\1' : text_[at_];
  }

  bool accept(std::string_view token) {
    peek();
    if (error_ || !text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  void fail(std::string message) {
    if (!error_) error_ = Expression::Error{at_, std::move(message)};
  }

  std::string unexpected() {
    const char c = peek();
    if (c < ' ' || c > '~') return fmt::format("unexpected byte 0x{:02x}", uint8_t(text_[at_]));
    return fmt::format("unexpected '{}'", c);
  }

  void emit(Op op, int64_t operand = 0) { result_.program_.push_back({op, operand}); }

  // The chain `a && b && c` (or ||): each jump goes to the end of its chain, behind the last
  // kTruth.
  void parse_chain(std::string_view token, Op op, void (ExpressionParser::*operand)()) {
    (this->*operand)();
    std::vector<size_t> jumps;
    while (accept(token)) {
      emit(Op::kTruth);
      jumps.push_back(result_.program_.size());
      emit(op);
      (this->*operand)();
    }
    if (jumps.empty()) return;
    emit(Op::kTruth);
    for (size_t jump : jumps) {
      result_.program_[jump].operand = static_cast<int64_t>(result_.program_.size());
    }
  }

  void parse_or() { parse_chain("||", Op::kOr, &ExpressionParser::parse_and); }
  void parse_and() { parse_chain("&&", Op::kAnd, &ExpressionParser::parse_comparison); }

  std::optional<Op> accept_comparison() {
    if (accept("==")) return Op::kEqual;
    if (accept("!=")) return Op::kNotEqual;
    if (accept("<=")) return Op::kLessEqual;
    if (accept("<")) return Op::kLess;
    if (accept(">=")) return Op::kGreaterEqual;
    if (accept(">")) return Op::kGreater;
    return {};
  }

  void parse_comparison() {
    parse_sum();
    const std::optional<Op> op = accept_comparison();
    if (!op) return;
    parse_sum();
    emit(*op);
    peek();
    const size_t again = at_;
    if (accept_comparison()) {
      at_ = again;
      fail("comparisons do not chain; join them with &&");
    }
  }

  void parse_sum() {
    parse_product();
    while (true) {
      if (accept("+")) {
        parse_product();
        emit(Op::kAdd);
      } else if (accept("-")) {
        parse_product();
        emit(Op::kSubtract);
      } else {
        return;
      }
    }
  }

  std::optional<Op> accept_product() {
    if (accept("*")) return Op::kMultiply;
    if (accept("/")) return Op::kDivide;
    if (accept("%")) return Op::kRemainder;
    return {};
  }

  void parse_product() {
    parse_unary();
    while (const std::optional<Op> op = accept_product()) {
      parse_unary();
      emit(*op);
    }
  }

  void parse_unary() {
    if (++depth_ > kMaxNesting) {
      fail(fmt::format("nesting above {}", kMaxNesting));
    } else if (accept("-")) {
      parse_unary();
      emit(Op::kNegate);
    } else if (accept("!")) {
      parse_unary();
      emit(Op::kNot);
    } else {
      parse_primary();
    }
    --depth_;
  }

  void parse_primary() {
    const char c = peek();
    if (error_) return;
    if (is_digit(c)) {
      parse_number();
    } else if (is_name_start(c)) {
      parse_name();
    } else if (accept("(")) {
      const size_t open = at_ - 1;
      parse_or();
      if (error_ || accept(")")) return;
      if (peek() != '\0') return fail(unexpected());
      at_ = open;
      fail("'(' without ')'");
    } else {
      fail(c == '\0' ? "missing operand at the end"
                     : fmt::format("missing operand; {}", unexpected()));
    }
  }

  void parse_number() {
    int64_t value = 0;
    const char* end = text_.data() + text_.size();
    const auto result = std::from_chars(text_.data() + at_, end, value);
    if (result.ec != std::errc()) return fail("number beyond 64 bits");
    at_ = static_cast<size_t>(result.ptr - text_.data());
    if (at_ < text_.size() && is_name_start(text_[at_])) return fail(unexpected());
    emit(Op::kValue, value);
  }

  void parse_name() {
    const size_t begin = at_;
    while (at_ < text_.size() && (is_name_start(text_[at_]) || is_digit(text_[at_]))) ++at_;
    const std::string_view name = text_.substr(begin, at_ - begin);
    const auto [found, added] = ids_.try_emplace(std::string(name), ids_.size());
    emit(Op::kName, static_cast<int64_t>(found->second));
  }

  // Names got their numbers in the order of the text; the expression lists them sorted.
  void sort_names() {
    std::vector<int64_t> sorted_id(ids_.size());
    for (const auto& [name, id] : ids_) {
      sorted_id[id] = static_cast<int64_t>(result_.names_.size());
      result_.names_.push_back(name);
    }
    for (Expression::Instruction& instruction : result_.program_) {
      if (instruction.op != Op::kName) continue;
      instruction.operand = sorted_id[static_cast<size_t>(instruction.operand)];
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  std::optional<Expression::Error> error_;
  std::map<std::string, size_t, std::less<>> ids_;
  Expression result_;
};

tl::expected<Expression, Expression::Error> Expression::parse(std::string_view text) {
  return ExpressionParser(text).parse();
}

tl::expected<int64_t, std::string> Expression::apply(Op op, int64_t left, int64_t right) {
  int64_t value = 0;
  bool overflow = false;
  switch (op) {
    case Op::kMultiply:
      overflow = __builtin_mul_overflow(left, right, &value);
      break;
    case Op::kAdd:
      overflow = __builtin_add_overflow(left, right, &value);
      break;
    case Op::kSubtract:
      overflow = __builtin_sub_overflow(left, right, &value);
      break;
    case Op::kDivide:
    case Op::kRemainder:
      if (right == 0) return tl::unexpected(fmt::format("division of {} by zero", left));
      overflow = left == std::numeric_limits<int64_t>::min() && right == -1;
      if (!overflow) value = op == Op::kDivide ? left / right : left % right;
      break;
    case Op::kEqual:
      return left == right;
    case Op::kNotEqual:
      return left != right;
    case Op::kLess:
      return left < right;
    case Op::kLessEqual:
      return left <= right;
    case Op::kGreater:
      return left > right;
    case Op::kGreaterEqual:
      return left >= right;
    case Op::kNegate:
      overflow = __builtin_sub_overflow(int64_t{0}, right, &value);
      break;
    case Op::kNot:
      return right == 0;
    case Op::kTruth:
      return right != 0;
    case Op::kValue:
    case Op::kName:
    case Op::kAnd:
    case Op::kOr:
      return right;
  }
  if (overflow) return tl::unexpected(std::string("overflow of 64 bits"));
  return value;
}

tl::expected<int64_t, std::string> Expression::evaluate(const Configuration& values) const {
  std::vector<int64_t> stack;
  const auto pop = [&] {
    const int64_t top = stack.back();
    stack.pop_back();
    return top;
  };
  for (size_t at = 0; at < program_.size(); ++at) {
    const auto [op, operand] = program_[at];
    if (op == Op::kValue) {
      stack.push_back(operand);
    } else if (op == Op::kName) {
      const auto found = values.find(names_[static_cast<size_t>(operand)]);
      if (found == values.end()) {
        return tl::unexpected(
            fmt::format("'{}' has no value", names_[static_cast<size_t>(operand)]));
      }
      stack.push_back(found->second);
    } else if (op == Op::kAnd || op == Op::kOr) {
      const bool decided = (stack.back() != 0) == (op == Op::kOr);
      if (decided) {
        at = static_cast<size_t>(operand) - 1;
      } else {
        stack.pop_back();
      }
    } else {
      const bool unary = op == Op::kNegate || op == Op::kNot || op == Op::kTruth;
      const int64_t right = pop();
      const auto value = apply(op, unary ? 0 : pop(), right);
      if (!value) return value;
      stack.push_back(*value);
    }
  }
  return stack.back();
}

}  // namespace muse
