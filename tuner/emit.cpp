// SPDX-License-Identifier: Apache-2.0
// Writes the dispatch header. Identifiers are generated; whatever comes from a user is a literal.
#include "tuner/emit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>
#include <tuple>

#include "tuner/emit_text.h"

namespace muse::tuner {
namespace {

/// Layout of the emitted header; rises when a consumer could notice.
constexpr int kFormat = 1;

/// A C++ string literal of the bytes: printable ASCII as it is, the rest as octal escapes (three
/// digits, so that a digit behind one does not join it). `?` is escaped against trigraphs.
std::string literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\' || c == '?') {
      out += {'\\', c};
    } else if (byte >= 0x20 && byte < 0x7F) {
      out += c;
    } else {
      out += fmt::format("\\{:03o}", byte);
    }
  }
  return out + '"';
}

/// Microseconds to a thousandth, with a point under any locale.
std::string microseconds(double ns, const std::string& shape) {
  std::array<char, 64> text;
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), ns / 1000, std::chars_format::fixed, 3);
  if (!std::isfinite(ns) || error != std::errc{}) {
    throw std::invalid_argument("dispatch row of " + shape + " has a time that is no number");
  }
  return {text.data(), end};
}

const char* boolean(bool value) { return value ? "true" : "false"; }

/// Candidates of a chain key; how they are launched (" + pdl" at the end) stays in the key alone.
std::vector<std::string> split_chain(const std::string& chain) {
  constexpr std::string_view kJoin = " + ";
  std::vector<std::string> parts;
  size_t from = 0;
  for (size_t at; (at = chain.find(kJoin, from)) != std::string::npos; from = at + kJoin.size()) {
    parts.push_back(chain.substr(from, at - from));
  }
  if (chain.substr(from) != "pdl") parts.push_back(chain.substr(from));
  return parts;
}

int64_t mean_context(const Shape& shape) {
  const std::vector<int64_t> all =
      contexts(shape.lengths, shape.problem.batch, shape.problem.q_len);
  int64_t sum = 0;
  for (const int64_t context : all) sum += context;
  const auto count = static_cast<int64_t>(all.size());
  return (sum + count - 1) / count;
}

/// The same order as detail::compare of the header, then the chosen one of a key first.
auto sort_key(const DispatchRow& row) {
  const Problem& p = row.shape.problem;
  return std::tuple(
      std::array<int64_t, 10>{p.num_q_heads, p.num_kv_heads, p.head_dim, p.page_size, p.q_len,
                              p.window, p.rope(), p.scaled(), p.batch, dispatch_context(row.shape)},
      -mean_context(row.shape), row.shape.lengths.profile != Profile::kUniform, key(row.shape),
      -row.run, row.pipeline, row.date, row.status, row.median_ns, row.low_ns, row.high_ns,
      row.base_median_ns);
}

std::vector<DispatchRow> sorted_rows(std::vector<DispatchRow> rows) {
  std::sort(rows.begin(), rows.end(),
            [](const DispatchRow& a, const DispatchRow& b) { return sort_key(a) < sort_key(b); });
  return rows;
}

/// The base is number 0, the others follow by key.
std::vector<std::string> pipelines_of(const DispatchTable& table) {
  std::set<std::string> others;
  for (const DispatchRow& row : table.rows) others.insert(row.pipeline);
  others.erase(table.base);
  std::vector<std::string> all{table.base};
  all.insert(all.end(), others.begin(), others.end());
  if (all.size() > 65535)
    throw std::invalid_argument("more pipelines than a dispatch row can name");
  return all;
}

std::string constants_text(const DispatchTable& table) {
  const DeviceClass& d = table.device;
  std::string out = "\n// Where the table comes from.\n";
  out += fmt::format("inline constexpr int kFormat = {};\n", kFormat);
  const std::pair<const char*, const std::string&> texts[] = {
      {"kGenerator", table.generator}, {"kRegime", table.regime},
      {"kTimer", table.timer},         {"kDriver", table.driver},
      {"kToolkit", table.toolkit},     {"kSourceHash", table.source_hash},
  };
  for (const auto& [name, text] : texts) {
    out += fmt::format("inline constexpr const char* {} = {};\n", name, literal(text));
  }
  return out + fmt::format("inline constexpr Device kDevice = {{{}, {}, {}, {}, {}, {}, {}}};\n",
                           literal(d.model), literal(d.isa), boolean(d.host), d.cc, d.sm_count,
                           d.memory_bytes, d.driver_version);
}

/// `inline constexpr Type name[] = {...}`, or a null pointer for an empty list (C++ has no array of
/// size zero); with its length beside it.
std::string list_text(std::string_view type, std::string_view name, std::string_view count,
                      const std::vector<std::string>& entries) {
  const std::string length = fmt::format("inline constexpr int {} = {};\n", count, entries.size());
  if (entries.empty()) {
    return length + fmt::format("inline constexpr const {}* {} = nullptr;\n", type, name);
  }
  return length + fmt::format("inline constexpr {} {}[] = {{\n    {},\n}};\n", type, name,
                              fmt::join(entries, ",\n    "));
}

std::string pipelines_text(const std::vector<std::string>& pipelines) {
  std::map<std::string, int> candidates;
  for (const std::string& pipeline : pipelines) {
    for (const std::string& part : split_chain(pipeline)) candidates[part] = 0;
  }
  std::vector<std::string> names;
  for (auto& [name, index] : candidates) {
    index = static_cast<int>(names.size());
    names.push_back(literal(name));
  }
  std::vector<std::string> infos;
  std::string parts_text = "\nnamespace detail {\n";
  for (size_t i = 0; i < pipelines.size(); ++i) {
    std::vector<int> parts;
    for (const std::string& part : split_chain(pipelines[i])) parts.push_back(candidates[part]);
    parts_text +=
        fmt::format("inline constexpr int kPipeline{}[] = {{{}}};\n", i, fmt::join(parts, ", "));
    infos.push_back(
        fmt::format("{{{}, {}, detail::kPipeline{}}}", literal(pipelines[i]), parts.size(), i));
  }
  return "\n" + list_text("const char*", "kCandidates", "kCandidateCount", names) + parts_text +
         "}  // namespace detail\n\n// The base is number 0.\n" +
         list_text("PipelineInfo", "kPipelines", "kPipelineCount", infos) +
         "inline constexpr Pipeline kBase{0};\n";
}

std::string row_text(const DispatchRow& row, size_t pipeline) {
  const Problem& p = row.shape.problem;
  const std::string shape = key(row.shape);
  return fmt::format(
      "{{{{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}}}, Pipeline{{{}}}, {}, {}, {}, {}, {}, {}, {}, "
      "{}}}",
      p.batch, p.q_len, p.num_q_heads, p.num_kv_heads, p.head_dim, p.page_size, p.window,
      boolean(p.rope()), boolean(p.scaled()), dispatch_context(row.shape), pipeline,
      microseconds(row.median_ns, shape), microseconds(row.low_ns, shape),
      microseconds(row.high_ns, shape), microseconds(row.base_median_ns, shape),
      literal(row.status), literal(shape), row.run, literal(row.date));
}

std::string rows_text(const DispatchTable& table, const std::vector<std::string>& pipelines) {
  std::vector<std::string> rows;
  for (const DispatchRow& row : sorted_rows(table.rows)) {
    const auto at = std::find(pipelines.begin(), pipelines.end(), row.pipeline);
    rows.push_back(row_text(row, static_cast<size_t>(at - pipelines.begin())));
  }
  return "\n// Ordered by key. Where shapes share a key the chosen one stands first (larger "
         "context as\n"
         "// measured, then uniform lengths, then shape name); the others are evidence.\n" +
         list_text("Row", "kRows", "kRowCount", rows);
}

std::string variants_text(std::vector<VariantAbi> variants) {
  std::sort(variants.begin(), variants.end(), [](const VariantAbi& a, const VariantAbi& b) {
    return std::tie(a.name, a.abi) < std::tie(b.name, b.abi);
  });
  std::vector<std::string> entries;
  for (const VariantAbi& v : variants)
    entries.push_back(fmt::format("{{{}, {}}}", literal(v.name), v.abi));
  return "\n// Argument layouts the table relies on.\n" +
         list_text("VariantAbi", "kVariants", "kVariantCount", entries);
}

}  // namespace

int64_t dispatch_context(const Shape& shape) {
  const Problem& p = shape.problem;
  const int64_t mean = mean_context(shape);
  return p.windowed() ? std::min(mean, p.window + p.q_len - 1) : mean;
}

std::string dispatch_header(const DispatchTable& table) {
  const std::vector<std::string> pipelines = pipelines_of(table);
  std::string out =
      "// SPDX-License-Identifier: Apache-2.0\n"
      "// Generated: which pipeline of kernels serves which shape, with the evidence. Do not "
      "edit.\n"
      "// C++17, no allocation, no dependency. Define MUSE_DISPATCH_SOURCE_HASH to your build's "
      "hash of\n"
      "// the kernel sources to refuse a stale table at compile time.\n"
      "#ifndef MUSE_DISPATCH_H_\n#define MUSE_DISPATCH_H_\n\n#include <cstdint>\n\n"
      "namespace muse {\nnamespace dispatch {\n";
  out += kDispatchTypes;
  out += constants_text(table);
  out += pipelines_text(pipelines);
  out += rows_text(table, pipelines);
  out += variants_text(table.variants);
  out += kDispatchLookup;
  out += "\n}  // namespace dispatch\n}  // namespace muse\n\n#endif  // MUSE_DISPATCH_H_\n";
  return out;
}

}  // namespace muse::tuner
