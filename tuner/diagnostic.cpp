// SPDX-License-Identifier: Apache-2.0
// How a fault in the user's input is worded.
#include "tuner/diagnostic.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "variants/registry.h"

namespace muse::tuner {
namespace {

constexpr size_t kLongestQuote = 60;
// Edit distance is quadratic and no name is longer, so a longer word is not near any.
constexpr size_t kLongestName = 100;

bool is_control(unsigned char c) { return c < 0x20 || c == 0x7F; }

}  // namespace

std::string Diagnostic::text() const {
  if (mark == Mark{}) return fmt::format("{}: {}", printable(file), message);
  return fmt::format("{}:{}:{}: {}", printable(file), mark.line, mark.column, message);
}

void DiagnosticLog::error(Mark mark, std::string_view message) {
  diagnostics_.push_back({file_, mark, printable(message)});
}

Diagnostics DiagnosticLog::sorted() const {
  const auto rank = [](const Diagnostic& d) { return std::tie(d.mark, d.message); };
  Diagnostics sorted = diagnostics_;
  std::sort(sorted.begin(), sorted.end(),
            [&](const Diagnostic& a, const Diagnostic& b) { return rank(a) < rank(b); });
  const auto last =
      std::unique(sorted.begin(), sorted.end(),
                  [&](const Diagnostic& a, const Diagnostic& b) { return rank(a) == rank(b); });
  sorted.erase(last, sorted.end());
  return sorted;
}

std::string printable(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (c == '\n') {
      out += ' ';
    } else if (is_control(c)) {
      out += fmt::format("\\x{:02x}", c);
    } else if (c == 0xC2 && next >= 0x80 && next < 0xA0) {  // C1: some terminals obey these too
      out += fmt::format("\\x{:02x}", next);
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string in_quotes(std::string_view text) {
  if (text.size() <= kLongestQuote) return fmt::format("'{}'", printable(text));
  size_t end = kLongestQuote;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return fmt::format("'{}...'", printable(text.substr(0, end)));
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& options) {
  if (word.size() > kLongestName) return "";
  const std::string nearest = nearest_name(word, options);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

std::string any_of(const std::vector<std::string>& options) {
  std::string out;
  for (size_t i = 0; i < options.size(); ++i) {
    if (i > 0) out += i + 1 == options.size() ? " or " : ", ";
    out += options[i];
  }
  return out;
}

}  // namespace muse::tuner
