// SPDX-License-Identifier: Apache-2.0
// The targets of decode and the verdicts on them.
#include "tests/bench/decode_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace muse::bench {
namespace {

/// A figure of one shape; nullopt where something for it is missing.
using Figure = std::function<std::optional<double>(const ShapeFigures&)>;
using Wanted = std::function<bool(const Shape&)>;

/// Slower by less is a tie.
constexpr double kTie = 0.005;

bool uniform(const Shape& s, int64_t page_size) {
  return s.problem.q_len == 1 && s.problem.page_size == page_size &&
         s.lengths.profile == Profile::kUniform;
}

Wanted full(int64_t batch, int64_t context) {
  return [=](const Shape& s) {
    return uniform(s, 1) && s.problem.window == 0 && s.problem.batch == batch &&
           s.lengths.context == context;
  };
}

Wanted windowed(int64_t batch, int64_t context) {
  return [=](const Shape& s) {
    return uniform(s, 1) && s.problem.window == 2048 && s.problem.batch == batch &&
           s.lengths.context == context;
  };
}

bool one_long_among_short(const Shape& s) {
  const Lengths& l = s.lengths;
  return s.problem.q_len == 1 && s.problem.page_size == 1 && s.problem.window == 0 &&
         s.problem.batch == 128 && l.profile == Profile::kOutlier && l.context == 131072 &&
         l.rest == 512;
}

std::optional<double> ratio(const std::optional<Timed>& a, const std::optional<Timed>& b) {
  if (!a || !b) return std::nullopt;
  return a->us / b->us;
}

std::optional<double> speedup(const ShapeFigures& f, const std::optional<Timed>& ours) {
  if (!f.seed_us || !ours) return std::nullopt;
  return *f.seed_us / ours->us;
}

std::optional<double> of_gather(const ShapeFigures& f) { return ratio(f.gather, f.complete); }

const ShapeFigures* find(const DecodeFigures& figures, const Wanted& wanted) {
  const auto found = std::find_if(figures.shapes.begin(), figures.shapes.end(),
                                  [&](const ShapeFigures& f) { return wanted(f.shape); });
  return found == figures.shapes.end() ? nullptr : &*found;
}

void judge(Line& line) {
  const bool met = line.at_least ? *line.figure >= line.limit : *line.figure <= line.limit;
  line.verdict = met ? Verdict::kMet : Verdict::kMissed;
}

/// What one figure is of each of some shapes.
struct Column {
  std::vector<double> values;
  std::vector<std::string> shapes;
  size_t worst(bool at_least) const {
    const auto end = at_least ? std::min_element(values.begin(), values.end())
                              : std::max_element(values.begin(), values.end());
    return static_cast<size_t>(end - values.begin());
  }
};

Column column(const DecodeFigures& figures, const Wanted& wanted, const Figure& figure) {
  Column found;
  for (const ShapeFigures& f : figures.shapes) {
    if (!wanted(f.shape)) continue;
    if (const auto value = figure(f)) {
      found.values.push_back(*value);
      found.shapes.push_back(key(f.shape));
    }
  }
  return found;
}

/// The worst of the column, or how many shapes are missing of those that it should have.
Line worst(Line line, const Column& column, size_t expected) {
  if (!column.values.empty()) {
    const size_t at = column.worst(line.at_least);
    line.figure = column.values[at];
    line.of = column.shapes[at];
  }
  if (column.values.empty() || column.values.size() < expected) {
    line.of = fmt::format("{} of {} shapes", column.values.size(), expected);
    return line;
  }
  judge(line);
  return line;
}

Line geometric_mean(Line line, const Column& column, size_t expected) {
  double sum = 0;
  for (const double value : column.values) sum += std::log(value);
  const auto count = static_cast<double>(column.values.size());
  if (count > 0) line.figure = std::exp(sum / count);
  line.of = fmt::format("{} of {} shapes", column.values.size(), expected);
  if (count > 0 && column.values.size() >= expected) judge(line);
  return line;
}

Line at_least(std::string what, std::string target, double limit) {
  return {.what = std::move(what),
          .target = std::move(target),
          .unit = {},
          .limit = limit,
          .at_least = true,
          .figure = {},
          .of = {}};
}

Line at_most(std::string what, std::string target, double limit, std::string unit = "") {
  Line line = at_least(std::move(what), std::move(target), limit);
  line.unit = std::move(unit);
  line.at_least = false;
  return line;
}

void add_pipelines(std::vector<Line>& lines, const DecodeFigures& figures) {
  const Wanted all = [](const Shape& s) { return s.problem.q_len == 1; };
  const size_t expected = figures.seed_shapes;
  const Column known =
      column(figures, all, [](const ShapeFigures& f) { return speedup(f, f.pipeline); });
  lines.push_back(geometric_mean(
      at_least("whole pipeline against the seed's, geometric mean", "2.7 times", 2.7), known,
      expected));
  lines.push_back(
      worst(at_least("whole pipeline against the seed's, worst", "2.0 times", 2), known, expected));
  const Column unknown =
      column(figures, all, [](const ShapeFigures& f) { return speedup(f, f.unknown_context); });
  lines.push_back(geometric_mean(
      at_least("the same, one choice for every context, geometric mean", "2.5 times", 2.5), unknown,
      expected));
  const Wanted small = [](const Shape& s) {
    return uniform(s, 1) && s.problem.batch == 1 && s.problem.window == 2048;
  };
  const Column to_null =
      column(figures, small, [&](const ShapeFigures& f) -> std::optional<double> {
        if (!f.pipeline || figures.null_us <= 0) return std::nullopt;
        return f.pipeline->us / figures.null_us;
      });
  lines.push_back(worst(
      at_most("B 1, window 2048, whole pipeline to the null graph", "2.2 times", 2.2), to_null, 1));
}

void add_gathers(std::vector<Line>& lines, const DecodeFigures& figures) {
  const auto add = [&](const std::string& what, double limit, const Wanted& wanted) {
    lines.push_back(worst(at_least("attention, complete, against the gather, " + what,
                                   fmt::format("{:.0f} %", limit * 100), limit),
                          column(figures, wanted, of_gather), 1));
  };
  add("1 GB of KV", 0.95, full(128, 32768));
  add("256 MB", 0.91, full(32, 32768));
  add("64 MB", 0.85, full(8, 32768));
}

void add_combine(std::vector<Line>& lines, const DecodeFigures& figures) {
  Column share;
  for (const int64_t batch : {1, 2, 4, 8}) {
    const ShapeFigures* f = find(figures, windowed(batch, 2048));
    if (!f || !f->complete || !f->attention) continue;
    share.values.push_back(f->complete->us - f->attention->us);
    share.shapes.push_back(key(f->shape));
  }
  lines.push_back(
      worst(at_most("combine's share at B 1, 2, 4, 8, context 2048, worst", "1.5 us", 1.5, "us"),
            share, 4));
}

void add_pages(std::vector<Line>& lines, const DecodeFigures& figures) {
  Column slowdown;
  size_t expected = 0;
  for (const ShapeFigures& paged : figures.shapes) {
    if (paged.shape.problem.page_size != 64) continue;
    ++expected;
    const ShapeFigures* single = find(figures, [&](const Shape& s) {
      Shape same = paged.shape;
      same.problem.page_size = 1;
      return s == same;
    });
    if (!single) continue;
    if (const auto value = ratio(paged.pipeline, single->pipeline)) {
      slowdown.values.push_back(*value);
      slowdown.shapes.push_back(key(paged.shape));
    }
  }
  lines.push_back(worst(at_most("page_size 64 to page_size 1, whole pipeline, worst",
                                fmt::format("1, ties within {} %", kTie * 100), 1 + kTie),
                        slowdown, std::max<size_t>(expected, 1)));
}

void add_lengths(std::vector<Line>& lines, const DecodeFigures& figures) {
  Column slowdown;
  const ShapeFigures* shorter = find(figures, windowed(1, 2048));
  const ShapeFigures* longer = find(figures, windowed(1, 131072));
  if (shorter && longer) {
    if (const auto value = ratio(longer->pipeline, shorter->pipeline)) {
      slowdown = {{*value}, {key(longer->shape)}};
    }
  }
  lines.push_back(
      worst(at_most("B 1, window 2048, context 131072 to 2048, whole pipeline", "1.05 times", 1.05),
            slowdown, 1));
  lines.push_back(worst(
      at_least("attention, complete, against the gather, 131072 among 127 of 512", "80 %", 0.8),
      column(figures, one_long_among_short, of_gather), 1));
}

void add_spills(std::vector<Line>& lines, const DecodeFigures& figures) {
  const Column spills = column(
      figures, [](const Shape&) { return true; },
      [](const ShapeFigures& f) -> std::optional<double> {
        if (!f.spill_bytes) return std::nullopt;
        return static_cast<double>(*f.spill_bytes);
      });
  lines.push_back(worst(at_most("spills in kernels of chosen pipelines, worst", "none", 0, "bytes"),
                        spills, std::max<size_t>(figures.shapes.size(), 1)));
}

}  // namespace

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kMet:
      return "met";
    case Verdict::kMissed:
      return "missed";
    case Verdict::kNotMeasured:
      return "not measured";
  }
  return "";
}

std::vector<Line> decode_lines(const DecodeFigures& figures) {
  std::vector<Line> lines;
  add_pipelines(lines, figures);
  add_gathers(lines, figures);
  add_combine(lines, figures);
  add_pages(lines, figures);
  add_lengths(lines, figures);
  add_spills(lines, figures);
  return lines;
}

}  // namespace muse::bench
