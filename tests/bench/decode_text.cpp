// SPDX-License-Identifier: Apache-2.0
// The figures of decode as Markdown and as JSON.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tests/bench/decode_table.h"

namespace muse::bench {
namespace {

using nlohmann::ordered_json;

std::string us(const std::optional<Timed>& timed) {
  return timed ? fmt::format("{:.2f}", timed->us) : "-";
}

std::string per(const std::optional<double>& a, const std::optional<Timed>& b) {
  return a && b ? fmt::format("{:.2f}", *a / b->us) : "-";
}

std::string figure(const Line& line) {
  if (!line.figure) return "-";
  if (line.target.ends_with('%')) return fmt::format("{:.1f} %", *line.figure * 100);
  if (line.unit == "bytes") return fmt::format("{:.0f} bytes", *line.figure);
  return fmt::format("{:.3f}{}{}", *line.figure, line.unit.empty() ? "" : " ", line.unit);
}

std::optional<double> time_of(const std::optional<Timed>& timed) {
  return timed ? std::optional(timed->us) : std::nullopt;
}

std::string shape_row(const ShapeFigures& f) {
  const double tb_per_s = f.complete ? static_cast<double>(f.kv_bytes) / f.complete->us / 1e6 : 0;
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", key(f.shape),
                     us(f.pipeline), per(f.seed_us, f.pipeline), per(f.seed_us, f.unknown_context),
                     us(f.gather), us(f.attention), us(f.complete),
                     per(time_of(f.gather), f.complete),
                     f.complete ? fmt::format("{:.2f}", tb_per_s) : "-");
}

ordered_json json_of(const std::optional<Timed>& timed) {
  if (!timed) return nullptr;
  return {{"us", timed->us}, {"what", timed->what}};
}

template <class T>
ordered_json json_of(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

}  // namespace

std::string decode_markdown(const DecodeFigures& figures) {
  std::string text = fmt::format("{}: null graph {:.2f} us, read_512MiB {:.1f} us\n\n",
                                 figures.device, figures.null_us, figures.read_us);
  text += "| what | target | reached | | of |\n|---|---|---|---|---|\n";
  for (const Line& line : decode_lines(figures)) {
    text += fmt::format("| {} | {} | {} | {} | {} |\n", line.what, line.target, figure(line),
                        name(line.verdict), line.of);
  }
  text +=
      "\n| shape | pipeline us | seed / pipeline | seed / pipeline, context unknown | gather us | "
      "attention us | complete us | gather / complete | complete TB/s |\n"
      "|---|---|---|---|---|---|---|---|---|\n";
  for (const ShapeFigures& f : figures.shapes) text += shape_row(f);
  text += "\n| shape | chosen pipeline | complete attention | gather |\n|---|---|---|---|\n";
  const auto what = [](const std::optional<Timed>& timed) { return timed ? timed->what : "-"; };
  for (const ShapeFigures& f : figures.shapes) {
    text += fmt::format("| {} | `{}` | `{}` | {} |\n", key(f.shape), what(f.pipeline),
                        what(f.complete), what(f.gather));
  }
  return text;
}

std::string decode_json(const DecodeFigures& figures) {
  ordered_json lines = ordered_json::array(), shapes = ordered_json::array();
  for (const Line& line : decode_lines(figures)) {
    lines.push_back({{"what", line.what},
                     {"target", line.target},
                     {"limit", line.limit},
                     {"at_least", line.at_least},
                     {"unit", line.unit},
                     {"figure", json_of(line.figure)},
                     {"verdict", name(line.verdict)},
                     {"of", line.of}});
  }
  for (const ShapeFigures& f : figures.shapes) {
    shapes.push_back({{"shape", key(f.shape)},
                      {"kv_bytes", f.kv_bytes},
                      {"seed_us", json_of(f.seed_us)},
                      {"pipeline", json_of(f.pipeline)},
                      {"unknown_context", json_of(f.unknown_context)},
                      {"gather", json_of(f.gather)},
                      {"attention", json_of(f.attention)},
                      {"complete", json_of(f.complete)},
                      {"spill_bytes", json_of(f.spill_bytes)}});
  }
  return ordered_json{{"device", figures.device},
                      {"null_us", figures.null_us},
                      {"read_512MiB_us", figures.read_us},
                      {"lines", lines},
                      {"shapes", shapes}}
             .dump(2) +
         "\n";
}

}  // namespace muse::bench
