// SPDX-License-Identifier: Apache-2.0
// `lengths`: how the requests of a ragged batch get their contexts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "tuner/spec_reader.h"

namespace muse::tuner {
namespace {

constexpr IntegerRange kTokens{1, kMaxContextTokens};

const std::array<std::pair<std::string_view, Profile>, 4> kProfiles{{
    {"uniform", Profile::kUniform},
    {"lognormal", Profile::kLognormal},
    {"outlier", Profile::kOutlier},
    {"list", Profile::kList},
}};

/// The keys a profile needs besides `profile`; `seed` fits all of them.
std::vector<std::string> keys_of(Profile profile) {
  switch (profile) {
    case Profile::kUniform:
      return {"context"};
    case Profile::kLognormal:
      return {"mean", "sigma"};
    case Profile::kOutlier:
      return {"context", "rest"};
    case Profile::kList:
      return {"values"};
  }
  return {};
}

void check_profile_keys(const Section& section, const YamlNode& node, Profile profile,
                        DiagnosticLog& log) {
  const auto needed = keys_of(profile);
  for (const std::string& key : needed) section.require(key);
  for (const char* key : {"context", "mean", "sigma", "rest", "values"})
    if (section.find(key) && std::find(needed.begin(), needed.end(), key) == needed.end())
      log.error(node.key_mark(key), fmt::format("profile {} has no key '{}'; it takes {} and seed",
                                                name(profile), key, fmt::join(needed, ", ")));
}

/// Contexts may repeat, so this is no read_list().
std::vector<int64_t> read_contexts(const YamlNode& node, DiagnosticLog& log) {
  std::vector<int64_t> values;
  if (!expect(node, NodeKind::kList, "values", log)) return values;
  if (node.items.empty()) log.error(node.mark, "values: the list is empty");
  for (const YamlNode& item : node.items)
    if (const auto value = read_integer(item, "values", kTokens, log)) values.push_back(*value);
  return values;
}

}  // namespace

void read_lengths(const YamlNode& node, Lengths& lengths, DiagnosticLog& log) {
  const Section section(node, Level::kLengths, log);
  const YamlNode* profile = section.require("profile");
  const auto chosen =
      profile ? read_choice<Profile>(*profile, "profile", kProfiles, log) : std::nullopt;
  if (!chosen) return;
  lengths.profile = *chosen;
  check_profile_keys(section, node, *chosen, log);
  for (const auto& [key, target] :
       {std::pair{"context", &lengths.context}, std::pair{"mean", &lengths.context},
        std::pair{"rest", &lengths.rest}})
    if (const YamlNode* value = section.find(key))
      *target = read_integer(*value, key, kTokens, log).value_or(0);
  if (const YamlNode* sigma = section.find("sigma"))
    lengths.sigma = read_number(*sigma, "sigma", {0, 4, true}, log).value_or(0);
  if (const YamlNode* seed = section.find("seed"))
    lengths.seed = read_value(*seed, "seed", log, parse_seed).value_or(1);
  if (const YamlNode* values = section.find("values"); values && *chosen == Profile::kList) {
    lengths.list = read_contexts(*values, log);
    for (const int64_t context : lengths.list) lengths.context = std::max(lengths.context, context);
  }
}

}  // namespace muse::tuner
