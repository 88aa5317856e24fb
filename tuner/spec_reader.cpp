// SPDX-License-Identifier: Apache-2.0
// The key sets of a config and how a fault in one is worded.
#include "tuner/spec_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace muse::tuner {
namespace {

struct LevelKeys {
  Level level;
  std::string_view name;
  std::vector<std::string> keys;
};

const std::vector<LevelKeys>& levels() {
  static const std::vector<LevelKeys> levels{
      {Level::kTop,
       "the top level",
       {"schema", "base", "defaults", "shapes", "variants", "pipelines", "measure", "search",
        "dispatch"}},
      {Level::kDefaults,
       "defaults",
       {"num_q_heads", "num_kv_heads", "head_dim", "page_size", "window", "rope_theta",
        "qk_scale_factor", "sm_scale", "kv_scale", "max_context", "page_order", "pool_bytes"}},
      {Level::kShape,
       "an entry of shapes",
       {"batch", "q_len", "num_q_heads", "num_kv_heads", "head_dim", "page_size", "window",
        "rope_theta", "qk_scale_factor", "sm_scale", "kv_scale", "context", "max_context",
        "page_order", "pool_bytes", "lengths", "weight", "race"}},
      {Level::kLengths,
       "lengths",
       {"profile", "context", "mean", "sigma", "rest", "values", "seed"}},
      {Level::kVariants, "variants", {"include", "tunables", "constraints"}},
      {Level::kPipelines, "pipelines", {"top_k", "pdl"}},
      {Level::kMeasure,
       "measure",
       {"regimes", "timer", "half_width_pct", "tie_pct", "switch_margin_pct", "final_rounds",
        "max_rounds", "placements", "seed"}},
      {Level::kSearch, "search", {"kind", "share_pct"}},
      {Level::kDispatch, "dispatch", {"regime", "axes", "max_distance"}},
      {Level::kAxes, "dispatch.axes", {"batch", "context", "q_len"}},
  };
  return levels;
}

const LevelKeys& keys_of(Level level) {
  return *std::find_if(levels().begin(), levels().end(),
                       [&](const LevelKeys& entry) { return entry.level == level; });
}

std::vector<std::string> levels_with(std::string_view key) {
  std::vector<std::string> names;
  for (const LevelKeys& entry : levels())
    if (std::find(entry.keys.begin(), entry.keys.end(), key) != entry.keys.end())
      names.emplace_back(entry.name);
  return names;
}

/// The nearest key of its own level; else where it would be right; else the nearest of any level.
std::string unknown_key(Level level, const std::string& key) {
  const LevelKeys& own = keys_of(level);
  const std::string what = fmt::format("unknown key {}", in_quotes(key));
  if (const auto right = levels_with(key); !right.empty())
    return fmt::format("{} in {}; it belongs in {}", what, own.name, any_of(right));
  if (const std::string hint = did_you_mean(key, own.keys); !hint.empty()) return what + hint;
  for (const LevelKeys& other : levels())
    if (const std::string hint = did_you_mean(key, other.keys); !hint.empty())
      return fmt::format("{} in {}{} That key belongs in {}", what, own.name, hint, other.name);
  return fmt::format("{} in {}; valid: {}", what, own.name, any_of(own.keys));
}

}  // namespace

Section::Section(const YamlNode& node, Level level, DiagnosticLog& log)
    : node_(node), level_(level), log_(log) {
  if (!expect(node, NodeKind::kMap, keys_of(level).name, log)) return;
  const auto& valid = keys_of(level).keys;
  for (const YamlKey& key : node.keys)
    if (std::find(valid.begin(), valid.end(), key.text) == valid.end())
      log.error(key.mark, unknown_key(level, key.text));
}

const YamlNode* Section::require(std::string_view key) const {
  const YamlNode* value = find(key);
  if (!value && node_.kind == NodeKind::kMap)
    log_.error(node_.mark, fmt::format("{} lacks the key '{}'", keys_of(level_).name, key));
  return value;
}

bool expect(const YamlNode& node, NodeKind kind, std::string_view what, DiagnosticLog& log) {
  if (node.kind == kind) return true;
  log.error(node.mark, fmt::format("{}: expected {}, got {}", what, name(kind),
                                   node.kind == NodeKind::kNull ? "null" : name(node.kind)));
  return false;
}

std::optional<std::string> read_plain(const YamlNode& node, std::string_view what,
                                      DiagnosticLog& log) {
  if (!expect(node, NodeKind::kScalar, what, log)) return std::nullopt;
  if (!node.quoted) return node.text;
  log.error(node.mark, fmt::format("{}: {} is in quotes, so it is a string; remove the quotes",
                                   what, in_quotes(node.text)));
  return std::nullopt;
}

std::optional<std::string> read_text(const YamlNode& node, std::string_view what,
                                     DiagnosticLog& log) {
  if (!expect(node, NodeKind::kScalar, what, log)) return std::nullopt;
  constexpr size_t kLongest = 1000;
  if (!node.text.empty() && node.text.size() <= kLongest) return node.text;
  log.error(node.mark, node.text.empty() ? fmt::format("{}: the text is empty", what)
                                         : fmt::format("{}: longer than {} bytes", what, kLongest));
  return std::nullopt;
}

std::optional<int64_t> read_integer(const YamlNode& node, std::string_view what, IntegerRange range,
                                    DiagnosticLog& log) {
  return read_value(node, what, log,
                    [&](std::string_view text) { return parse_integer(text, range); });
}

std::optional<double> read_number(const YamlNode& node, std::string_view what, NumberRange range,
                                  DiagnosticLog& log) {
  return read_value(node, what, log,
                    [&](std::string_view text) { return parse_number(text, range); });
}

void unknown_word(Mark mark, std::string_view what, std::string_view word,
                  const std::vector<std::string>& options, DiagnosticLog& log) {
  std::string hint = did_you_mean(word, options);
  if (hint.empty() && !options.empty()) hint = fmt::format("; valid: {}", any_of(options));
  log.error(mark, fmt::format("unknown {} {}{}", what, in_quotes(word), hint));
}

}  // namespace muse::tuner
