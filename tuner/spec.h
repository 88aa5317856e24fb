// SPDX-License-Identifier: Apache-2.0
// The config file as values: strict YAML in, every error at once with file, line and column.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "profiler/sampler.h"
#include "tuner/diagnostic.h"
#include "variants/lengths.h"
#include "variants/registry.h"

namespace muse::tuner {

/// Who races on a shape.
enum class RaceAmong : uint8_t {
  kAll,       ///< every candidate of each span, then pipelines of the best
  kSiblings,  ///< pipelines that were good on siblings where all race, and the base
};

struct ShapeEntry {
  Shape shape;
  double weight = 1;
  Mark mark;  ///< of the entry it was expanded from
  RaceAmong race = RaceAmong::kAll;
  Mark race_mark;  ///< of the value of `race`, where it is given
};
/// Those that race among siblings and have none among these where all race.
std::vector<ShapeEntry> without_siblings(const std::vector<ShapeEntry>& entries);

struct TunableOverride {
  std::string glob;  ///< of variant names
  std::map<std::string, std::vector<int64_t>> values;
  Mark mark;
};

struct VariantRules {
  std::vector<std::string> include{"*"};
  std::vector<TunableOverride> tunables;
  std::vector<Expression> constraints;  ///< applied to variants that have all tunables they name
};

struct PipelineRules {
  int top_k = 3;
  std::vector<bool> pdl{false};  ///< the values to try; host pipelines ignore it
};

struct MeasureRules {
  std::vector<profiler::Regime> regimes{profiler::Regime::kCold};
  std::optional<profiler::Timer> timer;  ///< unset: the target's own (cupti, host)
  bool timer_auto = false;               ///< "auto": events where CUPTI cannot start
  double half_width_pct = 0.5;
  double tie_pct = 0.5;
  double switch_margin_pct = 1.0;
  int final_rounds = 32;  ///< at least, among the finalists
  int max_rounds = 768;
  int placements = 8;  ///< in memory, in which a race's rounds take turns
  uint64_t seed = 1;
};

enum class SearchKind : uint8_t { kExhaustive, kRandom, kGuided };
std::string_view name(SearchKind kind);  ///< exhaustive, random, guided

struct SearchRules {
  SearchKind kind = SearchKind::kExhaustive;
  double share_pct = 15;  ///< of a span's candidates that are measured; exhaustive: all
};

struct DispatchRules {
  profiler::Regime regime = profiler::Regime::kCold;
  std::map<std::string, std::string> axes{{"batch", "log2"}, {"context", "log2"}};
  double max_distance = 1.6;
};

struct Spec {
  std::string path;                              ///< as given
  std::string text;                              ///< the file's bytes
  std::string hash;                              ///< of the text
  std::optional<std::vector<std::string>> base;  ///< candidate keys as written
  Mark base_mark;                                ///< of the list, where there is one
  /// Expanded, in file order, each once; none without siblings.
  std::vector<ShapeEntry> shapes;
  VariantRules variants;
  PipelineRules pipelines;
  MeasureRules measure;
  SearchRules search;
  DispatchRules dispatch;
};

/// Reads and checks the whole file. On failure at least one diagnostic, ordered by mark. A missing
/// file, a folder and a file above 1 MiB are diagnostics too.
tl::expected<Spec, Diagnostics> load_spec(const std::filesystem::path& file,
                                          const Registry& registry);
/// The same for text already read; `path` is for messages.
tl::expected<Spec, Diagnostics> parse_spec(std::string_view text, const std::string& path,
                                           const Registry& registry);

/// The space of a variant under the spec's overrides and constraints. Overrides narrow: of a
/// tunable's own values those remain that the last matching override lists. Empty where nothing
/// remains.
std::vector<Configuration> space(const Spec& spec, const Variant& variant);

/// A commented config for this device, valid for load_spec; `host` chooses the sizes.
std::string starter_config(bool host);

}  // namespace muse::tuner
