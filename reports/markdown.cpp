// SPDX-License-Identifier: Apache-2.0
// A short summary of a run as Markdown, fit for a pull-request comment.
#include <algorithm>
#include <cctype>
#include <string_view>

#include "reports/html.h"
#include "reports/report.h"
#include "reports/run_data.h"

namespace muse::reports {
namespace {

/// More rows than a reader of a comment scrolls through.
constexpr size_t kMostRows = 40;
constexpr size_t kMostCharacters = 160;
constexpr size_t kMostInCode = 400;

/// Inert in any Markdown: what could mean something is a numeric entity; cut at kMostCharacters.
std::string plain(std::string_view data) {
  std::string out;
  size_t characters = 0;
  for (const char c : readable(data)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool starts = (byte & 0xC0) != 0x80;
    if (starts && ++characters > kMostCharacters) return out + "\xE2\x80\xA6";
    if (byte >= 0x80 || std::isalnum(byte) ||
        std::string_view(" ,;()=-").find(c) != std::string_view::npos) {
      out += c;
    } else if (c == '\n' || c == '\t') {
      out += ' ';
    } else {
      out += "&#" + std::to_string(byte) + ";";
    }
  }
  return out;
}

/// A name as a code span where it can be one inside a table; a pipeline's is long.
std::string code(std::string_view name) {
  const bool simple = !name.empty() && name.size() <= kMostInCode &&
                      std::all_of(name.begin(), name.end(), [](char c) {
                        return c >= ' ' && c < 0x7F && c != '`' && c != '|' && c != '\\';
                      });
  return simple && name.front() != ' ' && name.back() != ' ' ? "`" + std::string(name) + "`"
                                                             : plain(name);
}

std::string verdict(const RunData& data) {
  std::string out;
  for (const Speedup& s : data.speedups) {
    out += "**" + times(s.geometric_mean) + "** over the base (geometric mean of " +
           std::to_string(s.shapes) + " whole pipelines, " + plain(s.regime) + "), worst " +
           times(s.worst) + " at " + code(s.worst_shape) + ".\n\n";
  }
  const Counts& c = data.counts;
  return out + std::to_string(data.shapes.size()) + " shapes, " + std::to_string(c.trials) +
         " trials: " + std::to_string(c.valid) + " measured, " + std::to_string(c.failed) +
         " failed, " + std::to_string(c.unsupported) + " unsupported, " +
         std::to_string(c.unfinished) + " unfinished. " + std::to_string(c.selections) +
         " choices: " + std::to_string(c.tied) + " tied, " + std::to_string(c.inconclusive) +
         " inconclusive, " + std::to_string(c.degraded) + " degraded.\n\n";
}

std::string winners(const RunData& data) {
  std::string out =
      "| shape | span | regime | winner | median, \xC2\xB5s | base, \xC2\xB5s | speed-up | status "
      "|\n"
      "|---|---|---|---|---:|---:|---:|---|\n";
  // Whole pipelines first: they are what is dispatched.
  size_t rows = 0;
  for (const bool whole : {true, false}) {
    for (const Choice& c : data.choices) {
      if (c.whole() != whole || ++rows > kMostRows) continue;
      const auto base = c.base.empty() ? std::nullopt : std::optional(c.row.base_median_ns);
      out += "| " + code(c.shape) + " | " + code(c.row.span) + " | " + plain(c.row.regime) + " | " +
             code(c.winner) + " | " + microseconds(c.row.median_ns) + " | " + microseconds(base) +
             " | " + times(c.speedup) + " | " + plain(c.row.status) + " |\n";
    }
  }
  if (rows > kMostRows) {
    out += "\n" + std::to_string(rows - kMostRows) + " more rows in the HTML report.\n";
  }
  return out + "\n";
}

std::string failures(const RunData& data) {
  std::string out = "| outcome | trials | reason |\n|---|---:|---|\n";
  for (size_t i = 0; i < data.failures.size() && i < kMostRows; ++i) {
    const Failure& f = data.failures[i];
    out +=
        "| " + plain(f.state) + " | " + std::to_string(f.count) + " | " + plain(f.reason) + " |\n";
  }
  if (data.failures.size() > kMostRows) {
    out += "\n" + std::to_string(data.failures.size() - kMostRows) +
           " more reasons in the HTML report.\n";
  }
  return out + "\n";
}

}  // namespace

std::string markdown_report(const db::Store& store, db::Id run) {
  const RunData data = collect(store, run);
  std::string out =
      "## Tuning report: run " + std::to_string(run) + " on " + plain(data.device.name) + "\n\n";
  for (const Banner& banner : data.banners) out += "> **" + plain(banner.text) + "**\n\n";
  out += verdict(data);
  if (!data.choices.empty()) out += winners(data);
  if (!data.failures.empty()) out += failures(data);
  return out + "Reproduce: " + code(data.run.command) + "\n";
}

}  // namespace muse::reports
