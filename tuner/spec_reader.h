// SPDX-License-Identifier: Apache-2.0
// How the parts of a config are read: closed key sets, typed scalars, every fault into one log.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tuner/scalars.h"
#include "tuner/spec.h"
#include "tuner/yaml_reader.h"

namespace muse::tuner {

inline constexpr int64_t kMaxContextTokens = int64_t{1} << 27;

/// Where keys may stand; each has its own closed set.
enum class Level {
  kTop,
  kDefaults,
  kShape,
  kLengths,
  kVariants,
  kPipelines,
  kMeasure,
  kSearch,
  kDispatch,
  kAxes,
};

/// A mapping whose keys are known. Wrong kinds and unknown keys are told when it is made.
class Section {
 public:
  Section(const YamlNode& node, Level level, DiagnosticLog& log);
  /// The key's value, or null where the key is not given.
  const YamlNode* find(std::string_view key) const { return node_.find(key); }
  /// As find(); a missing key is a fault.
  const YamlNode* require(std::string_view key) const;
  Mark mark() const { return node_.mark; }
  Mark key_mark(std::string_view key) const { return node_.key_mark(key); }

 private:
  const YamlNode& node_;
  Level level_;
  DiagnosticLog& log_;
};

/// Tells the fault and returns false where the node is of another kind.
bool expect(const YamlNode& node, NodeKind kind, std::string_view what, DiagnosticLog& log);

/// A scalar's text that stands for a number or a switch: not null, not quoted.
std::optional<std::string> read_plain(const YamlNode& node, std::string_view what,
                                      DiagnosticLog& log);
/// A name or expression, quoted or not; not null, not empty.
std::optional<std::string> read_text(const YamlNode& node, std::string_view what,
                                     DiagnosticLog& log);

/// The value of a plain scalar by one of the parsers of scalars.h.
template <class Parse>
auto read_value(const YamlNode& node, std::string_view what, DiagnosticLog& log, Parse parse)
    -> std::optional<typename decltype(parse(std::string_view{}))::value_type> {
  const auto text = read_plain(node, what, log);
  if (!text) return std::nullopt;
  auto value = parse(std::string_view(*text));
  if (value) return *value;
  log.error(node.mark, std::string(what) + ": " + value.error());
  return std::nullopt;
}

std::optional<int64_t> read_integer(const YamlNode& node, std::string_view what, IntegerRange range,
                                    DiagnosticLog& log);
std::optional<double> read_number(const YamlNode& node, std::string_view what, NumberRange range,
                                  DiagnosticLog& log);

/// Tells "unknown WHAT 'word'", the nearest option or all of them.
void unknown_word(Mark mark, std::string_view what, std::string_view word,
                  const std::vector<std::string>& options, DiagnosticLog& log);

/// One of a few words.
template <class Value>
std::optional<Value> read_choice(const YamlNode& node, std::string_view what,
                                 std::span<const std::pair<std::string_view, Value>> choices,
                                 DiagnosticLog& log) {
  const auto text = read_text(node, what, log);
  if (!text) return std::nullopt;
  std::vector<std::string> options;
  for (const auto& [word, value] : choices) {
    if (word == *text) return value;
    options.emplace_back(word);
  }
  unknown_word(node.mark, what, *text, options, log);
  return std::nullopt;
}

/// A list with at least one and at most `limit` items, each read by `read` (optional); items that
/// compare equal are told. Empty where anything was wrong.
template <class Read>
auto read_list(const YamlNode& node, std::string_view what, size_t limit, DiagnosticLog& log,
               Read read) {
  using Value = typename decltype(read(node))::value_type;
  std::vector<Value> values;
  if (!expect(node, NodeKind::kList, what, log)) return values;
  if (node.items.empty() || node.items.size() > limit) {
    log.error(node.mark,
              std::string(what) + ": " +
                  (node.items.empty() ? "the list is empty"
                                      : "more than " + std::to_string(limit) + " items"));
    return values;
  }
  std::set<Value> seen;
  for (const YamlNode& item : node.items) {
    auto value = read(item);
    if (!value) continue;
    if (!seen.insert(*value).second)
      log.error(item.mark, std::string(what) + ": " + in_quotes(item.text) + " is given twice");
    values.push_back(std::move(*value));
  }
  return values;
}

// The parts of a config, one file each.

/// spec_shapes.cpp: `defaults` may be null. Grids expanded in file order.
std::vector<ShapeEntry> read_shapes(const YamlNode* defaults, const YamlNode& shapes,
                                    DiagnosticLog& log);

/// spec_lengths.cpp.
void read_lengths(const YamlNode& node, Lengths& lengths, DiagnosticLog& log);

/// spec_variants.cpp: `node` may be null. Also checks that anything is left to try.
VariantRules read_variants(const YamlNode* node, const Registry& registry, DiagnosticLog& log);
std::vector<std::string> read_base(const YamlNode& node, const Registry& registry,
                                   DiagnosticLog& log);
/// The variants that `include` keeps, ordered by name.
std::vector<const Variant*> included(const VariantRules& rules, const Registry& registry);
std::vector<Configuration> space(const VariantRules& rules, const Variant& variant);

}  // namespace muse::tuner
