// SPDX-License-Identifier: Apache-2.0
// Writes to the two streams, lines up tables, words times, and redraws the line of progress.
#include "tuner/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace muse::tuner {
namespace {

constexpr auto kPlainPeriod = std::chrono::seconds(10);
constexpr auto kTerminalPeriod = std::chrono::milliseconds(200);

bool numeric(const std::string& cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) != 0 ||
                           (cell.size() > 1 && (cell[0] == '-' || cell[0] == '+') &&
                            std::isdigit(static_cast<unsigned char>(cell[1])) != 0) ||
                           cell == "-");
}

// Code points, so that a name in UTF-8 lines up.
size_t width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

void say(const std::string& text) {
  std::fputs(fmt::format("muse-tune: {}\n", printable(text)).c_str(), stderr);
}

void say_error(const std::string& text) { say("error: " + text); }

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return;
  }
  if (errno == EPIPE) return;
  throw IoError(fmt::format("standard output: {}", std::strerror(errno)));
}

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string cell = printable(row[i]);
      const std::string pad(widths[i] - std::min(widths[i], width(cell)), ' ');
      line += numeric(cell) ? pad + cell : cell + pad;
      if (i + 1 < row.size()) line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

std::string format_ns(double ns) {
  if (!std::isfinite(ns)) return "-";
  const auto [value, unit] = std::abs(ns) < 1e6   ? std::pair(ns / 1e3, "us")
                             : std::abs(ns) < 1e9 ? std::pair(ns / 1e6, "ms")
                                                  : std::pair(ns / 1e9, "s");
  const double size = std::abs(value);
  const int digits = size < 10 ? 2 : size < 100 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, digits, unit);
}

std::string format_seconds(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s % 3600 / 60);
}

ProgressLine::ProgressLine(bool enabled)
    : enabled_(enabled), start_(std::chrono::steady_clock::now()), last_(start_) {
  const char* term = std::getenv("TERM");
  terminal_ = isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

ProgressLine::~ProgressLine() { clear(); }

double ProgressLine::elapsed_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void ProgressLine::update(const std::string& text, double fraction) {
  // Early fractions say nothing about the rest.
  const bool known = fraction > 0.05 && fraction < 1;
  show(text, known ? std::optional(elapsed_s() / fraction - elapsed_s()) : std::nullopt);
}

void ProgressLine::show(const std::string& text, std::optional<double> left_s) {
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ < (terminal_ ? std::chrono::steady_clock::duration(kTerminalPeriod)
                               : std::chrono::steady_clock::duration(kPlainPeriod))) {
    return;
  }
  last_ = now;
  std::string line = fmt::format("{} | {} elapsed", printable(text), format_seconds(elapsed_s()));
  if (left_s) line += fmt::format(", about {} left", format_seconds(*left_s));
  if (terminal_) {
    std::fputs(fmt::format("\r\x1b[K{}", line.substr(0, 150)).c_str(), stderr);
    std::fflush(stderr);
    shown_ = true;
  } else {
    say(line);
  }
}

void ProgressLine::clear() {
  if (!shown_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace muse::tuner
