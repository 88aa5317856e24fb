// SPDX-License-Identifier: Apache-2.0
// From a config to the list of what to measure, reuse and skip.
#include "tuner/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <tuple>

#include "tuner/diagnostic.h"
#include "tuner/shape_kind.h"

namespace muse::tuner {
namespace {

using Failure = tl::unexpected<std::string>;

TargetKind target_of(const DeviceClass& device) {
  return device.host ? TargetKind::kHost : TargetKind::kCuda;
}

bool matches(const std::string& glob, std::string_view text) {
  return glob.empty() || glob_match(glob, text);
}

/// The first stage after the chain; kStageCount behind the gate.
int next_stage(const Chain& chain, Stage first = Stage::kPrepare) {
  return chain.empty() ? static_cast<int>(first) : static_cast<int>(chain.back().span().last) + 1;
}

Support covers_whole_step(const Chain& chain) {
  int next = 0;
  for (const Candidate& candidate : chain) {
    const Span span = candidate.span();
    if (static_cast<int>(span.first) != next)
      return Support::no(fmt::format("{} covers {}, where {} should come next", key(candidate),
                                     name(span),
                                     next < kStageCount ? name(static_cast<Stage>(next)) : "none"));
    next = static_cast<int>(span.last) + 1;
  }
  if (next == kStageCount) return Support::yes();
  return Support::no(fmt::format("nothing covers {}", name(static_cast<Stage>(next))));
}

tl::expected<Chain, std::string> written_base(const Spec& spec, const Registry& registry,
                                              TargetKind target) {
  const std::string where =
      fmt::format("{}:{}:{}: base", spec.path, spec.base_mark.line, spec.base_mark.column);
  Chain chain;
  for (const std::string& text : *spec.base) {
    const auto candidate = registry.parse_candidate(text);
    if (!candidate) return Failure(fmt::format("{}: {}", where, candidate.error()));
    if (candidate->variant->target.kind != target)
      return Failure(
          fmt::format("{}: {} is for {} and the target is {}; leave base out of a config for both",
                      where, text, name(candidate->variant->target.kind), name(target)));
    chain.push_back(*candidate);
  }
  if (const Support support = covers_whole_step(chain); !support.ok())
    return Failure(fmt::format("{}: {}", where, support.reason));
  return chain;
}

tl::expected<Chain, std::string> base_of(const Spec& spec, const Registry& registry,
                                         TargetKind target) {
  const auto chain =
      spec.base ? written_base(spec, registry, target) : default_base(target, registry);
  if (!chain) return chain;
  for (const ShapeEntry& entry : spec.shapes)
    if (const Support support = joins(entry.shape.problem, *chain); !support.ok())
      return Failure(fmt::format("{}:{}:{}: base does not join: {}", spec.path, entry.mark.line,
                                 entry.mark.column, support.reason));
  return chain;
}

/// The shapes that a filter has kept, where none has lost its siblings.
tl::expected<std::vector<ShapeEntry>, std::string> with_siblings(const Spec& spec,
                                                                 const Filter& filter,
                                                                 std::vector<ShapeEntry> kept) {
  constexpr size_t kNamed = 3;
  const std::vector<ShapeEntry> alone = without_siblings(kept);
  if (alone.empty()) return kept;
  std::vector<std::string> siblings;
  for (const ShapeEntry& entry : spec.shapes)
    if (entry.race == RaceAmong::kAll && kind(entry.shape) == kind(alone.front().shape))
      siblings.push_back(key(entry.shape));
  return Failure(fmt::format(
      "--shape {} keeps {}, where only what was good on its siblings races, and none of these; "
      "take a glob that keeps some of them, too: {}{}",
      in_quotes(filter.shape_glob), key(alone.front().shape),
      fmt::join(siblings.begin(),
                siblings.begin() + static_cast<ptrdiff_t>(std::min(siblings.size(), kNamed)), ", "),
      siblings.size() > kNamed ? ", ..." : ""));
}

tl::expected<std::vector<ShapeEntry>, std::string> filtered_shapes(const Spec& spec,
                                                                   const Filter& filter) {
  std::vector<ShapeEntry> kept;
  for (const ShapeEntry& entry : spec.shapes)
    if (matches(filter.shape_glob, key(entry.shape))) kept.push_back(entry);
  if (!kept.empty()) return with_siblings(spec, filter, std::move(kept));
  const std::string example =
      spec.shapes.empty() ? "" : fmt::format(", such as {}", key(spec.shapes.front().shape));
  return Failure(
      fmt::format("--shape {} matches none of the {} shapes of {}; globs are matched "
                  "against whole keys{}",
                  in_quotes(filter.shape_glob), spec.shapes.size(), spec.path, example));
}

bool is_included(const Spec& spec, const Variant& variant) {
  const auto& globs = spec.variants.include;
  return std::any_of(globs.begin(), globs.end(),
                     [&](const std::string& glob) { return glob_match(glob, variant.name); });
}

/// What helps where --variant names one of the config's that is for the other target; empty where
/// it names none.
std::string of_other_target(const Spec& spec, const Registry& registry, TargetKind target,
                            const std::string& glob) {
  for (const Variant* variant : registry.all()) {
    if (variant->target.kind == target || !is_included(spec, *variant) ||
        !matches(glob, variant->name))
      continue;
    switch (variant->target.kind) {
      case TargetKind::kHost:
        return fmt::format("; {} is a host variant: --target host takes it", variant->name);
      case TargetKind::kCuda:
        return fmt::format(
            "; {} is a CUDA variant: it needs a GPU, but `muse-tune compile` compiles it and "
            "muse-simt validates it without one",
            variant->name);
    }
  }
  return "";
}

tl::expected<std::vector<const Variant*>, std::string> filtered_variants(const Spec& spec,
                                                                         const Registry& registry,
                                                                         TargetKind target,
                                                                         const Filter& filter) {
  std::vector<const Variant*> usable, kept;
  std::vector<std::string> names;
  for (const Variant* variant : registry.all()) {
    if (variant->target.kind != target || !is_included(spec, *variant)) continue;
    usable.push_back(variant);
    names.push_back(variant->name);
    if (matches(filter.variant_glob, variant->name)) kept.push_back(variant);
  }
  if (usable.empty())
    return Failure(
        fmt::format("none of the variants it includes is for target {}; take --target or "
                    "another config",
                    name(target)));
  if (kept.empty()) {
    const std::string other = of_other_target(spec, registry, target, filter.variant_glob);
    return Failure(fmt::format("--variant {} matches no variant that {} includes for target {}{}",
                               in_quotes(filter.variant_glob), spec.path, name(target),
                               other.empty() ? did_you_mean(filter.variant_glob, names) : other));
  }
  return kept;
}

/// A candidate to plan, or a variant that has none (with its default configuration) and why.
struct Choice {
  Candidate candidate;
  std::string skip;
};

tl::expected<std::map<std::string, Choice>, std::string> choices(
    const Spec& spec, const std::vector<const Variant*>& variants, const Chain& base,
    const Filter& filter) {
  std::map<std::string, Choice> kept;
  const auto add = [&](const Candidate& candidate, const std::string& skip) {
    if (filter.stage && !candidate.span().covers(*filter.stage)) return;
    kept.emplace(key(candidate), Choice{candidate, skip});
  };
  for (const Variant* variant : variants) {
    const auto configurations = space(spec, *variant);
    for (const Configuration& configuration : configurations) add({variant, configuration}, "");
    if (configurations.empty())
      add({variant, default_configuration(*variant)},
          "the config's tunables and constraints leave the variant no configuration");
  }
  if (kept.empty())
    return Failure(fmt::format("no variant that {} and the filters keep covers {}", spec.path,
                               name(*filter.stage)));
  // The base is what everything is compared with, so neither a glob nor an override removes it.
  for (const Candidate& candidate : base) {
    kept.erase(key(candidate));
    add(candidate, "");
  }
  return kept;
}

std::string wrong_device(const Target& target, const DeviceClass& device) {
  if (target.exact_cc != 0 && device.cc != target.exact_cc)
    return fmt::format("made for compute capability {}.{} only; the device has {}.{}",
                       target.exact_cc / 10, target.exact_cc % 10, device.cc / 10, device.cc % 10);
  if (device.cc < target.minimum_cc)
    return fmt::format("needs compute capability {}.{}; the device has {}.{}",
                       target.minimum_cc / 10, target.minimum_cc % 10, device.cc / 10,
                       device.cc % 10);
  return "";
}

std::string skip_reason(const Choice& choice, const Problem& problem, const DeviceClass& device) {
  if (!choice.skip.empty()) return choice.skip;
  const Variant& variant = *choice.candidate.variant;
  if (std::string reason = wrong_device(variant.target, device); !reason.empty()) return reason;
  return variant.supports(problem, choice.candidate.configuration, device).reason;
}

/// Sets action and reason of an item that nothing rules out.
void decide(PlanItem& item, const ShapeEntry& entry, const Known& known) {
  if (entry.race == RaceAmong::kSiblings) {
    item.reason = kAmongSiblings;
    return;
  }
  const auto outcome = known ? known(item.candidate, entry.shape, item.regime) : std::nullopt;
  if (outcome && is_final(*outcome)) {
    item.action = Action::kReuse;
    item.reason = name(*outcome);
  } else {
    item.action = Action::kMeasure;
    item.reason = outcome ? kUnfinished : kNew;
  }
}

void sort_items(std::vector<PlanItem>& items) {
  const auto rank = [](const PlanItem& item) {
    return std::tuple(item.shape, item.regime, item.candidate.span(), key(item.candidate));
  };
  using Rank = decltype(rank(items.front()));
  std::vector<std::pair<Rank, PlanItem>> ranked;
  ranked.reserve(items.size());
  for (PlanItem& item : items) ranked.emplace_back(rank(item), std::move(item));
  std::sort(ranked.begin(), ranked.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  items.clear();
  for (auto& entry : ranked) items.push_back(std::move(entry.second));
}

/// Some launch behind the first may start before its predecessor has ended.
bool allows_pdl(const Chain& chain, const Problem& problem, const DeviceClass& device) {
  bool first = true;
  for (const Candidate& candidate : chain) {
    const Geometry geometry = candidate.variant->geometry(problem, candidate.configuration, device);
    for (const Launch& launch : geometry.launches) {
      if (launch.pdl && !first) return true;
      first = false;
    }
  }
  return false;
}

/// Every way through a span, by key.
class Composer {
 public:
  Composer(const Problem& problem, Span span, const std::map<std::string, Candidate>& candidates)
      : problem_(problem), span_(span), candidates_(candidates) {}

  std::map<std::string, Chain> all() {
    extend();
    return std::move(found_);
  }

 private:
  void extend() {
    const int next = next_stage(chain_, span_.first);
    if (next > static_cast<int>(span_.last)) {
      found_.emplace(key(chain_), chain_);
      return;
    }
    for (const auto& [text, candidate] : candidates_) {
      const Span covered = candidate.span();
      if (static_cast<int>(covered.first) != next || covered.last > span_.last) continue;
      if (!chain_.empty() && !joins(problem_, {chain_.back(), candidate}).ok()) continue;
      chain_.push_back(candidate);
      extend();
      chain_.pop_back();
    }
  }

  const Problem& problem_;
  Span span_;
  const std::map<std::string, Candidate>& candidates_;
  Chain chain_;
  std::map<std::string, Chain> found_;
};

}  // namespace

std::string_view name(Action action) {
  switch (action) {
    case Action::kMeasure:
      return "measure";
    case Action::kReuse:
      return "reuse";
    case Action::kSkip:
      return "skip";
  }
  return "";
}

bool may_run(const PlanItem& item) {
  return item.action != Action::kSkip || item.reason == kAmongSiblings;
}

tl::expected<Plan, std::string> make_plan(const Spec& spec, const Registry& registry,
                                          const DeviceClass& device, const Filter& filter,
                                          const Known& known) {
  Plan plan;
  plan.target = target_of(device);
  auto shapes = filtered_shapes(spec, filter);
  if (!shapes) return Failure(shapes.error());
  plan.shapes = std::move(*shapes);
  const auto variants = filtered_variants(spec, registry, plan.target, filter);
  if (!variants) return Failure(variants.error());
  auto base = base_of(spec, registry, plan.target);
  if (!base) return Failure(base.error());
  plan.base = std::move(*base);
  const auto kept = choices(spec, *variants, plan.base, filter);
  if (!kept) return Failure(kept.error());
  for (size_t i = 0; i < plan.shapes.size(); ++i) {
    const Problem& problem = plan.shapes[i].shape.problem;
    for (const auto& entry : *kept) {
      const std::string skip = skip_reason(entry.second, problem, device);
      for (const profiler::Regime regime : spec.measure.regimes) {
        PlanItem item{entry.second.candidate, i, regime, Action::kSkip, skip};
        if (skip.empty()) decide(item, plan.shapes[i], known);
        plan.items.push_back(std::move(item));
      }
    }
  }
  sort_items(plan.items);
  return plan;
}

tl::expected<Chain, std::string> default_base(TargetKind target, const Registry& registry) {
  static constexpr std::array<const char*, 4> kHost{"prepare/scalar", "attention/scalar",
                                                    "combine/scalar", "gate/scalar"};
  static constexpr std::array<const char*, 3> kCuda{"prepare/fused", "attention/mma",
                                                    "combine/gated"};
  const bool host = target == TargetKind::kHost;
  Chain chain;
  for (const char* variant_name : host ? std::span<const char* const>(kHost) : kCuda) {
    const Variant* variant = registry.find(variant_name);
    if (!variant)
      return Failure(fmt::format(
          "this binary lacks {}, a part of the default base for {}; name a base in the config",
          variant_name, name(target)));
    const Candidate candidate{variant, default_configuration(*variant)};
    // An attention that does not split covers combine as well.
    if (static_cast<int>(candidate.span().first) < next_stage(chain)) continue;
    chain.push_back(candidate);
  }
  if (const Support support = covers_whole_step(chain); !support.ok())
    return Failure(fmt::format("the default base for {}: {}", name(target), support.reason));
  return chain;
}

std::vector<Chain> compose(const Problem& problem, const std::vector<Candidate>& candidates,
                           Span span) {
  std::map<std::string, Candidate> unique;
  for (const Candidate& candidate : candidates) unique.emplace(key(candidate), candidate);
  std::vector<Chain> ordered;
  for (auto& entry : Composer(problem, span, unique).all())
    ordered.push_back(std::move(entry.second));
  return ordered;
}

std::vector<Chain> with_launch_ways(const std::vector<Chain>& pipelines,
                                    const std::vector<bool>& pdl, const Problem& problem,
                                    const DeviceClass& device) {
  std::map<std::string, Chain> ways;
  for (const Chain& pipeline : pipelines) {
    for (const bool on : pdl) {
      Chain chain = pipeline;
      chain.pdl = on && allows_pdl(pipeline, problem, device);
      ways.emplace(key(chain), std::move(chain));
    }
  }
  std::vector<Chain> ordered;
  for (auto& entry : ways) ordered.push_back(std::move(entry.second));
  return ordered;
}

}  // namespace muse::tuner
