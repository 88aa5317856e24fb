// SPDX-License-Identifier: Apache-2.0
// `base` and `variants`: what may run, and with which of its configurations.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "tuner/spec_reader.h"

namespace muse::tuner {
namespace {

constexpr size_t kMaxListed = 64;

const Tunable* find_tunable(const Variant& variant, std::string_view tunable) {
  for (const Tunable& candidate : variant.tunables)
    if (candidate.name == tunable) return &candidate;
  return nullptr;
}

bool has_all(const Variant& variant, const Expression& expression) {
  return std::all_of(
      expression.names().begin(), expression.names().end(),
      [&](const std::string& tunable) { return find_tunable(variant, tunable) != nullptr; });
}

std::vector<std::string> tunable_names(const std::vector<const Variant*>& variants) {
  std::set<std::string> names;
  for (const Variant* variant : variants)
    for (const Tunable& tunable : variant->tunables) names.insert(tunable.name);
  return {names.begin(), names.end()};
}

/// What a glob that matches nothing may have meant: a variant or a whole stage.
std::vector<std::string> possible_globs(const std::vector<const Variant*>& variants) {
  std::set<std::string> globs;
  for (const Variant* variant : variants) {
    globs.insert(variant->name);
    globs.insert(variant->name.substr(0, variant->name.find('/')) + "/*");
  }
  return {globs.begin(), globs.end()};
}

void read_include(const YamlNode& node, const Registry& registry, VariantRules& rules,
                  DiagnosticLog& log) {
  rules.include = read_list(node, "include", kMaxListed, log, [&](const YamlNode& item) {
    auto glob = read_text(item, "include", log);
    if (glob && registry.match(*glob).empty())
      unknown_word(item.mark, "variant", *glob, possible_globs(registry.all()), log);
    return glob;
  });
}

/// One tunable's values under one glob; `matched`: the included variants it matches.
void read_values(const YamlKey& key, const YamlNode& node,
                 const std::vector<const Variant*>& matched, TunableOverride& override,
                 DiagnosticLog& log) {
  std::set<int64_t> allowed;
  bool known = false;
  for (const Variant* variant : matched)
    if (const Tunable* tunable = find_tunable(*variant, key.text)) {
      known = true;
      allowed.insert(tunable->values.begin(), tunable->values.end());
    }
  if (!known) {
    log.error(key.mark,
              fmt::format("no variant that {} matches has a tunable {}{}", in_quotes(override.glob),
                          in_quotes(key.text), did_you_mean(key.text, tunable_names(matched))));
    return;
  }
  constexpr IntegerRange kAny{INT64_MIN, INT64_MAX};
  override.values[key.text] = read_list(node, key.text, kMaxListed, log, [&](const YamlNode& item) {
    const auto value = read_integer(item, key.text, kAny, log);
    if (value && !allowed.contains(*value))
      log.error(item.mark,
                fmt::format("{} {} is not a value that the variants are made and tested for; "
                            "allowed: {}",
                            key.text, *value, fmt::join(allowed, ", ")));
    return value;
  });
}

void read_tunables(const YamlNode& node, const Registry& registry,
                   const std::vector<const Variant*>& variants, VariantRules& rules,
                   DiagnosticLog& log) {
  if (!expect(node, NodeKind::kMap, "tunables", log)) return;
  for (size_t i = 0; i < node.keys.size(); ++i) {
    TunableOverride override{node.keys[i].text, {}, node.keys[i].mark};
    std::vector<const Variant*> matched;
    for (const Variant* variant : variants)
      if (glob_match(override.glob, variant->name)) matched.push_back(variant);
    if (matched.empty() && !registry.match(override.glob).empty()) {
      log.error(override.mark,
                fmt::format("{} matches no included variant: add it to variants.include, or leave "
                            "its tunables out",
                            in_quotes(override.glob)));
      continue;
    }
    if (matched.empty()) {
      unknown_word(override.mark, "variant", override.glob, possible_globs(variants), log);
      continue;
    }
    const YamlNode& tunables = node.items[i];
    if (!expect(tunables, NodeKind::kMap, override.glob, log)) continue;
    for (size_t k = 0; k < tunables.keys.size(); ++k)
      read_values(tunables.keys[k], tunables.items[k], matched, override, log);
    rules.tunables.push_back(std::move(override));
  }
}

/// A name that no included variant has is found by its bytes: names are whole words.
Mark mark_of_name(const YamlNode& node, const std::string& name) {
  const auto is_part = [&](size_t i) {
    return i < node.text.size() &&
           (std::isalnum(static_cast<unsigned char>(node.text[i])) != 0 || node.text[i] == '_');
  };
  size_t at = node.text.find(name);
  while (at != node.text.npos && ((at > 0 && is_part(at - 1)) || is_part(at + name.size())))
    at = node.text.find(name, at + 1);
  if (node.text_column == 0 || at == node.text.npos) return node.mark;
  return {node.mark.line, node.text_column + static_cast<int>(at)};
}

bool check_names(const YamlNode& node, const Expression& expression,
                 const std::vector<const Variant*>& variants, DiagnosticLog& log) {
  const auto known = tunable_names(variants);
  bool ok = true;
  for (const std::string& name : expression.names()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    unknown_word(mark_of_name(node, name), "tunable", name, known, log);
    ok = false;
  }
  if (!ok) return false;
  const bool applies = std::any_of(variants.begin(), variants.end(), [&](const Variant* variant) {
    return has_all(*variant, expression);
  });
  if (applies && !expression.names().empty()) return true;
  log.error(node.mark, applies ? "the constraint names no tunable"
                               : "no included variant has all tunables of the constraint");
  return false;
}

/// Every configuration it may be asked about has a value: no division by zero, no overflow.
bool check_evaluates(const YamlNode& node, const Expression& expression, const VariantRules& rules,
                     const std::vector<const Variant*>& variants, DiagnosticLog& log) {
  for (const Variant* variant : variants) {
    if (!has_all(*variant, expression)) continue;
    for (const Configuration& configuration : space(rules, *variant)) {
      const auto value = expression.evaluate(configuration);
      if (value) continue;
      log.error(node.mark, fmt::format("constraint {} of {}: {}", in_quotes(expression.text()),
                                       key(Candidate{variant, configuration}), value.error()));
      return false;
    }
  }
  return true;
}

void read_constraints(const YamlNode& node, const std::vector<const Variant*>& variants,
                      VariantRules& rules, DiagnosticLog& log) {
  // The space that each is evaluated over is the one before any of them.
  const VariantRules before = rules;
  std::vector<Expression> kept;
  read_list(node, "constraints", kMaxListed, log, [&](const YamlNode& item) {
    const auto text = read_text(item, "constraint", log);
    if (!text) return text;
    auto expression = Expression::parse(*text);
    if (!expression) {
      Mark mark = item.mark;
      if (item.text_column > 0)
        mark.column = item.text_column + static_cast<int>(expression.error().offset);
      log.error(mark,
                fmt::format("constraint {}: {}", in_quotes(*text), expression.error().message));
    } else if (check_names(item, *expression, variants, log) &&
               check_evaluates(item, *expression, before, variants, log)) {
      kept.push_back(std::move(*expression));
    }
    return text;
  });
  rules.constraints = std::move(kept);
}

}  // namespace

std::vector<const Variant*> included(const VariantRules& rules, const Registry& registry) {
  std::vector<const Variant*> kept;
  for (const Variant* variant : registry.all())
    if (std::any_of(rules.include.begin(), rules.include.end(),
                    [&](const std::string& glob) { return glob_match(glob, variant->name); }))
      kept.push_back(variant);
  return kept;
}

std::vector<Configuration> space(const VariantRules& rules, const Variant& variant) {
  std::map<std::string, std::vector<int64_t>> overrides;
  for (const TunableOverride& override : rules.tunables) {
    if (!glob_match(override.glob, variant.name)) continue;
    for (const auto& [tunable, values] : override.values)
      if (find_tunable(variant, tunable)) overrides[tunable] = values;
  }
  std::vector<Expression> constraints;
  for (const Expression& constraint : rules.constraints)
    if (has_all(variant, constraint)) constraints.push_back(constraint);
  return muse::space(variant, overrides, constraints);
}

VariantRules read_variants(const YamlNode* node, const Registry& registry, DiagnosticLog& log) {
  VariantRules rules;
  if (!node) return rules;
  const size_t before = log.size();
  const Section section(*node, Level::kVariants, log);
  if (const YamlNode* include = section.find("include"))
    read_include(*include, registry, rules, log);
  // Without a variant everything below would be unknown, too: one fault, one line.
  const auto variants = included(rules, registry);
  if (variants.empty()) return rules;
  if (const YamlNode* tunables = section.find("tunables"))
    read_tunables(*tunables, registry, variants, rules, log);
  if (const YamlNode* constraints = section.find("constraints"))
    read_constraints(*constraints, variants, rules, log);
  const bool nothing = std::all_of(variants.begin(), variants.end(), [&](const Variant* variant) {
    return space(rules, *variant).empty();
  });
  if (nothing && log.size() == before)
    log.error(section.mark(), "tunables and constraints leave no configuration of any variant");
  return rules;
}

std::vector<std::string> read_base(const YamlNode& node, const Registry& registry,
                                   DiagnosticLog& log) {
  return read_list(node, "base", kStageCount, log, [&](const YamlNode& item) {
    auto text = read_text(item, "base", log);
    if (!text) return text;
    if (const auto candidate = registry.parse_candidate(*text); !candidate)
      log.error(item.mark, candidate.error());
    return text;
  });
}

}  // namespace muse::tuner
