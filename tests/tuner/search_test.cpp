// SPDX-License-Identifier: Apache-2.0
// The searchers and the floor model: contracts on made-up spaces, then both against the medians of
// an exhaustive sweep on an H200 (tests/data/h200_medians.csv).
#include "tuner/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/tuner/fake_registry.h"
#include "tests/tuner/h200_medians.h"
#include "tuner/floor_model.h"

namespace muse::tuner {
namespace {

using h200::kH200;
using h200::kH200Limits;
using h200::Measured;
using h200::measured;

const std::string kHead = "schema: 1\nshapes: [{batch: 1, q_len: 1, context: 512}]\n";

const Registry& fakes() {
  static const Registry& filled = [&]() -> const Registry& {
    static Registry registry;
    fake::fill(registry);
    return registry;
  }();
  return filled;
}

// ---- the config

SearchRules rules_of(const std::string& section) {
  const auto spec = parse_spec(kHead + section, "c.yaml", fakes());
  if (spec) return spec->search;
  ADD_FAILURE() << spec.error().front().text();
  return {};
}

std::string error_of(const std::string& section) {
  const auto spec = parse_spec(kHead + section, "c.yaml", fakes());
  return spec ? "loaded" : spec.error().front().text();
}

TEST(SearchSpec, MeasuresEverythingUnlessToldOtherwise) {
  EXPECT_EQ(rules_of("").kind, SearchKind::kExhaustive);
  EXPECT_EQ(rules_of("").share_pct, 15);
}

TEST(SearchSpec, ReadsKindAndShare) {
  for (const SearchKind kind :
       {SearchKind::kExhaustive, SearchKind::kRandom, SearchKind::kGuided}) {
    const std::string text = "search: {kind: " + std::string(name(kind)) + ", share_pct: 7.5}\n";
    EXPECT_EQ(rules_of(text).kind, kind);
    EXPECT_EQ(rules_of(text).share_pct, 7.5);
  }
  EXPECT_EQ(rules_of("search: {kind: guided, share_pct: 100}\n").share_pct, 100);
}

TEST(SearchSpec, TellsWhatIsWrongAndWhere) {
  EXPECT_EQ(error_of("search: {kind: guidet}\n"),
            "c.yaml:3:16: unknown search kind 'guidet'; did you mean 'guided'?");
  EXPECT_EQ(error_of("search: {share: 15}\n").rfind("c.yaml:3:10: unknown key 'share'", 0), 0u);
  EXPECT_EQ(error_of("search: {top_k: 3}\n"),
            "c.yaml:3:10: unknown key 'top_k' in search; it belongs in pipelines");
  EXPECT_EQ(error_of("serach: {kind: random}\n"),
            "c.yaml:3:1: unknown key 'serach'; did you mean 'search'?");
  for (const char* share : {"0", "-1", "100.5"}) {
    const std::string text = error_of("search: {share_pct: " + std::string(share) + "}\n");
    EXPECT_EQ(text.rfind("c.yaml:3:21: share_pct: ", 0), 0u) << text;
  }
  EXPECT_EQ(error_of("search: {kind: ~}\n").rfind("c.yaml:3:16: ", 0), 0u);
  EXPECT_EQ(error_of("search: guided\n").rfind("c.yaml:3:9: search: expected a mapping", 0), 0u);
}

// ---- the contract of searchers

/// Two variants of 48 and 12 configurations.
const Registry& wide() {
  static const Registry& filled = [&]() -> const Registry& {
    static Registry registry;
    const Tunable tile{"tile_kv", {16, 32, 64, 128}, 64};
    registry.add(fake::attention(
        "attention/a", {tile, {"splits", {2, 4, 8, 16, 32, 64}, 8}, {"warps", {4, 8}, 4}}));
    registry.add(fake::attention("attention/b", {tile, {"splits", {2, 4, 8}, 4}}));
    return registry;
  }();
  return filled;
}

std::vector<SearchPoint> wide_points() {
  std::vector<SearchPoint> points;
  for (const Variant* variant : wide().all()) {
    for (const Configuration& configuration : space(*variant)) {
      points.push_back({.variant = variant, .configuration = configuration});
    }
  }
  return points;
}

/// A bowl around tile_kv 32, splits 32; variant b is slower throughout.
double time_ns(const SearchPoint& point) {
  const auto log2_of = [&](const char* name) {
    return std::log2(static_cast<double>(fake::value_of(point.configuration, name)));
  };
  const double bowl = std::pow(log2_of("tile_kv") - 5, 2) + std::pow(log2_of("splits") - 5, 2);
  const bool slow = point.variant->name == "attention/b";
  return (slow ? 20'000 : 10'000) * (1 + 0.1 * bowl);
}

struct Found {
  std::vector<std::vector<int>> batches;
  std::set<int> all;
  double best_ns = INFINITY;
  double seen = 0;
};

/// Runs the search to its end; points for which `fails` holds fail.
template <class Time, class Fails>
Found run(Searcher& searcher, Time time, Fails fails) {
  Found found;
  while (true) {
    const std::vector<int> batch = searcher.propose();
    if (batch.empty()) break;
    for (const int index : batch) {
      EXPECT_TRUE(found.all.insert(index).second) << index << " was proposed twice";
      if (fails(index)) {
        searcher.tell(index, std::nullopt);
        continue;
      }
      searcher.tell(index, time(index));
      found.best_ns = std::min<double>(found.best_ns, time(index));
    }
    found.batches.push_back(batch);
  }
  found.seen = searcher.seen();
  return found;
}

template <class Time>
Found run(Searcher& searcher, Time time) {
  return run(searcher, time, [](int) { return false; });
}

Found search_wide(SearchRules rules, uint64_t seed, std::vector<SearchPoint> points) {
  const auto searcher = make_searcher(rules, points, seed);
  return run(*searcher, [&](int index) { return time_ns(points[index]); });
}

TEST(Search, ExhaustiveEvaluatesEverythingAtOnce) {
  const Found found = search_wide({}, 1, wide_points());
  EXPECT_EQ(found.batches.size(), 1u);
  EXPECT_EQ(found.all.size(), wide_points().size());
  EXPECT_EQ(found.seen, 1);
}

TEST(Search, SharesAreKeptAndSmallSpacesAreEvaluatedWhole) {
  std::vector<SearchPoint> few = wide_points();
  few.resize(Searcher::kWholeBelow - 1);
  for (const SearchKind kind : {SearchKind::kRandom, SearchKind::kGuided}) {
    const Found found = search_wide({kind, 25}, 1, wide_points());
    EXPECT_EQ(found.all.size(), 15u);
    EXPECT_EQ(found.seen, 0.25);
    EXPECT_EQ(search_wide({kind, 1}, 1, wide_points()).all.size(), size_t{Searcher::kLeast});
    EXPECT_EQ(search_wide({kind, 100}, 1, wide_points()).seen, 1);
    EXPECT_EQ(search_wide({kind, 25}, 1, few).seen, 1);
    EXPECT_EQ(search_wide({kind, 25}, 1, {}).seen, 1);
  }
}

TEST(Search, FirstBatchHoldsDefaultsAndRequiredPoints) {
  for (const SearchKind kind :
       {SearchKind::kExhaustive, SearchKind::kRandom, SearchKind::kGuided}) {
    std::vector<SearchPoint> points = wide_points();
    for (int i = 5; i < 25; ++i) points[i].required = true;  // more than the share
    const auto searcher = make_searcher({kind, 15}, points, 3);
    const std::vector<int> first = searcher->propose();
    for (int i = 0; i < static_cast<int>(points.size()); ++i) {
      const bool wanted = points[i].required ||
                          points[i].configuration == default_configuration(*points[i].variant);
      EXPECT_TRUE(!wanted || std::count(first.begin(), first.end(), i) == 1) << i;
    }
  }
}

TEST(Search, GuidedFindsTheBottomOfABowlInFewBatchesWithoutAModel) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Found found = search_wide({SearchKind::kGuided, 25}, seed, wide_points());
    EXPECT_LE(found.batches.size(), 5u);
    EXPECT_LE(found.best_ns, 10'000 * 1.1) << "seed " << seed;  // at most one step away
  }
}

TEST(Search, AFunctionOfItsSeed) {
  for (const SearchKind kind : {SearchKind::kRandom, SearchKind::kGuided}) {
    std::set<std::vector<int>> firsts;
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const Found found = search_wide({kind, 25}, seed, wide_points());
      EXPECT_EQ(found.batches, search_wide({kind, 25}, seed, wide_points()).batches);
      firsts.insert(found.batches.front());
    }
    EXPECT_GT(firsts.size(), 1u);
  }
}

TEST(Search, FailuresCountAsSeenAndLeadNowhere) {
  const std::vector<SearchPoint> points = wide_points();
  const auto fails = [&](int index) { return points[index].variant->name == "attention/a"; };
  const auto time = [&](int index) { return time_ns(points[index]); };
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const auto searcher = make_searcher({SearchKind::kGuided, 25}, points, seed);
    const Found found = run(*searcher, time, fails);
    EXPECT_EQ(found.seen, 0.25);
    EXPECT_LE(found.best_ns, 20'000 * 1.6 * 1.1) << "seed " << seed;  // the best of b is 1.4
  }
  const auto hopeless = make_searcher({SearchKind::kGuided, 25}, points, 1);
  EXPECT_EQ(run(*hopeless, time, [](int) { return true; }).seen, 0.25);
}

TEST(Search, ProposesTheSameUntilAllIsToldAndRefusesAnythingElse) {
  const auto searcher = make_searcher({SearchKind::kGuided, 25}, wide_points(), 1);
  const std::vector<int> first = searcher->propose();
  ASSERT_GE(first.size(), 2u);
  EXPECT_TRUE(std::is_sorted(first.begin(), first.end()));
  searcher->tell(first[0], 1000);
  EXPECT_EQ(searcher->propose(), first);
  EXPECT_THROW(searcher->tell(first[0], 1000), std::logic_error);
  EXPECT_THROW(searcher->tell(-1, 1000), std::logic_error);
  EXPECT_THROW(searcher->tell(1000, 1000), std::logic_error);
  EXPECT_THROW(searcher->tell(first[1], 0), std::logic_error);
  EXPECT_THROW(searcher->tell(first[1], NAN), std::logic_error);
  for (size_t i = 1; i < first.size(); ++i) searcher->tell(first[i], 1000);
  EXPECT_NE(searcher->propose(), first);
}

// ---- the floor

constexpr Span kAttention{Stage::kAttention, Stage::kAttention};

Shape shape_of(Problem problem, std::vector<int64_t> lengths) {
  Shape shape{problem, {.profile = Profile::kList, .list = lengths}};
  shape.problem.batch = static_cast<int64_t>(lengths.size());
  shape.lengths.context = *std::max_element(lengths.begin(), lengths.end());
  shape.problem.max_context = default_max_context(shape);
  return shape;
}

TEST(FloorModel, CountsEachAttendedOldRowAndPageOnce) {
  constexpr int64_t kRow = 2 * 2 * 64;
  EXPECT_EQ(compulsory_bytes(shape_of({}, {100}), kAttention), 99 * (kRow + 4));
  EXPECT_EQ(compulsory_bytes(shape_of({}, {1}), kAttention), 0);
  // Windows: the first query's left edge to the last old row.
  EXPECT_EQ(compulsory_bytes(shape_of({.window = 10}, {100}), kAttention), 9 * (kRow + 4));
  EXPECT_EQ(compulsory_bytes(shape_of({.q_len = 8, .window = 10}, {100}), kAttention),
            9 * (kRow + 4));
  EXPECT_EQ(compulsory_bytes(shape_of({.window = 1}, {100}), kAttention), 0);
  // Rows 90 ... 98 lie on pages 5 and 6.
  EXPECT_EQ(compulsory_bytes(shape_of({.page_size = 16, .window = 10}, {100}), kAttention),
            9 * kRow + 2 * 4);
  EXPECT_EQ(compulsory_bytes(shape_of({}, {100, 50}), kAttention), (99 + 49) * (kRow + 4));
}

TEST(FloorModel, CountsInputsThatNoEarlierStageReads) {
  const Shape shape = shape_of({}, {1, 1});
  const int64_t head = 2 * 64 * 2;
  EXPECT_EQ(compulsory_bytes(shape, {Stage::kPrepare, Stage::kPrepare}), 20 * head);
  EXPECT_EQ(compulsory_bytes(shape, {Stage::kCombine, Stage::kCombine}), 0);
  EXPECT_EQ(compulsory_bytes(shape, {Stage::kCombine, Stage::kGate}), 16 * head);
  EXPECT_EQ(compulsory_bytes(shape, kWholeStep), 36 * head);
}

TEST(FloorModel, HasNoOpinionOnTheHostOrWithoutFacts) {
  const Shape shape = shape_of({}, {32768});
  EXPECT_EQ(floor_ns(shape, kAttention, host_device_class(), kH200Limits), 0);
  EXPECT_EQ(floor_ns(shape, kAttention, kH200, {}), 0);
  EXPECT_EQ(floor_ns(shape, kAttention, kH200, {.launch_floor_ns = 580}), 580);
  const Chain chain{*Registry::global().parse_candidate("attention/mma")};
  const Handoff q8{.kind = HandoffKind::kQ8};
  EXPECT_GT(estimate_ns(shape, chain, q8, kH200, kH200Limits), 0);
  EXPECT_EQ(estimate_ns(shape, chain, q8, kH200, {.dram_bytes_per_s = 4.8e12}), 0);
}

TEST(FloorModel, EstimatesEveryCandidateAboveItsFloor) {
  for (const Shape& shape :
       {shape_of({.window = 2048}, {4096, 1, 70000}), shape_of({.q_len = 8}, {8, 32768})}) {
    for (const Variant* variant : Registry::global().all()) {
      if (variant->target.kind != TargetKind::kCuda) continue;
      for (const Configuration& configuration : space(*variant)) {
        if (!variant->supports(shape.problem, configuration, kH200).ok()) continue;
        const Candidate candidate{variant, configuration};
        const Handoff taken{.kind = HandoffKind::kPartials, .split_capacity = 16};
        const double ns = estimate_ns(shape, Chain{candidate}, taken, kH200, kH200Limits);
        EXPECT_TRUE(std::isfinite(ns)) << key(candidate);
        EXPECT_GE(ns, floor_ns(shape, candidate.span(), kH200, kH200Limits)) << key(candidate);
      }
    }
  }
}

// ---- against what was measured

std::vector<const Measured*> attentions() {
  std::vector<const Measured*> groups;
  for (const Measured& group : measured()) {
    if (group.span == "attention") groups.push_back(&group);
  }
  return groups;
}

TEST(OnAnH200, NothingIsFasterThanItsFloor) {
  ASSERT_EQ(attentions().size(), 32u);
  size_t times = 0;
  for (const Measured& group : measured()) {
    for (size_t i = 0; i < group.candidates.size(); ++i, ++times) {
      const double floor = floor_ns(group.shape, group.candidates[i].span(), kH200, kH200Limits);
      EXPECT_GT(group.medians_ns[i], floor) << key(group.shape) << " " << key(group.candidates[i]);
    }
  }
  EXPECT_GT(times, 4000u);
}

TEST(OnAnH200, TheFloorIsCloseWhereMemoryDecides) {
  for (const Measured* group : attentions()) {
    const Problem& problem = group->shape.problem;
    const double share = floor_ns(group->shape, kAttention, kH200, kH200Limits) / group->best_ns();
    RecordProperty(key(group->shape), std::to_string(share));
    if (problem.batch == 128 && problem.q_len == 1 && !problem.windowed() &&
        group->shape.lengths.context == 32768) {
      EXPECT_GT(share, 0.8);
    }
  }
}

struct Regret {
  double mean_pct = 0;   ///< geometric, over shapes and seeds
  double worst_pct = 0;  ///< of one search
  double share = 0;
  size_t batches = 0;  ///< at most
};

Regret regret(SearchKind kind, bool with_model) {
  constexpr int kSeeds = 40;
  double sum = 0, worst = 0, seen = 0, told = 0;
  size_t batches = 0;
  for (const Measured* group : attentions()) {
    std::vector<SearchPoint> points;
    for (const Candidate& candidate : group->candidates) {
      const double estimate = estimate_ns(group->shape, Chain{candidate},
                                          {.kind = HandoffKind::kQ8}, kH200, kH200Limits);
      points.push_back({.variant = candidate.variant,
                        .configuration = candidate.configuration,
                        .estimate_ns = with_model ? estimate : 0});
    }
    for (int seed = 1; seed <= kSeeds; ++seed) {
      const auto searcher = make_searcher({kind, 15}, points, static_cast<uint64_t>(seed));
      const Found found = run(*searcher, [&](int index) { return group->medians_ns[index]; });
      const double lost = std::log(found.best_ns / group->best_ns());
      sum += lost;
      worst = std::max(worst, lost);
      seen += static_cast<double>(found.all.size());
      told += static_cast<double>(points.size());
      batches = std::max(batches, found.batches.size());
    }
  }
  const auto searches = static_cast<double>(attentions().size() * kSeeds);
  return {100 * std::expm1(sum / searches), 100 * std::expm1(worst), seen / told, batches};
}

TEST(OnAnH200, GuidedSearchComesWithinOnePercentOfTheBestWithFifteenPercentOfTheEvaluations) {
  const Regret guided = regret(SearchKind::kGuided, true);
  const Regret blind = regret(SearchKind::kGuided, false);
  const Regret random = regret(SearchKind::kRandom, false);
  for (const auto& [name, value] :
       {std::pair{"guided", guided}, std::pair{"guided without a model", blind},
        std::pair{"random", random}}) {
    std::printf("%s: regret %.2f %% geometric mean, %.1f %% worst; share %.4f, %zu batches\n", name,
                value.mean_pct, value.worst_pct, value.share, value.batches);
    EXPECT_LE(value.share, 0.15) << name;
  }
  EXPECT_LE(guided.mean_pct, 1);
  EXPECT_LE(guided.batches, 5u);
  EXPECT_LT(blind.mean_pct, random.mean_pct);
}

TEST(OnAnH200, OtherSpansAreSmallEnoughToBeEvaluatedWhole) {
  for (const Measured& group : measured()) {
    if (group.span == "attention") continue;
    EXPECT_LT(group.candidates.size(), size_t{Searcher::kWholeBelow}) << group.span;
  }
}

}  // namespace
}  // namespace muse::tuner
