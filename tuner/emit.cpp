// SPDX-License-Identifier: Apache-2.0
// Writes the dispatch header. Identifiers are generated; whatever comes from a user is a literal.
#include "tuner/emit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>
#include <tuple>

#include "tuner/cpp_text.h"
#include "tuner/dispatch_lookup_text.h"
#include "tuner/emit_text.h"
#include "tuner/held_out.h"
#include "tuner/records.h"

namespace muse::tuner {
namespace {

/// For the message of an assertion, in which compilers want no escapes.
std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool safe = c >= 0x20 && c < 0x7F && c != '"' && c != '\\' && c != '?';
    out += safe ? c : '_';
  }
  return out;
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

/// Of rows that share a key the chosen one first; the rest is for one order of equal tables.
auto preference(const DispatchRow& row) {
  return std::tuple(-mean_context(row.shape), row.shape.lengths.profile != Profile::kUniform,
                    key(row.shape), -row.run, row.pipeline, row.date, row.status, row.median_ns,
                    row.low_ns, row.high_ns, row.base_median_ns, row.regret_pct, row.over.size());
}

std::string constants_text(const DispatchTable& table) {
  const DeviceClass& d = table.device;
  std::string out = "\n// Where the tables come from.\n";
  const std::pair<const char*, const std::string&> texts[] = {
      {"kGenerator", table.generator}, {"kRegime", table.regime},
      {"kTimer", table.timer},         {"kDriver", table.driver},
      {"kToolkit", table.toolkit},     {"kSourceHash", table.source_hash},
  };
  for (const auto& [name, text] : texts) {
    out += fmt::format("inline constexpr const char* {} = {};\n", name, literal(text));
  }
  out += fmt::format("inline constexpr Device kDevice = {{{}, {}, {}, {}, {}, {}, {}, {}}};\n",
                     literal(d.model), literal(d.isa), boolean(d.host), d.cc, d.sm_count,
                     d.memory_bytes, d.driver_version, compiler_version(table.toolkit, d.host));
  const auto axis = [](const dispatch::Axis& a) {
    return fmt::format("{{{}, {}}}", boolean(a.exact), a.weight);
  };
  out += fmt::format(
      "\n// q_len, batch, context; the largest distance.\n"
      "inline constexpr Rules kRules = {{{}, {}, {}, {}}};\n",
      axis(table.rules.q_len), axis(table.rules.batch), axis(table.rules.context),
      table.rules.limit);
  const auto regret = [&](const char* name, const Regret& r) {
    return fmt::format(
        "inline constexpr double {0}Worst = {1};\ninline constexpr double {0}Mean = {2};\n", name,
        decimal(100 * r.worst), decimal(100 * r.mean));
  };
  return out + "\n// Time lost against the best measured of each shape, percent.\n" +
         regret("kRegretPct", table.regret) + regret("kCapturedRegretPct", table.captured_regret) +
         (table.held_out ? held_out_text(*table.held_out) : "");
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
         list_text("PipelineInfo", "kPipelines", "kPipelineCount", infos);
}

std::string key_text(const dispatch::Key& k) {
  return fmt::format("{{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}}}", k.batch, k.q_len, k.num_q_heads,
                     k.num_kv_heads, k.head_dim, k.page_size, k.window, boolean(k.rope),
                     boolean(k.scaled), k.context);
}

std::string row_text(const dispatch::Row& r) {
  return fmt::format("{{{}, Pipeline{{{}}}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}}",
                     key_text(r.key), static_cast<int>(r.pipeline), decimal(r.median_us),
                     decimal(r.low_us), decimal(r.high_us), decimal(r.base_median_us),
                     decimal(r.margin_pct), decimal(r.regret_pct), r.shapes, literal(r.status),
                     literal(r.shape), r.run, literal(r.date));
}

/// As list_text(), 16 a line.
template <class Number>
std::string numbers_text(std::string_view type, const std::string& name,
                         const std::vector<Number>& values) {
  if (values.empty()) return fmt::format("inline constexpr const {}* {} = nullptr;\n", type, name);
  std::string text = fmt::format("inline constexpr {} {}[] = {{", type, name);
  for (size_t i = 0; i < values.size(); ++i) {
    text += fmt::format("{}{},", i % 16 == 0 ? "\n    " : " ", values[i]);
  }
  return text + "\n};\n";
}

/// A table as arrays whose names start with `prefix`, all but the rows in namespace detail.
std::string table_text(const DispatchIndex& index, const std::string& prefix) {
  std::vector<std::string> rows, lines, groups;
  for (const dispatch::Row& row : index.rows) rows.push_back(row_text(row));
  for (const dispatch::Line& l : index.lines) {
    lines.push_back(fmt::format("{{{}, {}, {}, {}, {}, {}}}", l.q_len, l.batch, l.q_len_log2,
                                l.batch_log2, l.first, l.end));
  }
  for (const dispatch::Group& g : index.groups) {
    groups.push_back(fmt::format(
        "{{{{{{{}}}}}, {}, {}, {}, {}, {}, {}, {}}}", fmt::join(g.structure.field, ", "), g.first,
        g.end, g.least_context, g.most_context, g.first_choice, g.end_choice, g.first_loss));
  }
  return list_text("Row", prefix + "Rows", prefix + "RowCount", rows) + "namespace detail {\n" +
         numbers_text("std::int32_t", prefix + "ContextLog2", index.context_log2) +
         list_text("Line", prefix + "Lines", prefix + "LineCount", lines) +
         list_text("Group", prefix + "Groups", prefix + "GroupCount", groups) +
         numbers_text("std::int32_t", prefix + "Slots", index.slots) +
         numbers_text("std::uint16_t", prefix + "Choices", index.choices) +
         numbers_text("std::uint16_t", prefix + "Losses", index.losses) +
         "}  // namespace detail\n" +
         fmt::format(
             "inline constexpr Table {0}Table = {{\n    {1}, {0}Rows, {0}RowCount, "
             "detail::{0}ContextLog2, detail::{0}Lines,\n    detail::{0}Groups, "
             "detail::{0}GroupCount, detail::{0}Slots, {2}, detail::{0}Choices,\n    "
             "detail::{0}Losses}};\n",
             prefix, boolean(index.contexts), index.slot_bits);
}

std::string rows_text(const std::vector<DispatchRow>& rows, const std::string& prefix,
                      const std::vector<std::string>& pipelines, bool contexts) {
  return table_text(IndexedRows(rows, pipelines, contexts).index(), prefix);
}

/// Whether C++ names can be made of it: variant_<stage>_<stem>.
bool linkable(const std::string& name) {
  const auto plain_part = [](std::string_view part) {
    return !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    });
  };
  const size_t slash = name.find('/');
  return slash != std::string::npos && plain_part(std::string_view(name).substr(0, slash)) &&
         plain_part(std::string_view(name).substr(slash + 1));
}

/// MUSE_DISPATCH_VARIANTS; left out where a name is none that can be linked, which the consumer's
/// table.cpp refuses.
std::string linked_variants_text(const std::vector<VariantAbi>& variants) {
  std::set<std::string> names;
  for (const VariantAbi& v : variants) names.insert(v.name);
  if (!std::all_of(names.begin(), names.end(), linkable)) return "";
  std::string out =
      "\n// The same for the linker: the library's variant_<stage>_<stem> of each.\n"
      "#define MUSE_DISPATCH_VARIANTS(X)";
  for (const std::string& name : names) {
    const size_t slash = name.find('/');
    out += fmt::format(" \\\n  X({}, {})", name.substr(0, slash), name.substr(slash + 1));
  }
  return out + "\n";
}

/// Every name once.
std::string variants_text(std::vector<VariantAbi> variants) {
  const auto order = [](const VariantAbi& v) { return std::tie(v.name, v.abi, v.source_hash); };
  std::sort(variants.begin(), variants.end(),
            [&](const VariantAbi& a, const VariantAbi& b) { return order(a) < order(b); });
  std::vector<std::string> entries;
  std::string asserts;
  for (const VariantAbi& v : variants) {
    entries.push_back(
        fmt::format("{{{}, {}, {}}}", literal(v.name), v.abi, literal(v.source_hash)));
    asserts += fmt::format(
        "static_assert(detail::built_with_abi({0}, {1}),\n              \"{2}: this build lacks "
        "it, "
        "or takes other arguments than the table was tuned with (ABI {1}): sweep and emit "
        "again\");\n"
        "static_assert(detail::built_from({0}, {3}),\n              \"{2}: built from other "
        "sources "
        "than the table was tuned with: sweep and emit again\");\n",
        literal(v.name), v.abi, plain(v.name), literal(v.source_hash));
  }
  return "\n// What the tables rely on. A build that defines MUSE_BUILD_VARIANTS(X) as a list of\n"
         "// X(name, abi, source hash) is held against it; what is not listed here may differ.\n" +
         list_text("VariantAbi", "kVariants", "kVariantCount", entries) +
         linked_variants_text(variants) + std::string(kDispatchBuilt) + asserts +
         "#endif  // MUSE_BUILD_VARIANTS\n";
}

/// From its guard on: what is above is about the file in the source tree.
std::string_view lookup_text() {
  const std::string_view text = kDispatchLookup;
  return text.substr(text.find("#ifndef"));
}

/// What the header says, between its guards.
std::string header_body(const DispatchTable& table) {
  const std::vector<std::string> pipelines = named_pipelines(table);
  std::string body(lookup_text());
  body += "\nnamespace muse {\nnamespace dispatch {\n";
  body += constants_text(table);
  body += pipelines_text(pipelines);
  body +=
      "\n// Where shapes share a key the chosen one stands first (larger context as measured, "
      "then uniform\n// lengths, then shape name); the others are evidence.\n";
  body += rows_text(table.rows, "k", pipelines, true);
  body += "\n// One choice for every context.\n";
  body += rows_text(table.captured, "kCaptured", pipelines, false);
  body += kDispatchFunctions;
  body += variants_text(table.variants);
  body += "\n}  // namespace dispatch\n}  // namespace muse\n";
  return body;
}

}  // namespace

int64_t dispatch_context(const Shape& shape) {
  const Problem& p = shape.problem;
  const int64_t mean = mean_context(shape);
  return p.windowed() ? std::min(mean, p.window + p.q_len - 1) : mean;
}

dispatch::Key dispatch_key(const Shape& shape, bool contexts) {
  const Problem& p = shape.problem;
  return {
      p.batch,     p.q_len,  p.num_q_heads, p.num_kv_heads, p.head_dim,
      p.page_size, p.window, p.rope(),      p.scaled(),     contexts ? dispatch_context(shape) : 0};
}

int compiler_version(const std::string& toolkit, bool host) {
  if (host) return 0;
  const size_t digit = toolkit.find_first_of("0123456789");
  if (digit == std::string::npos) return 0;
  int major = 0, minor = 0;
  const char* const end = toolkit.data() + toolkit.size();
  const auto first = std::from_chars(toolkit.data() + digit, end, major);
  if (first.ec != std::errc{} || first.ptr == end || *first.ptr != '.') return 0;
  const auto second = std::from_chars(first.ptr + 1, end, minor);
  if (second.ec != std::errc{} || major > 1000 || minor > 99) return 0;
  return 1000 * major + 10 * minor;
}

dispatch::Rules dispatch_rules(const std::map<std::string, std::string>& axes,
                               double max_distance) {
  const auto axis = [&](const char* name) {
    const auto found = axes.find(name);
    return dispatch::Axis{found == axes.end() || found->second != "log2", 256};
  };
  return {axis("q_len"), axis("batch"), axis("context"),
          std::llround(max_distance * static_cast<double>(dispatch::kDistanceOne))};
}

double margin_pct(const DispatchRow& row) {
  return row.base_median_ns > 0 ? 100 * (1 - row.median_ns / row.base_median_ns) : 0;
}

std::vector<DispatchRow> in_preference(std::vector<DispatchRow> rows) {
  std::sort(rows.begin(), rows.end(), [](const DispatchRow& a, const DispatchRow& b) {
    return preference(a) < preference(b);
  });
  return rows;
}

std::vector<std::string> named_pipelines(const DispatchTable& table) {
  std::set<std::string> others;
  for (const std::vector<DispatchRow>* rows : {&table.rows, &table.captured}) {
    for (const DispatchRow& row : *rows) {
      others.insert(row.pipeline);
      for (const auto& [pipeline, unused] : row.losses) others.insert(pipeline);
    }
  }
  others.erase(table.base);
  std::vector<std::string> all{table.base};
  all.insert(all.end(), others.begin(), others.end());
  if (all.size() > 65535)
    throw std::invalid_argument("more pipelines than a dispatch row can name");
  return all;
}

IndexedRows::IndexedRows(const std::vector<DispatchRow>& rows,
                         const std::vector<std::string>& pipelines, bool contexts)
    : ordered_(in_preference(rows)) {
  for (const DispatchRow& row : ordered_) shapes_.push_back(key(row.shape));
  std::map<std::string, uint16_t> numbers;
  for (size_t i = 0; i < pipelines.size(); ++i) {
    numbers.emplace(pipelines[i], static_cast<uint16_t>(i));
  }
  std::vector<dispatch::Row> indexed;
  std::vector<RowLosses> losses(ordered_.size());
  for (size_t i = 0; i < ordered_.size(); ++i) {
    const DispatchRow& r = ordered_[i];
    for (const auto& [pipeline, loss] : r.losses) losses[i].emplace(numbers.at(pipeline), loss);
    indexed.push_back({.key = dispatch_key(r.shape, contexts),
                       .pipeline = dispatch::Pipeline{numbers.at(r.pipeline)},
                       .median_us = r.median_ns / 1000,
                       .low_us = r.low_ns / 1000,
                       .high_us = r.high_ns / 1000,
                       .base_median_us = r.base_median_ns / 1000,
                       .margin_pct = margin_pct(r),
                       .regret_pct = r.regret_pct,
                       .shapes = contexts ? 1 : static_cast<int>(r.over.size()),
                       .status = r.status.c_str(),
                       .shape = shapes_[i].c_str(),
                       .run = r.run,
                       .date = r.date.c_str()});
  }
  index_ = index_rows(std::move(indexed), contexts, std::move(losses));
}

std::string emit_id(const DispatchTable& table) { return hash_hex(header_body(table)); }

std::string dispatch_header(const DispatchTable& table) {
  const std::string body = header_body(table);
  return fmt::format(
             "// SPDX-License-Identifier: Apache-2.0\n"
             "// Generated: which pipeline of kernels serves which shape, with the evidence. Do "
             "not edit.\n"
             "// C++17, no allocation, no dependency.\n"
             "#ifdef MUSE_DISPATCH_H_\n"
             "#ifndef MUSE_DISPATCH_TABLE_{0}\n"
             "#error \"two dispatch tables meet in one unit: include the one that belongs to this "
             "build\"\n"
             "#endif\n"
             "#else\n"
             "#define MUSE_DISPATCH_H_\n#define MUSE_DISPATCH_TABLE_{0}\n\n"
             "#if defined(MUSE_DISPATCH_FORMAT) && MUSE_DISPATCH_FORMAT != {1}\n"
             "#error \"dispatch tables are read in another format in this unit: emit again with "
             "the "
             "muse-tune of this build\"\n"
             "#endif\n\n",
             hash_hex(body), MUSE_DISPATCH_FORMAT) +
         body + "\n#endif  // MUSE_DISPATCH_H_\n";
}

}  // namespace muse::tuner
