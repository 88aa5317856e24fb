// SPDX-License-Identifier: Apache-2.0
// The registry: what a variant must fulfil to be in it, and names to candidates and back.
#include "variants/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <set>
#include <stdexcept>

#include "variants/source_closures.h"

namespace muse {
namespace {

bool is_identifier(std::string_view text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !text.empty() && text.front() >= 'a' && text.front() <= 'z' &&
         std::all_of(text.begin(), text.end(), fits);
}

// The folder a variant lies in is the first stage of its span; fused: prepare and more.
std::optional<Stage> first_stage(std::string_view folder) {
  for (Stage stage : {Stage::kPrepare, Stage::kAttention, Stage::kCombine, Stage::kGate}) {
    if (folder == name(stage)) return stage;
  }
  if (folder == "fused") return Stage::kPrepare;
  return {};
}

std::string folder_of(std::string_view name) { return std::string(name.substr(0, name.find('/'))); }

std::string missing_function(const Variant& v, Stage first) {
  if (v.supports == nullptr) return "supports";
  if (v.span == nullptr) return "span";
  if (v.produces == nullptr) return "produces";
  if (v.consumes == nullptr && first != Stage::kPrepare) return "consumes";
  if (v.geometry == nullptr) return "geometry";
  if (v.bind == nullptr) return "bind";
  if (v.host_entry == nullptr && v.target.kind == TargetKind::kHost) return "host_entry";
  return {};
}

std::string broken_tunable(const Variant& variant) {
  std::set<std::string> names;
  for (const Tunable& tunable : variant.tunables) {
    const std::set<int64_t> values(tunable.values.begin(), tunable.values.end());
    if (!is_identifier(tunable.name)) {
      return fmt::format("tunable '{}' is not a name of a-z, 0-9 and _", tunable.name);
    }
    if (!names.insert(tunable.name).second) {
      return fmt::format("tunable '{}' appears twice", tunable.name);
    }
    if (values.size() != tunable.values.size()) {
      return fmt::format("tunable '{}' lists a value twice", tunable.name);
    }
    if (!values.contains(tunable.default_value)) {
      return fmt::format("tunable '{}': the default {} is not among its values", tunable.name,
                         tunable.default_value);
    }
  }
  return {};
}

std::string broken_constraint(const Variant& variant) {
  const Configuration known = default_configuration(variant);
  for (const Constraint& constraint : variant.constraints) {
    const auto expression = Expression::parse(constraint.expr);
    if (!expression) {
      return fmt::format("constraint '{}', column {}: {}", constraint.expr,
                         expression.error().offset + 1, expression.error().message);
    }
    for (const std::string& used : expression->names()) {
      if (!known.contains(used)) {
        return fmt::format("constraint '{}' names no tunable: '{}'", constraint.expr, used);
      }
    }
    if (constraint.reason.empty()) {
      return fmt::format("constraint '{}' has no reason", constraint.expr);
    }
  }
  return {};
}

std::string broken_declaration(const Variant& variant) {
  const std::string& unless = variant.declared.batch_invariant_unless;
  if (unless.empty() || default_configuration(variant).contains(unless)) return {};
  return fmt::format("batch_invariant_unless names no tunable: '{}'", unless);
}

std::string broken_entries(const Variant& variant) {
  if (variant.target.kind == TargetKind::kHost) {
    return variant.entries.empty() ? "" : "a host variant has no kernel entries";
  }
  if (variant.entries.empty()) return "a CUDA variant names its kernels in entries";
  for (const std::string& entry : variant.entries) {
    if (!is_identifier(entry)) {
      return fmt::format("entry '{}' is not a name of a-z, 0-9 and _", entry);
    }
  }
  return {};
}

std::string broken_span(const Variant& variant, std::string_view folder, Stage first) {
  const Span span = variant.span(default_configuration(variant));
  const bool fused = folder == "fused";
  const bool fits = span.first == first && span.last >= first &&
                    (!fused || span.last > Stage::kPrepare) &&
                    (folder != "prepare" || span.last == Stage::kPrepare);
  if (fits) return {};
  return fmt::format("its span {} does not fit its folder {}", name(span), folder);
}

// The first promise of registry.h that the variant does not keep.
std::string broken_contract(const Variant& variant) {
  const std::string folder = folder_of(variant.name);
  const std::optional<Stage> first = first_stage(folder);
  if (!first || variant.name.size() <= folder.size() ||
      !is_identifier(std::string_view(variant.name).substr(folder.size() + 1))) {
    return "the name is not stage/stem";
  }
  if (variant.abi < 1) return fmt::format("abi is {}; allowed: 1 and above", variant.abi);
  const std::string missing = missing_function(variant, *first);
  if (!missing.empty()) return fmt::format("function {} is missing", missing);
  std::string broken = broken_entries(variant);
  if (broken.empty()) broken = broken_tunable(variant);
  if (broken.empty()) broken = broken_constraint(variant);
  if (broken.empty()) broken = broken_declaration(variant);
  if (!broken.empty()) return broken;
  broken = check(variant, default_configuration(variant));
  if (!broken.empty()) return "the default configuration is not legal: " + broken;
  return broken_span(variant, folder, *first);
}

// Damerau and Levenshtein's, restricted: insertions, deletions, replacements and swaps of
// neighbours.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        next[j] = std::min(next[j], before[j - 2] + 1);
      }
    }
    before.swap(row);
    row.swap(next);
  }
  return row[b.size()];
}

std::string did_you_mean(const std::string& nearest) {
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

std::string unknown_tunable(const Variant& variant, std::string_view tunable) {
  std::vector<std::string> known;
  for (const Tunable& each : variant.tunables) known.push_back(each.name);
  return fmt::format("{} has no tunable '{}'{}", variant.name, tunable,
                     did_you_mean(nearest_name(tunable, known)));
}

// Adds `tunable=value`; the error's text otherwise.
std::string add_setting(const Variant& variant, std::string_view text, Configuration& values) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    return fmt::format("'{}' is not tunable=value", text);
  }
  const std::string_view tunable = text.substr(0, equals);
  const std::string_view digits = text.substr(equals + 1);
  if (std::none_of(variant.tunables.begin(), variant.tunables.end(),
                   [&](const Tunable& known) { return known.name == tunable; })) {
    return unknown_tunable(variant, tunable);
  }
  int64_t value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) {
    return fmt::format("'{}' is not an integer, for {}", digits, tunable);
  }
  if (!values.emplace(tunable, value).second) return fmt::format("{} appears twice", tunable);
  return {};
}

}  // namespace

Registry& Registry::global() {
  static Registry registry;
  return registry;
}

const Variant& Registry::add(Variant variant) {
  std::string broken = broken_contract(variant);
  if (broken.empty() && find(variant.name) != nullptr) broken = "the name is taken";
  if (!broken.empty()) {
    throw std::logic_error(fmt::format("variant '{}': {}", variant.name, broken));
  }
  return variants_.emplace_back(std::move(variant));
}

const Variant& Registry::add_stem(std::string_view stem, Variant variant) {
  if (variant.name != stem) {
    throw std::logic_error(
        fmt::format("the stem registered as '{}' names its variant '{}'", stem, variant.name));
  }
  return add(std::move(variant));
}

std::vector<const Variant*> Registry::all() const { return match("*"); }

const Variant* Registry::find(std::string_view name) const {
  for (const Variant& variant : variants_) {
    if (variant.name == name) return &variant;
  }
  return nullptr;
}

std::vector<const Variant*> Registry::match(std::string_view glob) const {
  std::vector<const Variant*> found;
  for (const Variant& variant : variants_) {
    if (glob_match(glob, variant.name)) found.push_back(&variant);
  }
  std::sort(found.begin(), found.end(),
            [](const Variant* a, const Variant* b) { return a->name < b->name; });
  return found;
}

std::string Registry::nearest(std::string_view name) const {
  std::vector<std::string> names;
  for (const Variant* variant : all()) names.push_back(variant->name);
  return nearest_name(name, names);
}

tl::expected<Candidate, std::string> Registry::parse_candidate(std::string_view text) const {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const Variant* variant = find(name);
  if (variant == nullptr) {
    return tl::unexpected(fmt::format("unknown variant '{}'{}", name, did_you_mean(nearest(name))));
  }
  if (colon == std::string_view::npos) {
    return Candidate{variant, default_configuration(*variant)};
  }
  Candidate candidate{variant, {}};
  for (size_t begin = colon + 1; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string error =
        add_setting(*variant, text.substr(begin, end - begin), candidate.configuration);
    if (!error.empty()) return tl::unexpected(fmt::format("'{}': {}", text, error));
    begin = end + 1;
  }
  std::string error = check(*variant, candidate.configuration);
  if (!error.empty()) return tl::unexpected(fmt::format("'{}': {}", text, error));
  return candidate;
}

tl::expected<Chain, std::string> Registry::parse_chain(std::string_view text) const {
  static constexpr std::string_view kJoint = " + ";
  Chain chain;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(kJoint, begin), text.size());
    if (end == text.size() && !chain.empty() && text.substr(begin) == "pdl") {
      chain.pdl = true;
      break;
    }
    auto candidate = parse_candidate(text.substr(begin, end - begin));
    if (!candidate) return tl::unexpected(candidate.error());
    chain.push_back(std::move(*candidate));
    if (end == text.size()) break;
    begin = end + kJoint.size();
  }
  return chain;
}

bool glob_match(std::string_view glob, std::string_view text) {
  // On a mismatch the last star takes one character more: linear space, no recursion.
  size_t g = 0, t = 0, star = std::string_view::npos, star_text = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      star_text = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g;
      ++t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  return glob.find_first_not_of('*', g) == std::string_view::npos;
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& options) {
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  std::string nearest;
  for (const std::string& option : options) {
    const size_t difference =
        std::max(word.size(), option.size()) - std::min(word.size(), option.size());
    if (difference >= least) continue;
    const size_t distance = edit_distance(word, option);
    if (distance >= least) continue;
    least = distance;
    nearest = option;
  }
  return nearest;
}

std::optional<std::string> code_hash(const Variant& variant) {
  for (const SourceClosure* closure = kSourceClosures; closure->name != nullptr; ++closure) {
    if (variant.name == closure->name) return closure->hash;
  }
  return {};
}

}  // namespace muse
