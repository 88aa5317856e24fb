// SPDX-License-Identifier: Apache-2.0
// Plans: filters, actions with their reasons, the base, and chains that cover a span.
#include "tuner/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/tuner/fake_registry.h"

namespace muse::tuner {
namespace {

class PlanTest : public testing::Test {
 protected:
  PlanTest() { fake::fill(registry); }

  Spec load(const std::string& tail = "") const {
    auto spec = parse_spec(
        "schema: 1\nshapes: [{batch: [1, 8], q_len: 1, context: 512, weight: 2}]\n" + tail,
        "c.yaml", registry);
    if (spec) return *spec;
    for (const Diagnostic& diagnostic : spec.error()) ADD_FAILURE() << diagnostic.text();
    return {};
  }
  Plan plan(const Spec& spec, const Filter& filter = {}, const Known& known = {}) const {
    auto made = make_plan(spec, registry, device, filter, known);
    if (made) return *made;
    ADD_FAILURE() << made.error();
    return {};
  }
  std::string error(const Spec& spec, const Filter& filter = {}) const {
    const auto made = make_plan(spec, registry, device, filter, {});
    return made ? "planned" : made.error();
  }
  static std::set<std::string> variants(const Plan& plan) {
    std::set<std::string> names;
    for (const PlanItem& item : plan.items) names.insert(item.candidate.variant->name);
    return names;
  }
  Candidate candidate(const char* text) const { return registry.parse_candidate(text).value(); }

  Registry registry;
  DeviceClass device;
};

TEST_F(PlanTest, HasEachCandidateOfTheTargetOncePerShapeAndRegime) {
  const Plan made = plan(load("measure: {regimes: [warm, cold]}\n"));
  EXPECT_EQ(made.target, TargetKind::kHost);
  ASSERT_EQ(made.shapes.size(), 2u);
  EXPECT_EQ(made.shapes[1].weight, 2);
  // 1 prepare, 9 + 6 + 2 attention, 1 combine, 1 gate, 1 fused
  EXPECT_EQ(made.items.size(), 21u * 2 * 2);
  EXPECT_FALSE(variants(made).contains("attention/mma"));
  for (const PlanItem& item : made.items) {
    EXPECT_EQ(item.action, Action::kMeasure);
    EXPECT_EQ(item.reason, "new");
  }
}

TEST_F(PlanTest, IsOrderedByShapeRegimeSpanAndKey) {
  const Plan made = plan(load("measure: {regimes: [warm, cold]}\n"));
  const auto rank = [](const PlanItem& item) {
    return std::tuple(item.shape, item.regime, item.candidate.span(), key(item.candidate));
  };
  for (size_t i = 1; i < made.items.size(); ++i)
    EXPECT_LT(rank(made.items[i - 1]), rank(made.items[i]));
}

TEST_F(PlanTest, ReusesWhatEndedAndMeasuresWhatDidNot) {
  const auto known = [](const Candidate& candidate, const Shape& shape,
                        profiler::Regime) -> std::optional<Outcome> {
    if (candidate.variant->name == "gate/scalar") return Outcome::kRunning;
    if (candidate.variant->name == "prepare/scalar" && shape.problem.batch == 8)
      return Outcome::kIncorrect;
    return std::nullopt;
  };
  for (const PlanItem& item : plan(load(), {}, known).items) {
    const std::string& variant = item.candidate.variant->name;
    if (variant == "gate/scalar") {
      EXPECT_EQ(item.action, Action::kMeasure);
      EXPECT_EQ(item.reason, "unfinished");
    } else if (variant == "prepare/scalar" && item.shape == 1) {
      EXPECT_EQ(item.action, Action::kReuse);
      EXPECT_EQ(item.reason, "incorrect");
    } else {
      EXPECT_EQ(item.reason, "new");
    }
  }
}

TEST_F(PlanTest, SkipsWhatAVariantDoesNotSupportWithItsReason) {
  Variant picky = fake::gate("gate/picky");
  picky.supports = [](const Problem& problem, const Configuration&, const DeviceClass&) {
    return problem.batch > 4 ? Support::no("batch above 4") : Support::yes();
  };
  registry.add(std::move(picky));
  int skipped = 0;
  for (const PlanItem& item : plan(load()).items) {
    if (item.action != Action::kSkip) continue;
    ++skipped;
    EXPECT_EQ(item.candidate.variant->name, "gate/picky");
    EXPECT_EQ(item.shape, 1u);
    EXPECT_EQ(item.reason, "batch above 4");
  }
  EXPECT_EQ(skipped, 1);
}

TEST_F(PlanTest, SkipsAVariantThatTheConfigLeavesNoConfiguration) {
  const Plan made = plan(load("variants: {tunables: {attention/*: {tile_kv: [256]}}}\n"));
  int skipped = 0;
  for (const PlanItem& item : made.items) {
    if (item.action != Action::kSkip) continue;
    ++skipped;
    ADD_FAILURE_AT(__FILE__, __LINE__) << "the base is exempt: " << key(item.candidate);
  }
  EXPECT_EQ(skipped, 0);  // attention/scalar has no such tile, but it is the base
  const Plan other = plan(load("variants: {tunables: {attention/*: {tile_kv: [32]}}}\n"));
  std::set<std::string> reasons;
  for (const PlanItem& item : other.items)
    if (item.action == Action::kSkip) {
      EXPECT_EQ(key(item.candidate), "attention/simd:depth=2,tile_kv=64");
      reasons.insert(item.reason);
    }
  EXPECT_EQ(reasons,
            std::set<std::string>{
                "the config's tunables and constraints leave the variant no configuration"});
}

TEST_F(PlanTest, KeepsTheBaseThroughEveryGlob) {
  Filter filter;
  filter.variant_glob = "attention/simd";
  EXPECT_EQ(variants(plan(load(), filter)),
            (std::set<std::string>{"attention/scalar", "attention/simd", "combine/scalar",
                                   "gate/scalar", "prepare/scalar"}));
  EXPECT_EQ(variants(plan(load("variants: {include: [gate/*]}\n"))),
            (std::set<std::string>{"attention/scalar", "combine/scalar", "gate/scalar",
                                   "prepare/scalar"}));
}

TEST_F(PlanTest, StageKeepsWhatCoversIt) {
  Filter filter;
  filter.stage = Stage::kCombine;
  const Plan made = plan(load(), filter);
  EXPECT_EQ(variants(made),
            (std::set<std::string>{"attention/no", "attention/scalar", "attention/simd",
                                   "combine/scalar", "fused/all"}));
  for (const PlanItem& item : made.items)
    EXPECT_TRUE(item.candidate.span().covers(Stage::kCombine));
}

TEST_F(PlanTest, ShapeGlobKeepsMatchingShapes) {
  Filter filter;
  filter.shape_glob = "b8_*";
  const Plan made = plan(load(), filter);
  ASSERT_EQ(made.shapes.size(), 1u);
  EXPECT_EQ(made.shapes[0].shape.problem.batch, 8);
}

TEST_F(PlanTest, AFilterThatKeepsNothingIsAnError) {
  Filter shape;
  shape.shape_glob = "b9_*";
  EXPECT_EQ(
      error(load(), shape),
      "--shape 'b9_*' matches none of the 2 shapes of c.yaml; globs are matched against whole "
      "keys, such as b1_l1_h16x2_d64_ps1_w0_rope0_kv1_t512_uniform_random_s1");
  Filter variant;
  variant.variant_glob = "attention/sim";
  EXPECT_EQ(
      error(load(), variant),
      "--variant 'attention/sim' matches no variant that c.yaml includes for target host; did "
      "you mean 'attention/simd'?");
  Filter both;
  both.variant_glob = "gate/*";
  both.stage = Stage::kAttention;
  EXPECT_EQ(error(load(), both), "no variant that c.yaml and the filters keep covers attention");
}

TEST_F(PlanTest, AFilterThatLeavesShapesWithoutTheirSiblingsSaysWhichToAdd) {
  const auto spec = parse_spec(
      "schema: 1\nshapes:\n"
      "  - {batch: [1, 2, 3, 4], q_len: 1, context: 512}\n"
      "  - {batch: [16, 32], q_len: 1, context: 512, race: siblings}\n"
      "  - {batch: 64, q_len: 2, context: 512}\n",
      "c.yaml", registry);
  ASSERT_TRUE(spec) << spec.error().front().text();
  const auto shape = [](const char* batch) {
    return batch + std::string("_l1_h16x2_d64_ps1_w0_rope0_kv1_t512_uniform_random_s1");
  };
  EXPECT_EQ(error(*spec, {.shape_glob = "b32_*"}),
            "--shape 'b32_*' keeps " + shape("b32") +
                ", where only what was good on its siblings races, and none of these; take a glob "
                "that keeps some of them, too: " +
                shape("b1") + ", " + shape("b2") + ", " + shape("b3") + ", ...");
  for (const char* glob : {"b*2_*", "b4_*", "b64_*", ""})
    EXPECT_EQ(error(*spec, {.shape_glob = glob}), "planned") << glob;
}

TEST_F(PlanTest, NoVariantForTheTargetIsAnError) {
  EXPECT_EQ(error(load("variants: {include: [attention/mma]}\n")),
            "none of the variants it includes is for target host; take --target or another config");
}

TEST_F(PlanTest, DefaultBaseOfTheHostIsTheScalarVariantOfEachStage) {
  EXPECT_EQ(key(plan(load()).base),
            "prepare/scalar + attention/scalar:splits=2,tile_kv=32 + combine/scalar + gate/scalar");
}

TEST_F(PlanTest, DefaultBaseLeavesOutACombineThatAttentionCovers) {
  Registry one;
  one.add(fake::prepare("prepare/scalar"));
  one.add(fake::attention("attention/scalar", {{"splits", {1, 2}, 1}}));
  one.add(fake::combine("combine/scalar"));
  one.add(fake::gate("gate/scalar"));
  EXPECT_EQ(key(default_base(TargetKind::kHost, one).value()),
            "prepare/scalar + attention/scalar:splits=1 + gate/scalar");
}

TEST_F(PlanTest, DefaultBaseNamesWhatTheBinaryLacks) {
  EXPECT_EQ(default_base(TargetKind::kCuda, registry).error(),
            "this binary lacks prepare/fused, a part of the default base for cuda; name a base in "
            "the config");
}

TEST_F(PlanTest, BaseOfTheConfigIsTaken) {
  EXPECT_EQ(key(plan(load("base: [fused/all]\n")).base), "fused/all");
}

TEST_F(PlanTest, BaseThatIsNoPipelineIsAnErrorWithItsPlace) {
  EXPECT_EQ(error(load("base: [prepare/scalar, gate/scalar]\n")),
            "c.yaml:3:7: base: gate/scalar covers gate, where attention should come next");
  EXPECT_EQ(error(load("base: [prepare/scalar, \"attention/scalar:splits=1,tile_kv=32\"]\n")),
            "c.yaml:3:7: base: nothing covers gate");
  EXPECT_EQ(error(load("base: [fused/all, gate/scalar]\n")),
            "c.yaml:3:7: base: gate/scalar covers gate, where none should come next");
  EXPECT_EQ(
      error(load("base: [prepare/scalar, attention/mma, gate/scalar]\n")),
      "c.yaml:3:7: base: attention/mma is for cuda and the target is host; leave base out of a "
      "config for both");
}

TEST_F(PlanTest, BaseThatDoesNotJoinIsAnError) {
  Variant stubborn = fake::gate("gate/stubborn");
  stubborn.consumes = [](const Problem&, const Configuration&, const Handoff&) {
    return Support::no("takes nothing");
  };
  registry.add(std::move(stubborn));
  const std::string message = error(
      load("base: [prepare/scalar, \"attention/scalar:splits=1,tile_kv=32\", gate/stubborn]\n"));
  EXPECT_EQ(message.find("c.yaml:2:10: base does not join: "), 0u) << message;
  EXPECT_NE(message.find("takes nothing"), std::string::npos) << message;
}

TEST_F(PlanTest, SkipsWhatAnotherArchitectureNeeds) {
  Registry cuda;
  const auto add = [&](Variant variant, int minimum, int exact) {
    variant.target = {TargetKind::kCuda, minimum, exact};
    variant.entries = {"run"};
    cuda.add(std::move(variant));
  };
  add(fake::prepare("prepare/fused"), 80, 0);
  add(fake::attention("attention/mma", {{"splits", {1, 2}, 2}}), 80, 0);
  add(fake::attention("attention/wgmma", {{"splits", {1, 2}, 2}}), 90, 90);
  add(fake::attention("attention/new", {{"splits", {1, 2}, 2}}), 100, 0);
  Variant gated = fake::combine("combine/gated");
  gated.span = fake::fixed_span<Stage::kCombine, Stage::kGate>;
  gated.produces = fake::fixed_produces<HandoffKind::kOut>;
  add(std::move(gated), 80, 0);
  device.host = false;
  device.cc = 80;
  const auto spec =
      parse_spec("schema: 1\nshapes: [{batch: 1, q_len: 1, context: 9}]\n", "c.yaml", cuda);
  ASSERT_TRUE(spec);
  const auto made = make_plan(*spec, cuda, device, {}, {});
  ASSERT_TRUE(made) << made.error();
  EXPECT_EQ(key(made->base), "prepare/fused + attention/mma:splits=2 + combine/gated");
  std::map<std::string, std::string> reasons;
  for (const PlanItem& item : made->items)
    if (item.action == Action::kSkip) reasons[item.candidate.variant->name] = item.reason;
  EXPECT_EQ(reasons,
            (std::map<std::string, std::string>{
                {"attention/new", "needs compute capability 10.0; the device has 8.0"},
                {"attention/wgmma", "made for compute capability 9.0 only; the device has 8.0"}}));
}

TEST_F(PlanTest, ComposeFindsEveryChainThatJoinsByKey) {
  const std::vector<Candidate> candidates{
      candidate("gate/scalar"),
      candidate("prepare/scalar"),
      candidate("attention/scalar:splits=4,tile_kv=64"),
      candidate("attention/scalar:splits=1,tile_kv=64"),
      candidate("combine/scalar"),
      candidate("fused/all"),
      candidate("gate/scalar"),
  };
  std::vector<std::string> keys;
  for (const Chain& chain : compose(Problem{}, candidates)) keys.push_back(key(chain));
  EXPECT_EQ(keys,
            (std::vector<std::string>{
                "fused/all", "prepare/scalar + attention/scalar:splits=1,tile_kv=64 + gate/scalar",
                "prepare/scalar + attention/scalar:splits=4,tile_kv=64 + combine/scalar + "
                "gate/scalar"}));
}

TEST_F(PlanTest, ComposeStaysInsideItsSpan) {
  const std::vector<Candidate> candidates{
      candidate("attention/scalar:splits=4,tile_kv=64"),
      candidate("attention/scalar:splits=1,tile_kv=64"),
      candidate("combine/scalar"),
      candidate("gate/scalar"),
      candidate("fused/all"),
  };
  std::vector<std::string> keys;
  for (const Chain& chain : compose(Problem{}, candidates, {Stage::kAttention, Stage::kCombine}))
    keys.push_back(key(chain));
  EXPECT_EQ(keys,
            (std::vector<std::string>{"attention/scalar:splits=1,tile_kv=64",
                                      "attention/scalar:splits=4,tile_kv=64 + combine/scalar"}));
}

TEST_F(PlanTest, ComposeLeavesOutHandOffsThatAreNotTaken) {
  Variant pair = fake::combine("combine/pair");
  pair.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return handoff.split_capacity == 2 ? Support::yes() : Support::no("takes two splits");
  };
  registry.add(std::move(pair));
  const auto chains = compose(
      Problem{}, {candidate("prepare/scalar"), candidate("combine/pair"),
                  candidate("attention/scalar:splits=2,tile_kv=64"),
                  candidate("attention/scalar:splits=4,tile_kv=64"), candidate("gate/scalar")});
  ASSERT_EQ(chains.size(), 1u);
  EXPECT_EQ(chains[0][1].configuration.at("splits"), 2);
}

TEST_F(PlanTest, PipelinesAreLaunchedOverlappingOnlyWhereALaunchBehindTheFirstAllowsIt) {
  const auto one_launch = [](const Problem&, const Configuration&, const DeviceClass&) {
    return Geometry{.launches = {{.entry = "run", .pdl = true}}};
  };
  Variant eager = fake::gate("gate/eager");
  eager.geometry = one_launch;
  registry.add(std::move(eager));
  Variant first = fake::prepare("prepare/eager");
  first.geometry = one_launch;
  registry.add(std::move(first));
  const auto keys = [&](const std::vector<Chain>& chains, const std::vector<bool>& pdl) {
    std::vector<std::string> found;
    for (const Chain& chain : with_launch_ways(chains, pdl, Problem{}, device)) {
      found.push_back(key(chain));
      EXPECT_EQ(registry.parse_chain(found.back()), chain);
    }
    return found;
  };
  const Chain overlaps{candidate("prepare/eager"), candidate("gate/eager")};
  // Of its launches only the first would, and that has no predecessor.
  const Chain plain{candidate("prepare/eager")};
  using Keys = std::vector<std::string>;
  EXPECT_EQ(keys({overlaps}, {true, false}),
            (Keys{"prepare/eager + gate/eager", "prepare/eager + gate/eager + pdl"}));
  EXPECT_EQ(keys({overlaps}, {true}), (Keys{"prepare/eager + gate/eager + pdl"}));
  EXPECT_EQ(keys({overlaps}, {false}), (Keys{"prepare/eager + gate/eager"}));
  EXPECT_EQ(keys({plain}, {true, false}), (Keys{"prepare/eager"}));
  EXPECT_EQ(keys({plain}, {true}), (Keys{"prepare/eager"}));
}

TEST(Outcome, NamesGoBothWays) {
  for (int i = 0; i <= static_cast<int>(Outcome::kUnmeasurable); ++i) {
    const auto outcome = static_cast<Outcome>(i);
    EXPECT_FALSE(name(outcome).empty());
    EXPECT_EQ(parse_outcome(name(outcome)), outcome);
    EXPECT_EQ(is_final(outcome), i > 1);
  }
  EXPECT_FALSE(parse_outcome("fine"));
}

}  // namespace
}  // namespace muse::tuner
