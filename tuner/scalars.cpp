// SPDX-License-Identifier: Apache-2.0
// Own number grammar: YAML's implicit typing reads 010 as 8 and knows three spellings of NaN.
#include "tuner/scalars.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>

#include "tuner/diagnostic.h"

namespace muse::tuner {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

/// Why a text that some YAML readers take for a number is none here.
std::optional<std::string> number_fault(std::string_view text) {
  const std::string word = lower(text);
  std::string_view body = word;
  const bool plus = body.starts_with('+');
  if (plus || body.starts_with('-')) body.remove_prefix(1);
  for (const std::string_view special : {".nan", "nan", ".inf", "inf", "infinity"})
    if (body == special) return fmt::format("{} is not a finite number", in_quotes(text));
  if (body.empty() || (!is_digit(body[0]) && body[0] != '.')) return std::nullopt;
  if (plus) return fmt::format("{} has a plus sign; leave it out", in_quotes(text));
  if (body.find('_') != body.npos)
    return fmt::format("{} has a '_' between digits; leave it out", in_quotes(text));
  if (body.starts_with("0x") || body.starts_with("0o") || body.starts_with("0b"))
    return fmt::format("{} is not decimal; write decimal digits", in_quotes(text));
  if (body.size() > 1 && body[0] == '0' && is_digit(body[1]))
    return fmt::format("{} has a leading zero, which some readers take for octal; leave it out",
                       in_quotes(text));
  if (body[0] == '.') return fmt::format("{} has no digit before the point", in_quotes(text));
  return std::nullopt;
}

/// An integer as written; `value` is empty where it is beyond 2^64 - 1.
struct Written {
  bool negative = false;
  std::optional<uint64_t> value = 0;
};

void times_ten_plus(std::optional<uint64_t>& value, uint64_t digit) {
  uint64_t next = 0;
  if (!value) return;
  if (__builtin_mul_overflow(*value, uint64_t{10}, &next) ||
      __builtin_add_overflow(next, digit, &next)) {
    value.reset();
  } else {
    value = next;
  }
}

tl::expected<Written, std::string> parse_written(std::string_view text) {
  if (auto fault = number_fault(text)) return tl::unexpected(*fault);
  const auto wrong = [&] {
    return tl::unexpected(fmt::format("{} is not an integer", in_quotes(text)));
  };
  Written written;
  size_t i = 0;
  if (text.starts_with('-')) {
    written.negative = true;
    i = 1;
  }
  const size_t digits = i;
  for (; i < text.size() && is_digit(text[i]); ++i)
    times_ten_plus(written.value, static_cast<uint64_t>(text[i] - '0'));
  if (i == digits) return wrong();
  if (i == text.size()) return written;
  if (lower(text.substr(i, 1)) != "e" || i + 1 == text.size()) return wrong();
  int exponent = 0;
  for (++i; i < text.size(); ++i) {
    if (!is_digit(text[i])) return wrong();
    exponent = std::min(exponent * 10 + (text[i] - '0'), 1000);
  }
  if (written.value == uint64_t{0}) return written;
  for (; exponent > 0; --exponent) times_ten_plus(written.value, 0);
  return written;
}

std::string out_of_range(std::string_view text, std::string_view allowed) {
  return fmt::format("{} is out of range; allowed: {}", in_quotes(text), allowed);
}

/// Empty where the value lies outside of int64.
std::optional<int64_t> to_int64(const Written& written) {
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!written.value || *written.value > kMax) return std::nullopt;
  const auto magnitude = static_cast<int64_t>(*written.value);
  return written.negative ? -magnitude : magnitude;
}

/// Digits, then optionally a fraction and an exponent; the sign is gone already.
bool is_number(std::string_view text) {
  const auto skip_digits = [&] {
    const auto end = std::find_if_not(text.begin(), text.end(), is_digit);
    const auto count = static_cast<size_t>(end - text.begin());
    text.remove_prefix(count);
    return count > 0;
  };
  if (!skip_digits()) return false;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (!skip_digits()) return false;
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
    if (!skip_digits()) return false;
  }
  return text.empty();
}

}  // namespace

tl::expected<int64_t, std::string> parse_integer(std::string_view text, IntegerRange range) {
  const auto written = parse_written(text);
  if (!written) return tl::unexpected(written.error());
  const auto value = to_int64(*written);
  if (!value || *value < range.low || *value > range.high)
    return tl::unexpected(out_of_range(text, fmt::format("{} to {}", range.low, range.high)));
  return *value;
}

tl::expected<uint64_t, std::string> parse_seed(std::string_view text) {
  const auto written = parse_written(text);
  if (!written) return tl::unexpected(written.error());
  if (!written->value || (written->negative && *written->value != 0))
    return tl::unexpected(
        out_of_range(text, fmt::format("0 to {}", std::numeric_limits<uint64_t>::max())));
  return *written->value;
}

tl::expected<double, std::string> parse_number(std::string_view text, NumberRange range) {
  if (auto fault = number_fault(text)) return tl::unexpected(*fault);
  if (!is_number(text.starts_with('-') ? text.substr(1) : text))
    return tl::unexpected(fmt::format("{} is not a number", in_quotes(text)));
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool low = range.above_low ? value > range.low : value >= range.low;
  if (result.ec != std::errc{} || !low || !(value <= range.high))
    return tl::unexpected(out_of_range(
        text,
        fmt::format("{} {} to {}", range.above_low ? "above" : "from", range.low, range.high)));
  return value;
}

tl::expected<int64_t, std::string> parse_size(std::string_view text, IntegerRange range) {
  constexpr std::array<std::string_view, 5> kUnits{"", "KiB", "MiB", "GiB", "TiB"};
  if (auto fault = number_fault(text)) return tl::unexpected(*fault);
  size_t end = text.size();
  while (end > 0 && !is_digit(text[end - 1])) --end;
  const auto unit = std::find(kUnits.begin(), kUnits.end(), text.substr(end));
  if (end == 0 || unit == kUnits.end())
    return tl::unexpected(fmt::format(
        "{} is not a size; write bytes, or KiB, MiB, GiB or TiB directly behind an integer",
        in_quotes(text)));
  const auto written = parse_written(text.substr(0, end));
  if (!written) return tl::unexpected(written.error());
  const auto count = to_int64(*written);
  int64_t bytes = 0;
  const int64_t factor = int64_t{1} << (10 * (unit - kUnits.begin()));
  if (!count || __builtin_mul_overflow(*count, factor, &bytes) || bytes < range.low ||
      bytes > range.high)
    return tl::unexpected(out_of_range(text, fmt::format("{} to {} bytes", range.low, range.high)));
  return bytes;
}

tl::expected<bool, std::string> parse_switch(std::string_view text) {
  if (text == "on" || text == "true") return true;
  if (text == "off" || text == "false") return false;
  return tl::unexpected(fmt::format("{} is neither on nor off", in_quotes(text)));
}

}  // namespace muse::tuner
