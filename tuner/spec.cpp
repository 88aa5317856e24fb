// SPDX-License-Identifier: Apache-2.0
// A config from its file to values; shapes and variants have their own files.
#include "tuner/spec.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <system_error>

#include "tuner/spec_reader.h"

namespace muse::tuner {
namespace {

using profiler::Regime;
using profiler::Timer;

constexpr NumberRange kPercent{0, 50, true};

template <class Value>
using Choice = std::pair<std::string_view, Value>;

const std::array<Choice<Regime>, 3> kRegimes{{
    {"cold", Regime::kCold},
    {"warm", Regime::kWarm},
    {"rotating", Regime::kRotating},
}};

const std::array<Choice<SearchKind>, 3> kSearchKinds{{
    {"exhaustive", SearchKind::kExhaustive},
    {"random", SearchKind::kRandom},
    {"guided", SearchKind::kGuided},
}};

/// nullopt inside = auto.
const std::array<Choice<std::optional<Timer>>, 4> kTimers{{
    {"cupti", Timer::kCupti},
    {"auto", std::nullopt},
    {"events", Timer::kEvents},
    {"host", Timer::kHost},
}};

const std::array<Choice<std::string>, 2> kScales{{{"log2", "log2"}, {"exact", "exact"}}};

template <class Value, class Read>
void assign(const Section& section, std::string_view key, Value& target, Read read) {
  const YamlNode* node = section.find(key);
  if (!node) return;
  if (auto value = read(*node)) target = static_cast<Value>(*value);
}

void read_schema(const Section& top, DiagnosticLog& log) {
  const YamlNode* node = top.require("schema");
  if (!node) return;
  constexpr IntegerRange kAny{0, std::numeric_limits<int64_t>::max()};
  const auto schema = read_integer(*node, "schema", kAny, log);
  if (schema && *schema != 1)
    log.error(node->mark,
              fmt::format("schema {} is unknown; this version reads schema 1", *schema));
}

PipelineRules read_pipelines(const YamlNode* node, DiagnosticLog& log) {
  PipelineRules rules;
  if (!node) return rules;
  const Section section(*node, Level::kPipelines, log);
  assign(section, "top_k", rules.top_k, [&](const YamlNode& n) {
    return read_integer(n, "top_k", {1, 64}, log);
  });
  if (const YamlNode* pdl = section.find("pdl"))
    rules.pdl = read_list(*pdl, "pdl", 2, log, [&](const YamlNode& item) {
      return read_value(item, "pdl", log, parse_switch);
    });
  return rules;
}

MeasureRules read_measure(const YamlNode* node, DiagnosticLog& log) {
  MeasureRules rules;
  if (!node) return rules;
  const Section section(*node, Level::kMeasure, log);
  if (const YamlNode* regimes = section.find("regimes"))
    rules.regimes = read_list(*regimes, "regimes", kRegimes.size(), log, [&](const YamlNode& item) {
      return read_choice<Regime>(item, "regime", kRegimes, log);
    });
  if (const YamlNode* timer = section.find("timer")) {
    const auto chosen = read_choice<std::optional<Timer>>(*timer, "timer", kTimers, log);
    if (chosen) rules.timer = *chosen;
    rules.timer_auto = chosen && !*chosen;
  }
  for (const auto& [key, target] :
       {std::pair{"half_width_pct", &rules.half_width_pct}, std::pair{"tie_pct", &rules.tie_pct},
        std::pair{"switch_margin_pct", &rules.switch_margin_pct}})
    assign(section, key, *target,
           [&, key = key](const YamlNode& n) { return read_number(n, key, kPercent, log); });
  assign(section, "final_rounds", rules.final_rounds, [&](const YamlNode& n) {
    return read_integer(n, "final_rounds", {8, 100'000}, log);
  });
  assign(section, "placements", rules.placements, [&](const YamlNode& n) {
    return read_integer(n, "placements", {1, 16}, log);
  });
  assign(section, "max_rounds", rules.max_rounds, [&](const YamlNode& n) {
    return read_integer(n, "max_rounds", {4, 100'000}, log);
  });
  assign(section, "seed", rules.seed,
         [&](const YamlNode& n) { return read_value(n, "seed", log, parse_seed); });
  return rules;
}

SearchRules read_search(const YamlNode* node, DiagnosticLog& log) {
  SearchRules rules;
  if (!node) return rules;
  const Section section(*node, Level::kSearch, log);
  assign(section, "kind", rules.kind, [&](const YamlNode& n) {
    return read_choice<SearchKind>(n, "search kind", kSearchKinds, log);
  });
  assign(section, "share_pct", rules.share_pct, [&](const YamlNode& n) {
    return read_number(n, "share_pct", {0, 100, true}, log);
  });
  return rules;
}

DispatchRules read_dispatch(const YamlNode* node, DiagnosticLog& log) {
  DispatchRules rules;
  if (!node) return rules;
  const Section section(*node, Level::kDispatch, log);
  assign(section, "regime", rules.regime,
         [&](const YamlNode& n) { return read_choice<Regime>(n, "regime", kRegimes, log); });
  if (const YamlNode* axes = section.find("axes")) {
    const Section scales(*axes, Level::kAxes, log);
    for (const char* axis : {"batch", "context", "q_len"})
      if (const YamlNode* scale = scales.find(axis))
        if (auto chosen = read_choice<std::string>(*scale, "scale", kScales, log))
          rules.axes[axis] = *chosen;
  }
  assign(section, "max_distance", rules.max_distance, [&](const YamlNode& n) {
    return read_number(n, "max_distance", {0, 64}, log);
  });
  return rules;
}

/// A dispatch table ranks by measured times only.
void check_regimes(const Section& top, const Spec& spec, DiagnosticLog& log) {
  const auto& regimes = spec.measure.regimes;
  const auto wanted = spec.dispatch.regime;
  if (regimes.empty() || std::find(regimes.begin(), regimes.end(), wanted) != regimes.end()) return;
  const YamlNode* dispatch = top.find("dispatch");
  const YamlNode* regime = dispatch ? dispatch->find("regime") : nullptr;
  const auto word = std::find_if(kRegimes.begin(), kRegimes.end(),
                                 [&](const auto& choice) { return choice.second == wanted; });
  log.error(
      regime ? regime->mark : top.find("measure")->key_mark("regimes"),
      fmt::format("dispatch.regime is {}{}, which measure.regimes does not have; add it there, "
                  "or set dispatch: {{regime: ...}} to one of them",
                  word->first, regime ? "" : " unless it is given"));
}

void read_top(const YamlNode& root, const Registry& registry, Spec& spec, DiagnosticLog& log) {
  const Section top(root, Level::kTop, log);
  if (root.kind != NodeKind::kMap) return;
  read_schema(top, log);
  if (const YamlNode* base = top.find("base")) {
    spec.base = read_base(*base, registry, log);
    spec.base_mark = base->mark;
  }
  if (const YamlNode* shapes = top.require("shapes"))
    spec.shapes = read_shapes(top.find("defaults"), *shapes, log);
  spec.variants = read_variants(top.find("variants"), registry, log);
  spec.pipelines = read_pipelines(top.find("pipelines"), log);
  spec.measure = read_measure(top.find("measure"), log);
  spec.search = read_search(top.find("search"), log);
  spec.dispatch = read_dispatch(top.find("dispatch"), log);
  check_regimes(top, spec, log);
}

std::string hash_of(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

tl::expected<std::string, std::string> read_file(const std::filesystem::path& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (status.type() == std::filesystem::file_type::not_found)
    return tl::unexpected<std::string>("no such file; `muse-tune init FILE` writes one");
  if (status.type() == std::filesystem::file_type::directory)
    return tl::unexpected<std::string>("is a folder; name a config file in it");
  // A pipe or a device could block or never end.
  if (status.type() != std::filesystem::file_type::regular)
    return tl::unexpected(
        fmt::format("cannot be read: {}", error ? error.message() : "not a regular file"));
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  std::string text(kMaxConfigBytes + 1, '\0');
  if (stream) stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!stream.is_open() || stream.bad())
    return tl::unexpected(
        fmt::format("cannot be read: {}; check its permissions", std::strerror(errno)));
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMaxConfigBytes)
    return tl::unexpected<std::string>("larger than 1 MiB; a config is small");
  return text;
}

}  // namespace

std::string_view name(SearchKind kind) {
  return std::find_if(kSearchKinds.begin(), kSearchKinds.end(),
                      [&](const auto& choice) { return choice.second == kind; })
      ->first;
}

tl::expected<Spec, Diagnostics> load_spec(const std::filesystem::path& file,
                                          const Registry& registry) {
  const auto text = read_file(file);
  if (text) return parse_spec(*text, file.string(), registry);
  return tl::unexpected(Diagnostics{{file.string(), {}, text.error()}});
}

tl::expected<Spec, Diagnostics> parse_spec(std::string_view text, const std::string& path,
                                           const Registry& registry) {
  DiagnosticLog log(path);
  Spec spec;
  spec.path = path;
  spec.text = text;
  spec.hash = hash_of(text);
  if (const auto root = read_yaml(text, log)) read_top(*root, registry, spec, log);
  if (!log.empty()) return tl::unexpected(log.sorted());
  return spec;
}

std::vector<Configuration> space(const Spec& spec, const Variant& variant) {
  return space(spec.variants, variant);
}

}  // namespace muse::tuner
