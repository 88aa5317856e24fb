// SPDX-License-Identifier: Apache-2.0
// What would be measured, reused and skipped, each with its reason. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "tuner/outcome.h"
#include "tuner/spec.h"
#include "variants/registry.h"

namespace muse::tuner {

/// --stage, --variant, --shape: empty = all. The base is what everything is compared with: no
/// variant_glob (and no include or override of the config) takes its candidates out.
struct Filter {
  std::optional<Stage> stage;  ///< keeps the candidates whose span covers it
  std::string variant_glob;
  std::string shape_glob;  ///< matched against the shape's key
};

enum class Action : uint8_t { kMeasure, kReuse, kSkip };
std::string_view name(Action action);

inline constexpr const char* kNew = "new";
inline constexpr const char* kUnfinished = "unfinished";
inline constexpr const char* kAmongSiblings =
    "only the base and what was good on its siblings race here";

struct PlanItem {
  Candidate candidate;
  size_t shape = 0;  ///< index into Plan::shapes
  profiler::Regime regime = profiler::Regime::kCold;
  Action action = Action::kMeasure;
  /// measure: kNew or kUnfinished; reuse: the stored outcome; skip: kAmongSiblings or why it
  /// cannot.
  std::string reason;
};
/// Alone, or where that is skipped in a pipeline that was good on siblings.
bool may_run(const PlanItem& item);

struct Plan {
  std::vector<ShapeEntry> shapes;  ///< those the filter keeps
  TargetKind target = TargetKind::kHost;
  Chain base;                   ///< covers the whole step
  std::vector<PlanItem> items;  ///< ordered by shape, regime, span, key
};

/// Outcome of an earlier trial with the same key, if any.
using Known =
    std::function<std::optional<Outcome>(const Candidate&, const Shape&, profiler::Regime)>;

/// Variants of other targets have no items; one whose space the config empties has an item with its
/// default configuration, skipped. Errors (exit 2): a filter that keeps nothing, or a shape that
/// races among siblings and none of them where all race; a base that is unknown, does not join,
/// does not cover the step or is for another target, a config whose variants have none for this
/// target.
tl::expected<Plan, std::string> make_plan(const Spec& spec, const Registry& registry,
                                          const DeviceClass& device, const Filter& filter,
                                          const Known& known);

/// The default base of a target: host: scalar variant of each stage; CUDA: prepare/fused,
/// attention/mma, combine/gated; all at their default configurations.
tl::expected<Chain, std::string> default_base(TargetKind target, const Registry& registry);

/// Chains that cover the span, made from the given candidates per span (best first), whose
/// hand-offs join; ordered by key, each once.
std::vector<Chain> compose(const Problem& problem, const std::vector<Candidate>& candidates,
                           Span span = kWholeStep);

/// Each pipeline once for every way to launch it that `pdl` lists, ordered by key. On is off where
/// no launch behind the first may start before its predecessor has ended.
std::vector<Chain> with_launch_ways(const std::vector<Chain>& pipelines,
                                    const std::vector<bool>& pdl, const Problem& problem,
                                    const DeviceClass& device);

}  // namespace muse::tuner
