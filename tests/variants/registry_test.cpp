// SPDX-License-Identifier: Apache-2.0
// Expressions, configurations and the registry: grammar, contract, keys both ways; and the promises
// that every registered variant makes.
#include "variants/registry.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <stdexcept>

#include "variants/source_closures.h"

namespace muse {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// The value, or the error of parsing or evaluating.
std::string result(std::string_view text, const Configuration& values = {}) {
  const auto expression = Expression::parse(text);
  if (!expression) {
    return std::to_string(expression.error().offset) + ": " + expression.error().message;
  }
  const auto value = expression->evaluate(values);
  return value ? std::to_string(*value) : value.error();
}

TEST(Expressions, FollowPrecedenceAndAssociativity) {
  EXPECT_EQ(result("1 + 2 * 3"), "7");
  EXPECT_EQ(result("(1 + 2) * 3"), "9");
  EXPECT_EQ(result("10 - 4 - 3"), "3");
  EXPECT_EQ(result("100 / 10 / 5"), "2");
  EXPECT_EQ(result("7 % 4 * 2"), "6");
  EXPECT_EQ(result("-7 / 2"), "-3");
  EXPECT_EQ(result("-7 % 2"), "-1");
  EXPECT_EQ(result("1 + 1 == 2"), "1");
  EXPECT_EQ(result("1 < 2 && 2 < 1 || 3 >= 3"), "1");
  EXPECT_EQ(result("1 || 0 && 0"), "1");
  EXPECT_EQ(result("!0 + 1"), "2");
  EXPECT_EQ(result("!(2 > 1)"), "0");
  EXPECT_EQ(result("- - 3"), "3");
  EXPECT_EQ(result("7 && 5"), "1");
  EXPECT_EQ(result("0 || 9"), "1");
  EXPECT_EQ(result("a*b<=512", {{"a", 64}, {"b", 8}}), "1");
}

TEST(Expressions, ShortCircuit) {
  EXPECT_EQ(result("a != 0 && 8 % a == 0", {{"a", 0}}), "0");
  EXPECT_EQ(result("a == 0 || 8 % a == 0", {{"a", 0}}), "1");
  EXPECT_EQ(result("0 && unknown && 1"), "0");
  EXPECT_EQ(result("1 && 0 || 1 && 1"), "1");
  EXPECT_EQ(result("1 && unknown"), "'unknown' has no value");
}

TEST(Expressions, ReportOverflowAndDivisionByZero) {
  const Configuration ends{{"least", kMin}, {"most", kMax}};
  EXPECT_EQ(result("least / -1", ends), "overflow of 64 bits");
  EXPECT_EQ(result("least % -1", ends), "overflow of 64 bits");
  EXPECT_EQ(result("-least", ends), "overflow of 64 bits");
  EXPECT_EQ(result("most + 1", ends), "overflow of 64 bits");
  EXPECT_EQ(result("least - 1", ends), "overflow of 64 bits");
  EXPECT_EQ(result("most * 2", ends), "overflow of 64 bits");
  EXPECT_EQ(result("-most - 1 == least", ends), "1");
  EXPECT_EQ(result("4 / 0"), "division of 4 by zero");
  EXPECT_EQ(result("4 % (2 - 2)"), "division of 4 by zero");
  EXPECT_EQ(result("9223372036854775807"), "9223372036854775807");
}

TEST(Expressions, ReportWhereTheGrammarBreaks) {
  EXPECT_EQ(result(""), "0: missing operand at the end");
  EXPECT_EQ(result("1 +"), "3: missing operand at the end");
  EXPECT_EQ(result("* 2"), "0: missing operand; unexpected '*'");
  EXPECT_EQ(result("(1 + 2"), "0: '(' without ')'");
  EXPECT_EQ(result("1)"), "1: ')' without '('");
  EXPECT_EQ(result("(1 2)"), "3: unexpected '2'");
  EXPECT_EQ(result("a & b"), "2: unexpected '&'");
  EXPECT_EQ(result("a = b"), "2: unexpected '='");
  EXPECT_EQ(result("a < b < c"), "6: comparisons do not chain; join them with &&");
  EXPECT_EQ(result("3x"), "1: unexpected 'x'");
  EXPECT_EQ(result("1.5"), "1: unexpected '.'");
  EXPECT_EQ(result("9223372036854775808"), "0: number beyond 64 bits");
  EXPECT_EQ(result(std::string_view("1\0 2", 4)), "1: unexpected byte 0x00");
  EXPECT_EQ(result("1 \xc3\xa9"), "2: unexpected byte 0xc3");
}

TEST(Expressions, BoundTheNesting) {
  EXPECT_EQ(result(std::string(63, '(') + "1" + std::string(63, ')')), "1");
  EXPECT_EQ(result(std::string(64, '(') + "1" + std::string(64, ')')), "64: nesting above 64");
  EXPECT_EQ(result(std::string(100000, '!') + "1"), "64: nesting above 64");
}

TEST(Expressions, TakeLongTextsWithoutRecursion) {
  std::string sum = "0", disjunction = "0";
  for (int i = 0; i < 200000; ++i) {
    sum += "+1";
    disjunction += "||0";
  }
  EXPECT_EQ(result(sum), "200000");
  EXPECT_EQ(result(disjunction), "0");
}

TEST(Expressions, ListTheirNamesSorted) {
  const auto expression = Expression::parse("z * tile_kv + a > z && _b");
  ASSERT_TRUE(expression);
  EXPECT_EQ(expression->names(), (std::vector<std::string>{"_b", "a", "tile_kv", "z"}));
  EXPECT_EQ(*expression->evaluate({{"z", 2}, {"tile_kv", 3}, {"a", -4}, {"_b", 5}}), 0);
  EXPECT_EQ(*expression->evaluate({{"z", 2}, {"tile_kv", 3}, {"a", -3}, {"_b", 5}}), 1);
}

Support accept(const Problem&, const Configuration&, const DeviceClass&) { return {}; }
template <Stage first, Stage last>
Span covers(const Configuration&) {
  return {first, last};
}
template <HandoffKind kind>
Handoff leaves(const Problem&, const Configuration& configuration) {
  const auto splits = configuration.find("splits");
  return {kind, PartialType::kF32, splits == configuration.end() ? 0 : splits->second};
}
Support takes_up_to_four_splits(const Problem&, const Configuration&, const Handoff& handoff) {
  return handoff.split_capacity <= 4 ? Support::yes() : Support::no("more than 4 splits");
}

// A variant that keeps its contract and does nothing.
template <Stage first, Stage last, HandoffKind kind>
Variant make(std::string name) {
  Variant variant;
  variant.name = std::move(name);
  variant.supports = accept;
  variant.span = covers<first, last>;
  variant.produces = leaves<kind>;
  variant.consumes = takes_up_to_four_splits;
  variant.geometry = [](const Problem&, const Configuration&, const DeviceClass&) {
    return Geometry{};
  };
  variant.bind = [](const Problem&, const Configuration&, const Buffers&, void*,
                    const TensorMapEncoder&, int) { return Arguments::of(0); };
  variant.host_entry = [](const Arguments&, int) {};
  return variant;
}

Variant attention() {
  auto variant =
      make<Stage::kAttention, Stage::kAttention, HandoffKind::kPartials>("attention/mock");
  variant.tunables = {{"tile_kv", {128, 64}, 64}, {"splits", {1, 4, 8}, 4}};
  variant.constraints = {{"tile_kv * splits <= 512", "the scratch is 512 keys"}};
  return variant;
}
Variant combine() {
  return make<Stage::kCombine, Stage::kCombine, HandoffKind::kO>("combine/mock");
}
Variant gate() { return make<Stage::kGate, Stage::kGate, HandoffKind::kOut>("gate/mock"); }

std::string refusal(Variant variant) {
  Registry registry;
  try {
    registry.add(std::move(variant));
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

TEST(Registry, RefusesWhatBreaksTheContract) {
  EXPECT_EQ(refusal(attention()), "");
  const auto error = [](auto change) {
    Variant variant = attention();
    change(variant);
    return refusal(std::move(variant));
  };
  using V = Variant;
  const std::string own = "variant 'attention/mock': ";
  for (const char* name : {"mock", "attention", "attention/", "/mock", "softmax/mock",
                           "attention/Mock", "attention/a/b", "attention/a b", ""}) {
    EXPECT_EQ(error([&](V& v) { v.name = name; }),
              "variant '" + std::string(name) + "': the name is not stage/stem");
  }
  EXPECT_EQ(error([](V& v) { v.abi = 0; }), own + "abi is 0; allowed: 1 and above");
  EXPECT_EQ(error([](V& v) { v.supports = nullptr; }), own + "function supports is missing");
  EXPECT_EQ(error([](V& v) { v.span = nullptr; }), own + "function span is missing");
  EXPECT_EQ(error([](V& v) { v.produces = nullptr; }), own + "function produces is missing");
  EXPECT_EQ(error([](V& v) { v.consumes = nullptr; }), own + "function consumes is missing");
  EXPECT_EQ(error([](V& v) { v.geometry = nullptr; }), own + "function geometry is missing");
  EXPECT_EQ(error([](V& v) { v.bind = nullptr; }), own + "function bind is missing");
  EXPECT_EQ(error([](V& v) { v.host_entry = nullptr; }), own + "function host_entry is missing");
  const auto on_a_gpu = [](V& v) { v.host_entry = nullptr, v.target.kind = TargetKind::kCuda; };
  EXPECT_EQ(error(on_a_gpu), own + "a CUDA variant names its kernels in entries");
  EXPECT_EQ(error([&](V& v) { on_a_gpu(v), v.entries = {"attend"}; }), "");
  EXPECT_EQ(error([&](V& v) { on_a_gpu(v), v.entries = {"attend", "Two Words"}; }),
            own + "entry 'Two Words' is not a name of a-z, 0-9 and _");
  EXPECT_EQ(error([](V& v) { v.entries = {"attend"}; }),
            own + "a host variant has no kernel entries");
  EXPECT_EQ(error([](V& v) { v.tunables[0].name = "tile kv"; }),
            own + "tunable 'tile kv' is not a name of a-z, 0-9 and _");
  EXPECT_EQ(error([](V& v) { v.tunables[1].name = "tile_kv"; }),
            own + "tunable 'tile_kv' appears twice");
  EXPECT_EQ(error([](V& v) {
              v.tunables[0].values = {64, 64};
            }),
            own + "tunable 'tile_kv' lists a value twice");
  EXPECT_EQ(error([](V& v) { v.tunables[0].default_value = 32; }),
            own + "tunable 'tile_kv': the default 32 is not among its values");
  EXPECT_EQ(error([](V& v) { v.constraints[0].expr = "tile_kv *"; }),
            own + "constraint 'tile_kv *', column 10: missing operand at the end");
  EXPECT_EQ(error([](V& v) { v.constraints[0].expr = "tile > 1"; }),
            own + "constraint 'tile > 1' names no tunable: 'tile'");
  EXPECT_EQ(error([](V& v) { v.constraints[0].reason = ""; }),
            own + "constraint 'tile_kv * splits <= 512' has no reason");
  EXPECT_EQ(error([](V& v) { v.constraints[0].expr = "splits < 4"; }),
            own +
                "the default configuration is not legal: breaks 'splits < 4': the scratch is 512 "
                "keys");
  EXPECT_EQ(error([](V& v) { v.name = "gate/mock"; }),
            "variant 'gate/mock': its span attention does not fit its folder gate");
}

TEST(Registry, ChecksThatFoldersAndSpansAgree) {
  EXPECT_EQ(refusal(make<Stage::kPrepare, Stage::kGate, HandoffKind::kOut>("fused/mock")), "");
  EXPECT_NE(refusal(make<Stage::kPrepare, Stage::kGate, HandoffKind::kOut>("prepare/mock")), "");
  EXPECT_NE(refusal(make<Stage::kPrepare, Stage::kPrepare, HandoffKind::kQ8>("fused/mock")), "");
  EXPECT_NE(refusal(make<Stage::kCombine, Stage::kGate, HandoffKind::kOut>("fused/mock")), "");
  EXPECT_EQ(refusal(make<Stage::kCombine, Stage::kGate, HandoffKind::kOut>("combine/gated")), "");
}

TEST(Registry, RefusesAStemThatCallsItselfSomethingElse) {
  Registry registry;
  EXPECT_NO_THROW(registry.add_stem("attention/mock", attention()));
  EXPECT_THROW(registry.add_stem("attention/other", attention()), std::logic_error);
}

TEST(Registry, RefusesATakenName) {
  Registry registry;
  registry.add(gate());
  EXPECT_THROW(registry.add(gate()), std::logic_error);
  EXPECT_EQ(registry.all().size(), 1U);
}

TEST(Registry, FindsMatchesAndOrdersByName) {
  Registry registry;
  const Variant& first = registry.add(gate());
  registry.add(combine());
  registry.add(attention());
  const auto names = [&](std::string_view glob) {
    std::string text;
    for (const Variant* variant : registry.match(glob)) text += variant->name + " ";
    return text;
  };
  EXPECT_EQ(names("*"), "attention/mock combine/mock gate/mock ");
  EXPECT_EQ(names("*a*/*"), "attention/mock gate/mock ");
  EXPECT_EQ(names("gate/m?ck"), "gate/mock ");
  EXPECT_EQ(names("gate"), "");
  EXPECT_EQ(registry.find("gate/mock"), &first);
  EXPECT_EQ(registry.find("gate/moc"), nullptr);
}

TEST(Glob, MatchesStarsAndQuestionMarks) {
  EXPECT_TRUE(glob_match("", ""));
  EXPECT_TRUE(glob_match("**", ""));
  EXPECT_TRUE(glob_match("a*b*c", "a__b_b__c"));
  EXPECT_FALSE(glob_match("a*b*c", "a__b_b__"));
  EXPECT_FALSE(glob_match("?", ""));
  EXPECT_FALSE(glob_match("a", "ab"));
  EXPECT_FALSE(glob_match(std::string(50, '*') + "x", std::string(2000, 'a')));
}

TEST(DidYouMean, FindsTheNearestNameWithinAThirdOfTheLength) {
  const std::vector<std::string> options = {"attention/scalar", "attention/simt", "gate/scalar"};
  EXPECT_EQ(nearest_name("attention/sclaar", options), "attention/scalar");
  EXPECT_EQ(nearest_name("atention/simd", options), "attention/simt");
  EXPECT_EQ(nearest_name("gate/scalar", options), "gate/scalar");
  EXPECT_EQ(nearest_name("combine", options), "");
  EXPECT_EQ(nearest_name("ab", {"abc", "xy"}), "abc");
  EXPECT_EQ(nearest_name("ab", {"ba"}), "ba");  // a swap is one step
  EXPECT_EQ(nearest_name("ab", {"cd"}), "");
  EXPECT_EQ(nearest_name("", {"a"}), "a");
  EXPECT_EQ(nearest_name(std::string(1 << 20, 'x'), options), "");
}

TEST(Candidates, RoundTripThroughTheirKeys) {
  Registry registry;
  const Variant& variant = registry.add(attention());
  registry.add(gate());
  std::set<std::string> keys;
  for (const Configuration& configuration : space(variant)) {
    const Candidate candidate{&variant, configuration};
    const auto back = registry.parse_candidate(key(candidate));
    ASSERT_TRUE(back) << back.error();
    EXPECT_EQ(*back, candidate);
    keys.insert(key(candidate));
  }
  EXPECT_EQ(keys.size(), 5U);
  EXPECT_TRUE(keys.contains("attention/mock:splits=4,tile_kv=128"));
  EXPECT_EQ(key(*registry.parse_candidate("attention/mock")), "attention/mock:splits=4,tile_kv=64");
  EXPECT_EQ(key(*registry.parse_candidate("attention/mock:tile_kv=64,splits=1")),
            "attention/mock:splits=1,tile_kv=64");
  EXPECT_EQ(key(*registry.parse_candidate("gate/mock")), "gate/mock");
}

TEST(Candidates, SayWhatIsWrongInAKey) {
  Registry registry;
  registry.add(attention());
  registry.add(gate());
  const auto error = [&](const std::string& text) { return registry.parse_chain(text).error(); };
  const auto setting = [&](const std::string& text) {
    const std::string whole = "attention/mock:" + text;
    return error(whole).substr(whole.size() + 4);
  };
  EXPECT_EQ(error("attention/mokc"),
            "unknown variant 'attention/mokc'; did you mean 'attention/mock'?");
  EXPECT_EQ(error("nothing"), "unknown variant 'nothing'");
  EXPECT_EQ(error(""), "unknown variant ''");
  EXPECT_EQ(error("attention/mock + "), "unknown variant ''");
  EXPECT_EQ(setting(""), "'' is not tunable=value");
  EXPECT_EQ(setting("splits=1,"), "'' is not tunable=value");
  EXPECT_EQ(setting("split=1"), "attention/mock has no tunable 'split'; did you mean 'splits'?");
  EXPECT_EQ(setting("splits=one"), "'one' is not an integer, for splits");
  EXPECT_EQ(setting("splits=1,splits=1"), "splits appears twice");
  EXPECT_EQ(setting("splits=1"), "tunable 'tile_kv' has no value");
  EXPECT_EQ(setting("splits=2,tile_kv=64"), "splits is 2; allowed: 1, 4, 8");
  EXPECT_EQ(setting("splits=8,tile_kv=128"),
            "breaks 'tile_kv * splits <= 512': the scratch is 512 keys");
}

TEST(Space, IsOrderedNarrowedAndConstrained) {
  const Variant variant = attention();
  const auto text = [&](const std::vector<Configuration>& configurations) {
    std::string all;
    for (const Configuration& c : configurations) {
      all += std::to_string(c.at("splits")) + "x" + std::to_string(c.at("tile_kv")) + " ";
    }
    return all;
  };
  EXPECT_EQ(text(space(variant)), "1x64 1x128 4x64 4x128 8x64 ");
  EXPECT_EQ(text(space(variant, {{"tile_kv", {128, 96}}, {"threads", {1}}})), "1x128 4x128 ");
  EXPECT_EQ(text(space(variant, {{"splits", {2}}})), "");
  EXPECT_EQ(text(space(variant, {}, {*Expression::parse("splits != 4")})), "1x64 1x128 8x64 ");
  EXPECT_THROW(space(variant, {}, {*Expression::parse("threads > 1")}), std::logic_error);
  EXPECT_EQ(space(gate()), (std::vector<Configuration>{{}}));
}

TEST(Space, CheckAcceptsExactlyTheLegal) {
  const Variant variant = attention();
  for (const Configuration& configuration : space(variant)) {
    EXPECT_EQ(check(variant, configuration), "");
  }
  EXPECT_NE(check(variant, {{"splits", 1}, {"tile_kv", 64}, {"threads", 1}}), "");
  EXPECT_NE(check(variant, {}), "");
}

TEST(Chains, JoinWhereSpansFollowAndTheHandoffIsTaken) {
  Registry registry;
  registry.add(attention());
  registry.add(combine());
  registry.add(gate());
  const auto reason = [&](const std::string& text) {
    return joins(Problem{}, *registry.parse_chain(text)).reason;
  };
  const std::string tail = " + combine/mock + gate/mock";
  EXPECT_EQ(reason("attention/mock" + tail), "");
  EXPECT_EQ(reason("attention/mock:splits=8,tile_kv=64" + tail),
            "combine/mock does not take what attention/mock:splits=8,tile_kv=64 leaves: more than "
            "4 splits");
  EXPECT_EQ(reason("combine/mock + combine/mock"),
            "combine/mock ends at combine and combine/mock starts at combine");
  EXPECT_EQ(reason("attention/mock + gate/mock"),
            "attention/mock:splits=4,tile_kv=64 ends at attention and gate/mock starts at gate");
  const Chain chain = *registry.parse_chain("attention/mock" + tail);
  EXPECT_EQ(key(chain), "attention/mock:splits=4,tile_kv=64 + combine/mock + gate/mock");
  EXPECT_EQ(span(chain), (Span{Stage::kAttention, Stage::kGate}));
}

TEST(Chains, RefuseAHandoffThatTheSpanCannotLeave) {
  Registry registry;
  registry.add(make<Stage::kAttention, Stage::kAttention, HandoffKind::kO>("attention/odd"));
  registry.add(combine());
  EXPECT_EQ(joins(Problem{}, *registry.parse_chain("attention/odd + combine/mock")).reason,
            "attention/odd ends at attention but leaves o");
}

// What every variant of this binary promises, for each of its configurations.
TEST(EveryVariant, KeepsItsPromisesOverItsWholeSpace) {
  for (const Variant* variant : Registry::global().all()) {
    SCOPED_TRACE(variant->name);
    const auto hash = code_hash(*variant);
    ASSERT_TRUE(hash) << "no source closure";
    EXPECT_EQ(hash->size(), 32U);
    const Span span = variant->span(default_configuration(*variant));
    for (const Configuration& configuration : space(*variant)) {
      EXPECT_EQ(check(*variant, configuration), "");
      EXPECT_EQ(variant->span(configuration).first, span.first);
      EXPECT_LE(variant->span(configuration).first, variant->span(configuration).last);
    }
  }
}

// A stem whose registrar was lost at link time would vanish silently.
TEST(EveryVariant, ThatHasSourcesIsRegistered) {
  for (const SourceClosure* closure = kSourceClosures; closure->name != nullptr; ++closure) {
    EXPECT_NE(Registry::global().find(closure->name), nullptr) << closure->name;
  }
}

TEST(EveryVariant, HasAHashOfItsOwn) {
  std::set<std::string> hashes;
  for (const Variant* variant : Registry::global().all()) hashes.insert(*code_hash(*variant));
  EXPECT_EQ(hashes.size(), Registry::global().all().size());
  EXPECT_FALSE(code_hash(gate()));
}

}  // namespace
}  // namespace muse
