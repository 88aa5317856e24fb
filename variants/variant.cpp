// SPDX-License-Identifier: Apache-2.0
// Keys, spaces and legality of configurations; whether candidates join.
#include "variants/variant.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>

namespace muse {
namespace {

std::vector<Expression> parse_constraints(const Variant& variant) {
  std::vector<Expression> parsed;
  for (const Constraint& constraint : variant.constraints) {
    auto expression = Expression::parse(constraint.expr);
    if (!expression) {
      throw std::logic_error(fmt::format("{}: constraint '{}': {}", variant.name, constraint.expr,
                                         expression.error().message));
    }
    parsed.push_back(std::move(*expression));
  }
  return parsed;
}

bool holds(const Variant& variant, const Expression& expression, const Configuration& values) {
  const auto value = expression.evaluate(values);
  if (!value) {
    throw std::logic_error(
        fmt::format("{}: constraint '{}': {}", variant.name, expression.text(), value.error()));
  }
  return *value != 0;
}

// The tunables' values by name, ordered, overrides applied.
std::map<std::string, std::set<int64_t>> axes(
    const Variant& variant, const std::map<std::string, std::vector<int64_t>>& overrides) {
  std::map<std::string, std::set<int64_t>> result;
  for (const Tunable& tunable : variant.tunables) {
    std::set<int64_t>& values = result[tunable.name];
    values.insert(tunable.values.begin(), tunable.values.end());
    const auto chosen = overrides.find(tunable.name);
    if (chosen == overrides.end()) continue;
    std::erase_if(values, [&](int64_t value) {
      return std::find(chosen->second.begin(), chosen->second.end(), value) == chosen->second.end();
    });
  }
  return result;
}

// The kind that a span which ends at this stage leaves behind.
HandoffKind produced_kind(Stage last) {
  switch (last) {
    case Stage::kPrepare:
      return HandoffKind::kQ8;
    case Stage::kAttention:
      return HandoffKind::kPartials;
    case Stage::kCombine:
      return HandoffKind::kO;
    case Stage::kGate:
      return HandoffKind::kOut;
  }
  return HandoffKind::kOut;
}

Support pair_joins(const Problem& problem, const Candidate& before, const Candidate& after) {
  const Stage last = before.span().last;
  const Stage first = after.span().first;
  if (static_cast<int>(first) != static_cast<int>(last) + 1) {
    return Support::no(fmt::format("{} ends at {} and {} starts at {}", key(before), name(last),
                                   key(after), name(first)));
  }
  const Handoff handoff = before.variant->produces(problem, before.configuration);
  if (handoff.kind != produced_kind(last)) {
    return Support::no(
        fmt::format("{} ends at {} but leaves {}", key(before), name(last), name(handoff.kind)));
  }
  const Support accepted = after.variant->consumes(problem, after.configuration, handoff);
  if (accepted.ok()) return accepted;
  return Support::no(
      fmt::format("{} does not take what {} leaves: {}", key(after), key(before), accepted.reason));
}

}  // namespace

std::string_view name(TargetKind kind) {
  switch (kind) {
    case TargetKind::kHost:
      return "host";
    case TargetKind::kCuda:
      return "cuda";
  }
  return "?";
}

std::string_view name(Precision precision) {
  switch (precision) {
    case Precision::kF32:
      return "f32";
    case Precision::kF16:
      return "f16";
    case Precision::kBf16:
      return "bf16";
    case Precision::kE4m3:
      return "e4m3";
  }
  return "?";
}

bool is_batch_invariant(const Candidate& candidate) {
  const Declared& declared = candidate.variant->declared;
  const std::string& unless = declared.batch_invariant_unless;
  return declared.batch_invariant && (unless.empty() || candidate.configuration.at(unless) == 0);
}

std::string key(const Candidate& candidate) {
  std::string text = candidate.variant->name;
  char separator = ':';
  for (const auto& [tunable, value] : candidate.configuration) {
    text += fmt::format("{}{}={}", separator, tunable, value);
    separator = ',';
  }
  return text;
}

std::string key(const Chain& chain) {
  std::string text;
  for (const Candidate& candidate : chain) {
    if (!text.empty()) text += " + ";
    text += key(candidate);
  }
  return chain.pdl ? text + " + pdl" : text;
}

Span span(const Chain& chain) { return {chain.front().span().first, chain.back().span().last}; }

Configuration default_configuration(const Variant& variant) {
  Configuration configuration;
  for (const Tunable& tunable : variant.tunables) {
    configuration[tunable.name] = tunable.default_value;
  }
  return configuration;
}

std::vector<Configuration> space(const Variant& variant,
                                 const std::map<std::string, std::vector<int64_t>>& overrides,
                                 const std::vector<Expression>& extra) {
  std::vector<Expression> constraints = parse_constraints(variant);
  constraints.insert(constraints.end(), extra.begin(), extra.end());
  std::vector<Configuration> product = {{}};
  for (const auto& [tunable, values] : axes(variant, overrides)) {
    std::vector<Configuration> longer;
    for (const Configuration& configuration : product) {
      for (int64_t value : values) {
        longer.push_back(configuration);
        longer.back()[tunable] = value;
      }
    }
    product = std::move(longer);
  }
  std::erase_if(product, [&](const Configuration& configuration) {
    return !std::all_of(constraints.begin(), constraints.end(), [&](const Expression& expression) {
      return holds(variant, expression, configuration);
    });
  });
  return product;
}

std::string check(const Variant& variant, const Configuration& configuration) {
  for (const Tunable& tunable : variant.tunables) {
    const auto found = configuration.find(tunable.name);
    if (found == configuration.end()) {
      return fmt::format("tunable '{}' has no value", tunable.name);
    }
    if (std::find(tunable.values.begin(), tunable.values.end(), found->second) ==
        tunable.values.end()) {
      return fmt::format("{} is {}; allowed: {}", tunable.name, found->second,
                         fmt::join(tunable.values, ", "));
    }
  }
  const Configuration known = default_configuration(variant);
  for (const auto& setting : configuration) {
    if (known.contains(setting.first)) continue;
    return fmt::format("{} has no tunable '{}'", variant.name, setting.first);
  }
  const std::vector<Expression> constraints = parse_constraints(variant);
  for (size_t i = 0; i < constraints.size(); ++i) {
    if (!holds(variant, constraints[i], configuration)) {
      return fmt::format("breaks '{}': {}", variant.constraints[i].expr,
                         variant.constraints[i].reason);
    }
  }
  return {};
}

Support joins(const Problem& problem, const Chain& chain) {
  for (size_t i = 1; i < chain.size(); ++i) {
    Support joined = pair_joins(problem, chain[i - 1], chain[i]);
    if (!joined.ok()) return joined;
  }
  return Support::yes();
}

}  // namespace muse
