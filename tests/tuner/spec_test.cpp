// SPDX-License-Identifier: Apache-2.0
// The config loader: each rule with the line and column it points at.
#include "tuner/spec.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <tuple>

#include "tests/tuner/fake_registry.h"
#include "tuner/emit.h"

namespace muse::tuner {
namespace {

namespace fs = std::filesystem;

const Registry& registry() {
  static const Registry& filled = [&]() -> const Registry& {
    static Registry registry;
    fake::fill(registry);
    return registry;
  }();
  return filled;
}

std::string joined(const Diagnostics& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) text += diagnostic.text() + "\n";
  return text;
}

/// The lines of a faulty config's messages.
std::string errors_of(const std::string& text) {
  const auto spec = parse_spec(text, "c.yaml", registry());
  return spec ? "loaded" : joined(spec.error());
}

Spec load(const std::string& text) {
  auto spec = parse_spec(text, "c.yaml", registry());
  if (spec) return *spec;
  ADD_FAILURE() << joined(spec.error());
  return {};
}

std::string slurp(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

const std::string kShape = "shapes: [{batch: 1, q_len: 1, context: 512}]\n";
const std::string kHead = "schema: 1\n" + kShape;  // two lines: what is appended is line 3

struct Bad {
  const char* rule;
  std::string text;
  const char* where;    ///< "c.yaml:LINE:COLUMN: "
  const char* message;  ///< part of the message
};
void PrintTo(const Bad& bad, std::ostream* out) { *out << bad.rule; }

class BadConfig : public testing::TestWithParam<Bad> {};

TEST_P(BadConfig, IsRefusedWhereTheFaultIs) {
  const std::string errors = errors_of(GetParam().text);
  std::istringstream lines(errors);
  bool found = false;
  for (std::string line; std::getline(lines, line);)
    found = found || (line.starts_with(std::string(GetParam().where)) &&
                      line.find(GetParam().message) != line.npos);
  EXPECT_TRUE(found) << "expected " << GetParam().where << "..." << GetParam().message << "\ngot\n"
                     << errors;
}

std::string test_name(const testing::TestParamInfo<Bad>& info) { return info.param.rule; }

std::string shape(const std::string& entry) { return "schema: 1\nshapes:\n  - {" + entry + "}\n"; }
std::string lengths(const std::string& map) {
  return shape("batch: 2, q_len: 1, lengths: {" + map + "}");
}

// What never becomes a tree.
INSTANTIATE_TEST_SUITE_P(
    Text, BadConfig,
    testing::Values(
        Bad{"EmptyFile", "", "c.yaml: ", "empty"},
        Bad{"CommentsOnly", "# nothing\n", "c.yaml: ", "empty"},
        Bad{"DocumentMarkerOnly", "---\n", "c.yaml: ", "empty"},
        Bad{"OneComma", ",", "c.yaml:1:1: ", "text after the end"},
        Bad{"TwoDocuments", kHead + "---\nschema: 1\n", "c.yaml:3:1: ", "a second document"},
        Bad{"TwoDocumentsAfterEnd", kHead + "...\n---\na: 1\n",
            "c.yaml:4:1: ", "a second document"},
        Bad{"EmptySecondDocument", kHead + "---\n", "c.yaml:3:1: ", "a second document"},
        Bad{"TrailingText", "{schema: 1}\n, x", "c.yaml:2:1: ", "text after the end"},
        Bad{"TrailingBracket", "{schema: 1}]", "c.yaml:1:12: ", ""},
        Bad{"NotYaml", "schema: [1\n", "c.yaml:", "not valid YAML"},
        Bad{"ListAtTop", "- 1\n", "c.yaml:1:1: ", "the top level: expected a mapping, got a list"},
        Bad{"ScalarAtTop", "hello\n", "c.yaml:1:1: ", "expected a mapping, got a scalar"},
        Bad{"ByteOrderMark", "\xEF\xBB\xBFschema: 1\n", "c.yaml:1:1: ", "byte order mark"},
        Bad{"Utf16", std::string("s\0c\0", 4), "c.yaml:1:2: ", "control character 0x00"},
        Bad{"Nul", std::string("schema: 1\nba\0se: 1\n", 19), "c.yaml:2:3: ", "0x00"},
        Bad{"EndOfTransmission", "schema: 1\n\x04nonsense", "c.yaml:2:1: ", "0x04"},
        Bad{"Escape", "schema: \x1b[31m1\n", "c.yaml:1:9: ", "0x1b"},
        Bad{"InvalidUtf8", "schema: 1\n# caf\xE9\n",
            "c.yaml:2:6: ", "byte 0xe9 is not valid UTF-8"},
        Bad{"OverlongUtf8", "# \xC0\xAF\n", "c.yaml:1:3: ", "0xc0"},
        Bad{"SurrogateInUtf8", "# \xED\xA0\x80\n", "c.yaml:1:3: ", "0xed"},
        Bad{"CutUtf8", "# \xE2\x82", "c.yaml:1:3: ", "0xe2"},
        Bad{"TooLarge", std::string((1 << 20) + 1, '#'), "c.yaml: ", "larger than 1 MiB"},
        Bad{"TooManyNodes", "a: [" + std::string(20'001, ',') + "1]\n",
            "c.yaml:1:", "more than 10000"},
        Bad{"TooDeep", "a: " + std::string(40, '[') + std::string(40, ']'),
            "c.yaml:1:35: ", "more than 32 deep"},
        Bad{"Anchor", kHead + "base: &x [prepare/scalar]\n", "c.yaml:3:7: ", "anchors"},
        Bad{"AnchorOnScalar", kHead + "measure: {seed: &x 1}\n", "c.yaml:3:17: ", "anchors"},
        Bad{"AnchorOnNothing", kHead + "measure: &x\n", "c.yaml:3:10: ", "anchors"},
        Bad{"Alias", "schema: &a 1\n", "c.yaml:1:9: ", "anchors"},
        Bad{"AliasWithoutAnchor", "schema: *a\n", "c.yaml:1:9: ", ""},
        Bad{"Tag", kHead + "measure: {seed: !!int 1}\n", "c.yaml:3:17: ", "tags"},
        Bad{"NonSpecificTag", kHead + "measure: {seed: ! 1}\n", "c.yaml:3:17: ", "tags"},
        Bad{"ListAsKey", "? [a]\n: 1\n", "c.yaml:1:3: ", "a key must be a name, got a list"},
        Bad{"MappingAsKey", "? {a: 1}\n: 1\n", "c.yaml:1:3: ", "a key must be a name"},
        Bad{"NullAsKey", "~: 1\n", "c.yaml:1:1: ", "a key must be a name"}),
    test_name);

// Keys: unknown, misplaced, twice (C32).
INSTANTIATE_TEST_SUITE_P(
    Keys, BadConfig,
    testing::Values(
        Bad{"Misspelt", shape("batch: 1, q_len: 1, contxt: 512"),
            "c.yaml:3:26: ", "unknown key 'contxt'; did you mean 'context'?"},
        Bad{"Transposed", kHead + "mesaure: {seed: 1}\n",
            "c.yaml:3:1: ", "unknown key 'mesaure'; did you mean 'measure'?"},
        Bad{"Singular", kHead + "measure: {regime: [cold]}\n",
            "c.yaml:3:11: ", "unknown key 'regime' in measure; it belongs in dispatch"},
        Bad{"WrongLevel", kHead + "top_k: 3\n",
            "c.yaml:3:1: ", "unknown key 'top_k' in the top level; it belongs in pipelines"},
        Bad{"WrongLevelMisspelt", kHead + "measure: {max_distanse: 3}\n",
            "c.yaml:3:11: ", "did you mean 'max_distance'? That key belongs in dispatch"},
        Bad{"TopLevelKeyInside", kHead + "measure:\n  shapes: []\n",
            "c.yaml:4:3: ", "it belongs in the top level"},
        Bad{"SeveralLevels", kHead + "batch: 4\n",
            "c.yaml:3:1: ", "it belongs in an entry of shapes or dispatch.axes"},
        Bad{"LikeNothing", kHead + "zzzzzzzz: 4\n",
            "c.yaml:3:1: ", "in the top level; valid: schema"},
        Bad{"Nonsense", kHead + "measure: {vaildate: true}\n",
            "c.yaml:3:11: ", "unknown key 'vaildate' in measure"},
        Bad{"MergeKey", kHead + "measure: {<<: 1}\n", "c.yaml:3:11: ", "unknown key '<<'"},
        Bad{"CaseMatters", "Schema: 1\n" + kShape, "c.yaml:1:1: ", "did you mean 'schema'?"},
        Bad{"ControlCharactersInKey", kHead + "\"a\\e[31m\": 1\n",
            "c.yaml:3:1: ", "unknown key 'a\\x1b[31m'"},
        Bad{"DuplicateKey", kHead + "measure: {seed: 1, tie_pct: 1, seed: 2}\n",
            "c.yaml:3:32: ", "duplicate key 'seed'; it is given on line 3 already"},
        Bad{"DuplicateBlock", kHead + "measure:\n  seed: 1\nmeasure:\n  seed: 1\n",
            "c.yaml:5:1: ", "duplicate key 'measure'; it is given on line 3 already"},
        Bad{"DuplicateGlob",
            kHead + "variants:\n  tunables:\n    attention/*: {splits: [1]}\n"
                    "    attention/*: {splits: [2]}\n",
            "c.yaml:6:5: ", "duplicate key 'attention/*'; it is given on line 5 already"},
        Bad{"NoSchema", kShape, "c.yaml:1:1: ", "lacks the key 'schema'"},
        Bad{"NoShapes", "schema: 1\n", "c.yaml:1:1: ", "lacks the key 'shapes'"},
        Bad{"NullSection", kHead + "measure:\n", "c.yaml:3:1: ", "expected a mapping, got null"},
        Bad{"NullWordSection", kHead + "measure: ~\n",
            "c.yaml:3:10: ", "expected a mapping, got null"},
        Bad{"ListForMapping", kHead + "measure: [1]\n",
            "c.yaml:3:10: ", "measure: expected a mapping, got a list"},
        Bad{"ScalarForList", kHead + "measure: {regimes: cold}\n",
            "c.yaml:3:20: ", "regimes: expected a list, got a scalar"},
        Bad{"MappingForScalar", kHead + "measure: {seed: {a: 1}}\n",
            "c.yaml:3:17: ", "seed: expected a scalar, got a mapping"}),
    test_name);

// Scalars (C33).
INSTANTIATE_TEST_SUITE_P(
    Scalars, BadConfig,
    testing::Values(
        Bad{"LeadingZero", shape("batch: 0010, q_len: 1, context: 512"),
            "c.yaml:3:13: ", "'0010' has a leading zero"},
        Bad{"Hexadecimal", shape("batch: 0x80, q_len: 1, context: 512"),
            "c.yaml:3:13: ", "'0x80' is not decimal"},
        Bad{"Octal", shape("batch: 0o17, q_len: 1, context: 512"), "c.yaml:3:13: ", "not decimal"},
        Bad{"Underscore", shape("batch: 1_000, q_len: 1, context: 512"),
            "c.yaml:3:13: ", "'1_000' has a '_'"},
        Bad{"Plus", shape("batch: +5, q_len: 1, context: 512"), "c.yaml:3:13: ", "plus sign"},
        Bad{"Fraction", shape("batch: 1.5, q_len: 1, context: 512"),
            "c.yaml:3:13: ", "'1.5' is not an integer"},
        Bad{"Word", shape("batch: many, q_len: 1, context: 512"),
            "c.yaml:3:13: ", "'many' is not an integer"},
        Bad{"NoAsNumber", shape("batch: no, q_len: 1, context: 512"),
            "c.yaml:3:13: ", "'no' is not an integer"},
        Bad{"Quoted", shape("batch: \"128\", q_len: 1, context: 512"),
            "c.yaml:3:13: ", "'128' is in quotes, so it is a string"},
        Bad{"Null", shape("batch: ~, q_len: 1, context: 512"),
            "c.yaml:3:13: ", "batch: expected a scalar, got null"},
        Bad{"NullWord", shape("batch: null, q_len: 1, context: 512"), "c.yaml:3:13: ", "got null"},
        Bad{"Absent", shape("batch:, q_len: 1, context: 512"), "c.yaml:3:6: ", "got null"},
        Bad{"AbsentInBlock", "schema:\nshapes: [{batch: 1, q_len: 1, context: 9}]\n",
            "c.yaml:1:1: ", "schema: expected a scalar, got null"},
        Bad{"Negative", shape("batch: -1, q_len: 1, context: 512"),
            "c.yaml:3:13: ", "'-1' is out of range; allowed: 1 to 4096"},
        Bad{"Zero", shape("batch: 0, q_len: 1, context: 512"), "c.yaml:3:13: ", "1 to 4096"},
        Bad{"Beyond2To64", shape("batch: 18446744073709551616, q_len: 1, context: 512"),
            "c.yaml:3:13: ", "'18446744073709551616' is out of range"},
        Bad{"Beyond2To63", shape("batch: 9223372036854775808, q_len: 1, context: 512"),
            "c.yaml:3:13: ", "out of range"},
        Bad{"HugeExponent", shape("batch: 1e999999999999, q_len: 1, context: 512"),
            "c.yaml:3:13: ", "out of range"},
        Bad{"NegativeExponent", shape("batch: 1e-3, q_len: 1, context: 512"),
            "c.yaml:3:13: ", "not an integer"},
        Bad{"Nan", kHead + "measure: {tie_pct: .nan}\n",
            "c.yaml:3:20: ", "'.nan' is not a finite number"},
        Bad{"NanWord", kHead + "measure: {tie_pct: NaN}\n", "c.yaml:3:20: ", "finite"},
        Bad{"Infinity", kHead + "measure: {tie_pct: -.INF}\n", "c.yaml:3:20: ", "finite"},
        Bad{"NumberOverflow", kHead + "measure: {tie_pct: 1e999}\n",
            "c.yaml:3:20: ", "out of range; allowed: above 0 to 50"},
        Bad{"NumberNull", kHead + "measure: {tie_pct: ~}\n", "c.yaml:3:20: ", "got null"},
        Bad{"NumberQuoted", kHead + "measure: {tie_pct: '1'}\n", "c.yaml:3:20: ", "in quotes"},
        Bad{"NumberWithoutDigit", kHead + "measure: {tie_pct: .5}\n",
            "c.yaml:3:20: ", "no digit before the point"},
        Bad{"NumberWithTail", kHead + "measure: {tie_pct: 1.}\n", "c.yaml:3:20: ", "not a number"},
        Bad{"ZeroPercent", kHead + "measure: {half_width_pct: 0}\n",
            "c.yaml:3:27: ", "above 0 to 50"},
        Bad{"LargePercent", kHead + "measure: {switch_margin_pct: 50.1}\n",
            "c.yaml:3:30: ", "above 0 to 50"},
        Bad{"SizeUnit", kHead + "defaults: {pool_bytes: 16MB}\n",
            "c.yaml:3:24: ", "'16MB' is not a size"},
        Bad{"SizeOverflow", kHead + "defaults: {pool_bytes: 9999999999TiB}\n",
            "c.yaml:3:24: ", "out of range"},
        Bad{"SizeNegative", kHead + "defaults: {pool_bytes: -1KiB}\n",
            "c.yaml:3:24: ", "out of range"},
        Bad{"SizeFraction", kHead + "defaults: {pool_bytes: 1.5GiB}\n",
            "c.yaml:3:24: ", "not an integer"},
        Bad{"SeedNegative", kHead + "measure: {seed: -1}\n",
            "c.yaml:3:17: ", "allowed: 0 to 18446744073709551615"},
        Bad{"SeedHuge", kHead + "measure: {seed: 18446744073709551616}\n",
            "c.yaml:3:17: ", "out of range"},
        Bad{"SwitchWord", kHead + "pipelines: {pdl: [yes]}\n",
            "c.yaml:3:19: ", "'yes' is neither on nor off"},
        Bad{"SwitchTwice", kHead + "pipelines: {pdl: [on, true]}\n",
            "c.yaml:3:23: ", "'true' is given twice"},
        Bad{"SchemaTwo", "schema: 2\n" + kShape, "c.yaml:1:9: ", "schema 2 is unknown"}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    Sections, BadConfig,
    testing::Values(
        Bad{"TopK", kHead + "pipelines: {top_k: 65}\n", "c.yaml:3:20: ", "allowed: 1 to 64"},
        Bad{"MaxRounds", kHead + "measure: {max_rounds: 3}\n", "c.yaml:3:23: ", "4 to 100000"},
        Bad{"Regime", kHead + "measure: {regimes: [cold, wram]}\n",
            "c.yaml:3:27: ", "unknown regime 'wram'; did you mean 'warm'?"},
        Bad{"NoRegime", kHead + "measure: {regimes: []}\n", "c.yaml:3:20: ", "the list is empty"},
        Bad{"RegimeTwice", kHead + "measure: {regimes: [cold, cold]}\n", "c.yaml:3:27: ", "twice"},
        Bad{"Timer", kHead + "measure: {timer: wallclock}\n",
            "c.yaml:3:18: ", "unknown timer 'wallclock'; valid: cupti, auto, events or host"},
        Bad{"RegimeNotMeasured", kHead + "measure: {regimes: [warm]}\ndispatch: {regime: cold}\n",
            "c.yaml:4:20: ", "dispatch.regime is cold, which measure.regimes does not have"},
        Bad{"DefaultRegimeNotMeasured", kHead + "measure: {regimes: [warm]}\n",
            "c.yaml:3:11: ", "dispatch.regime is cold unless it is given"},
        Bad{"Axis", kHead + "dispatch: {axes: {batsh: log2}}\n",
            "c.yaml:3:19: ", "did you mean 'batch'?"},
        Bad{"Scale", kHead + "dispatch: {axes: {batch: linear}}\n",
            "c.yaml:3:26: ", "unknown scale 'linear'; valid: log2 or exact"},
        Bad{"Distance", kHead + "dispatch: {max_distance: -1}\n", "c.yaml:3:26: ", "from 0 to 64"},
        Bad{"DefaultsList", kHead + "defaults: {page_size: [1, 64]}\n",
            "c.yaml:3:23: ", "expected a scalar, got a list"},
        Bad{"DefaultsBatch", kHead + "defaults: {batch: 1}\n",
            "c.yaml:3:12: ", "it belongs in an entry of shapes"},
        Bad{"DefaultsWeight", kHead + "defaults: {weight: 1}\n",
            "c.yaml:3:12: ", "it belongs in an entry of shapes"}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    Shapes, BadConfig,
    testing::Values(
        Bad{"NoEntry", "schema: 1\nshapes: []\n", "c.yaml:2:9: ", "the list is empty"},
        Bad{"NoList", "schema: 1\nshapes: {batch: 1}\n", "c.yaml:2:9: ", "expected a list"},
        Bad{"EntryIsScalar", "schema: 1\nshapes: [8]\n",
            "c.yaml:2:10: ", "an entry of shapes: expected a mapping"},
        Bad{"NoBatch", shape("q_len: 1, context: 512"), "c.yaml:3:5: ", "lacks the key 'batch'"},
        Bad{"NoQLen", shape("batch: 1, context: 512"), "c.yaml:3:5: ", "lacks the key 'q_len'"},
        Bad{"NoContext", shape("batch: 1, q_len: 1"),
            "c.yaml:3:5: ", "lacks the key 'context' (or 'lengths')"},
        Bad{"ContextAndLengths",
            shape("batch: 1, q_len: 1, context: 9, lengths: {profile: uniform, context: 9}"),
            "c.yaml:3:38: ", "exclude each other"},
        Bad{"EmptyGrid", shape("batch: [], q_len: 1, context: 512"),
            "c.yaml:3:13: ", "batch: the list is empty"},
        Bad{"ValueTwice", shape("batch: [1000, 1e3], q_len: 1, context: 512"),
            "c.yaml:3:20: ", "batch: '1e3' is given twice"},
        Bad{"NestedList", shape("batch: [[1]], q_len: 1, context: 512"),
            "c.yaml:3:14: ", "expected a scalar, got a list"},
        Bad{"OneOfMany", shape("batch: [1, 2, -3], q_len: 1, context: 512"),
            "c.yaml:3:20: ", "'-3' is out of range"},
        Bad{"ZeroWeight", shape("batch: 1, q_len: 1, context: 512, weight: 0"),
            "c.yaml:3:48: ", "weight: '0' is out of range"},
        Bad{"ListOfWeights", shape("batch: 1, q_len: 1, context: 512, weight: [1]"),
            "c.yaml:3:48: ", "expected a scalar"},
        Bad{"PageOrder", shape("batch: 1, q_len: 1, context: 512, page_order: reverse"),
            "c.yaml:3:52: ", "unknown page order 'reverse'; did you mean 'reversed'?"},
        Bad{"HeadsDoNotDivide", shape("batch: 1, q_len: 1, context: 512, num_kv_heads: 3"),
            "c.yaml:3:40: ", "num_kv_heads is 3"},
        Bad{"HeadsOfDefaults",
            "schema: 1\ndefaults: {num_kv_heads: 3}\nshapes:\n  - {batch: 1, q_len: 1, context: "
            "9}\n",
            "c.yaml:4:5: ", "num_kv_heads is 3"},
        Bad{"ContextBelowQLen", shape("batch: 1, q_len: 8, context: 4"),
            "c.yaml:3:26: ", "context is 4"},
        Bad{"CapacityTooSmall", shape("batch: 1, q_len: 1, context: 512, max_context: 256"),
            "c.yaml:3:40: ", "max_context is 256"},
        Bad{"CapacityNoWholePages",
            shape("batch: 1, q_len: 1, context: 64, max_context: 100, page_size: 64"),
            "c.yaml:3:39: ", "max_context"},
        Bad{"RopeTheta", shape("batch: 1, q_len: 1, context: 512, rope_theta: 0.5"),
            "c.yaml:3:40: ", "rope_theta is 0.5"},
        Bad{"SameShapeTwice",
            "schema: 1\nshapes:\n  - {batch: 1, q_len: 1, context: 512}\n"
            "  - {batch: [1, 2], q_len: 1, context: 512}\n",
            "c.yaml:4:5: ", "s1 is given at 3:5 already"},
        Bad{"GridTooLarge",
            shape(
                "batch: [1,2,3,4,5,6,7,8,9,10,11], q_len: [1,2,3,4,5,6,7,8,9,10,11], context: "
                "[512,513,514,515,516,517,518,519,520,521], page_size: [1,2,4,8,16,32,64,128,256]"),
            "c.yaml:3:5: ", "more than 10000 shapes"},
        Bad{"NoProfile", lengths("mean: 100"), "c.yaml:3:35: ", "lacks the key 'profile'"},
        Bad{"Profile", lengths("profile: lognormel"),
            "c.yaml:3:45: ", "unknown profile 'lognormel'; did you mean 'lognormal'?"},
        Bad{"MissingSigma", lengths("profile: lognormal, mean: 100"),
            "c.yaml:3:35: ", "lengths lacks the key 'sigma'"},
        Bad{"ForeignKey", lengths("profile: uniform, context: 100, sigma: 1"),
            "c.yaml:3:68: ", "profile uniform has no key 'sigma'; it takes context and seed"},
        Bad{"SigmaRange", lengths("profile: lognormal, mean: 100, sigma: 5"),
            "c.yaml:3:74: ", "above 0 to 4"},
        Bad{"RestBelowQLen",
            shape("batch: 2, q_len: 8, lengths: {profile: outlier, context: 100, rest: 2}"),
            "c.yaml:3:68: ", "rest is 2"},
        Bad{"ListLength", lengths("profile: list, values: [5, 6, 7]"),
            "c.yaml:3:51: ", "list has 3 contexts"},
        Bad{"ListEmpty", lengths("profile: list, values: []"), "c.yaml:3:59: ", "list is empty"},
        Bad{"ListValue", lengths("profile: list, values: [5, -6]"),
            "c.yaml:3:63: ", "'-6' is out of range"},
        Bad{"LengthSeed", lengths("profile: uniform, context: 9, seed: -2"),
            "c.yaml:3:72: ", "out of range"}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    Variants, BadConfig,
    testing::Values(
        Bad{"EmptyInclude", kHead + "variants: {include: []}\n", "c.yaml:3:21: ", "list is empty"},
        Bad{"NothingMatches", kHead + "variants: {include: [\"*\", attention/scaler]}\n",
            "c.yaml:3:27: ",
            "unknown variant 'attention/scaler'; did you mean 'attention/scalar'?"},
        Bad{"GlobMatchesNothing", kHead + "variants: {include: [\"atention/*\"]}\n",
            "c.yaml:3:22: ", "did you mean 'attention/*'?"},
        Bad{"NullGlob", kHead + "variants: {include: [~]}\n", "c.yaml:3:22: ", "got null"},
        Bad{"EmptyGlob", kHead + "variants: {include: [\"\"]}\n", "c.yaml:3:22: ", "text is empty"},
        Bad{"TunableGlob", kHead + "variants: {tunables: {attentoin/*: {splits: [1]}}}\n",
            "c.yaml:3:23: ", "did you mean 'attention/*'?"},
        Bad{"TunableOfExcludedVariant",
            kHead + "variants: {include: [gate/*], tunables: {attention/*: {splits: [1]}}}\n",
            "c.yaml:3:42: ",
            "'attention/*' matches no included variant: add it to variants.include"},
        Bad{"UnknownTunable", kHead + "variants: {tunables: {attention/*: {tilekv: [64]}}}\n",
            "c.yaml:3:37: ",
            "no variant that 'attention/*' matches has a tunable 'tilekv'; did you mean "
            "'tile_kv'?"},
        Bad{"TunableOfAnother", kHead + "variants: {tunables: {gate/*: {splits: [1]}}}\n",
            "c.yaml:3:32: ", "has a tunable 'splits'"},
        Bad{"UnlistedValue", kHead + "variants: {tunables: {attention/*: {tile_kv: [64, 96]}}}\n",
            "c.yaml:3:51: ", "tile_kv 96 is not a value"},
        Bad{"UnlistedValueNamesThoseAllowed",
            kHead + "variants: {tunables: {attention/*: {tile_kv: [64, 96]}}}\n",
            "c.yaml:3:51: ", "allowed: 32, 64, 128, 256"},
        Bad{"ScalarForValues", kHead + "variants: {tunables: {attention/*: {tile_kv: 64}}}\n",
            "c.yaml:3:46: ", "tile_kv: expected a list"},
        Bad{"NoValues", kHead + "variants: {tunables: {attention/*: {tile_kv: []}}}\n",
            "c.yaml:3:46: ", "tile_kv: the list is empty"},
        Bad{"ValueIsWord", kHead + "variants: {tunables: {attention/*: {tile_kv: [big]}}}\n",
            "c.yaml:3:47: ", "not an integer"},
        Bad{"ListForTunables", kHead + "variants: {tunables: [1]}\n",
            "c.yaml:3:22: ", "tunables: expected a mapping"},
        Bad{"BrokenConstraint", kHead + "variants: {constraints: [\"tile_kv * <= 512\"]}\n",
            "c.yaml:3:37: ", "constraint 'tile_kv * <= 512'"},
        Bad{"BrokenConstraintPlain", kHead + "variants:\n  constraints:\n    - tile_kv ** 2\n",
            "c.yaml:5:16: ", "constraint"},
        Bad{"BrokenConstraintFolded", kHead + "variants:\n  constraints:\n    - >\n      1 +\n",
            "c.yaml:5:7: ", "constraint"},
        Bad{"UnknownName", kHead + "variants: {constraints: [\"tile_kv * dept <= 512\"]}\n",
            "c.yaml:3:37: ", "unknown tunable 'dept'; did you mean 'depth'?"},
        Bad{"NamesOfDifferentVariants", kHead + "variants: {constraints: [\"splits < depth\"]}\n",
            "c.yaml:3:26: ", "no included variant has all tunables"},
        Bad{"NoNames", kHead + "variants: {constraints: [\"1 < 2\"]}\n",
            "c.yaml:3:26: ", "names no tunable"},
        Bad{"DivisionByZero", kHead + "variants: {constraints: [\"tile_kv / depth > 1\"]}\n",
            "c.yaml:3:26: ", "attention/simd:depth=0,tile_kv=64"},
        Bad{"ConstraintTwice", kHead + "variants: {constraints: [splits < 3, splits < 3]}\n",
            "c.yaml:3:38: ", "given twice"},
        Bad{"NothingLeft",
            kHead + "variants: {include: [attention/scalar], constraints: [splits > 4]}\n",
            "c.yaml:3:11: ", "leave no configuration of any variant"},
        Bad{"BaseUnknown", kHead + "base: [prepare/scaler]\n", "c.yaml:3:8: ", "prepare/scalar"},
        Bad{"BaseTunable", kHead + "base: [\"attention/scalar:splits=3\"]\n",
            "c.yaml:3:8: ", "splits"},
        Bad{"BaseEmpty", kHead + "base: []\n", "c.yaml:3:7: ", "list is empty"},
        Bad{"BaseScalar", kHead + "base: prepare/scalar\n", "c.yaml:3:7: ", "expected a list"},
        Bad{"BaseLong", kHead + "base: [gate/scalar, gate/scalar, a, b, c]\n",
            "c.yaml:3:7: ", "more than 4 items"}),
    test_name);

TEST(Spec, TellsAllFaultsAtOnceInOrderAndEachOnce) {
  const std::string errors = errors_of(
      "schema: 2\nshapes:\n  - {batch: 0, q_len: 1, context: 9, colour: red}\n"
      "measure: {seed: x, tie_pct: ~}\npipelines: {topk: 1}\n");
  EXPECT_EQ(
      errors,
      "c.yaml:1:9: schema 2 is unknown; this version reads schema 1\n"
      "c.yaml:3:13: batch: '0' is out of range; allowed: 1 to 4096\n"
      "c.yaml:3:38: unknown key 'colour' in an entry of shapes; valid: batch, q_len, "
      "num_q_heads, num_kv_heads, head_dim, page_size, window, rope_theta, qk_scale_factor, "
      "sm_scale, kv_scale, context, max_context, page_order, pool_bytes, lengths, weight or race\n"
      "c.yaml:4:17: seed: 'x' is not an integer\n"
      "c.yaml:4:29: tie_pct: expected a scalar, got null\n"
      "c.yaml:5:13: unknown key 'topk'; did you mean 'top_k'?\n");
}

TEST(Spec, AnswersOneCommaAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(parse_spec(",", "c.yaml", registry()));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(Spec, FillsInDefaults) {
  const Spec spec = load(kHead);
  ASSERT_EQ(spec.shapes.size(), 1u);
  EXPECT_EQ(key(spec.shapes[0].shape), "b1_l1_h16x2_d64_ps1_w0_rope0_kv1_t512_uniform_random_s1");
  EXPECT_EQ(spec.shapes[0].shape.problem.max_context, 512);
  EXPECT_EQ(spec.shapes[0].weight, 1);
  EXPECT_EQ(spec.shapes[0].mark, (Mark{2, 10}));
  EXPECT_FALSE(spec.base);
  EXPECT_EQ(spec.variants.include, std::vector<std::string>{"*"});
  EXPECT_EQ(spec.pipelines.top_k, 3);
  EXPECT_EQ(spec.pipelines.pdl, std::vector<bool>{false});
  EXPECT_EQ(spec.measure.regimes, std::vector{profiler::Regime::kCold});
  EXPECT_FALSE(spec.measure.timer);
  EXPECT_FALSE(spec.measure.timer_auto);
  EXPECT_EQ(spec.measure.max_rounds, 768);
  EXPECT_EQ(spec.measure.final_rounds, 32);
  EXPECT_EQ(spec.dispatch.max_distance, 1.6);
}

TEST(Spec, ReadsEveryKey) {
  const Spec spec = load(R"(schema: 1
base: [prepare/scalar, "attention/scalar:splits=4,tile_kv=64", combine/scalar, gate/scalar]
defaults: {num_q_heads: 8, num_kv_heads: 4, head_dim: 128, page_size: 16, window: 128,
           rope_theta: 1e4, qk_scale_factor: 2, sm_scale: 0.25, kv_scale: 1.3, max_context: 4096,
           page_order: stride_b, pool_bytes: 16MiB}
shapes:
  - {batch: 3, q_len: 2, lengths: {profile: outlier, context: 1000, rest: 10, seed: 5}, weight: 2.5}
variants:
  include: [prepare/*, attention/s*]
  tunables: {"*": {tile_kv: [64, 128]}, attention/scalar: {tile_kv: [128], splits: [1, 4]}}
  constraints: ["tile_kv * splits <= 256"]
pipelines: {top_k: 64, pdl: [on, off]}
measure: {regimes: [warm, rotating], timer: auto, half_width_pct: 50, tie_pct: 2e-1,
          switch_margin_pct: 3, max_rounds: 1e3, seed: 18446744073709551615}
dispatch: {regime: rotating, axes: {context: exact, q_len: log2}, max_distance: 0}
)");
  ASSERT_TRUE(spec.base);
  EXPECT_EQ(spec.base->at(1), "attention/scalar:splits=4,tile_kv=64");
  EXPECT_EQ(spec.base_mark, (Mark{2, 7}));
  ASSERT_EQ(spec.shapes.size(), 1u);
  const Shape& shape = spec.shapes[0].shape;
  EXPECT_EQ(shape.problem, (Problem{3, 2, 8, 4, 128, 16, 128, 1e4, 2, 0.25, 1.3, 4096}));
  Lengths lengths;
  lengths.profile = Profile::kOutlier;
  lengths.context = 1000;
  lengths.rest = 10;
  lengths.seed = 5;
  lengths.page_order = PageOrder::kStrideB;
  lengths.pool_bytes = 16 << 20;
  EXPECT_EQ(shape.lengths, lengths);
  EXPECT_EQ(spec.shapes[0].weight, 2.5);
  EXPECT_EQ(spec.pipelines.top_k, 64);
  EXPECT_EQ(spec.pipelines.pdl, (std::vector<bool>{true, false}));
  EXPECT_EQ(spec.measure.regimes,
            (std::vector{profiler::Regime::kWarm, profiler::Regime::kRotating}));
  EXPECT_TRUE(spec.measure.timer_auto);
  EXPECT_EQ(spec.measure.tie_pct, 0.2);
  EXPECT_EQ(spec.measure.max_rounds, 1000);
  EXPECT_EQ(spec.measure.seed, UINT64_MAX);
  EXPECT_EQ(spec.dispatch.regime, profiler::Regime::kRotating);
  EXPECT_EQ(spec.dispatch.axes, (std::map<std::string, std::string>{
                                    {"batch", "log2"}, {"context", "exact"}, {"q_len", "log2"}}));
  EXPECT_EQ(spec.dispatch.max_distance, 0);
}

TEST(Spec, ExpandsGridsWithTheFirstKeySlowest) {
  const Spec spec = load(shape("context: [10, 20], window: [0, 8], batch: [2, 1], q_len: 1"));
  std::vector<std::string> found;
  for (const ShapeEntry& entry : spec.shapes) {
    const Shape& s = entry.shape;
    found.push_back(std::to_string(s.problem.batch) + "," + std::to_string(s.problem.window) + "," +
                    std::to_string(s.lengths.context));
  }
  EXPECT_EQ(found, (std::vector<std::string>{"2,0,10", "2,0,20", "2,8,10", "2,8,20", "1,0,10",
                                             "1,0,20", "1,8,10", "1,8,20"}));
}

TEST(Spec, KeepsNoAsAName) {
  const Spec spec = load(kHead +
                         "variants: {include: [attention/no], tunables: {attention/no: {no: [1]}}, "
                         "constraints: [no > 0]}\n");
  EXPECT_EQ(space(spec, *registry().find("attention/no")),
            (std::vector<Configuration>{{{"no", 1}}}));
  EXPECT_NE(errors_of(kHead + "variants: {include: [no]}\n").find("unknown variant 'no'"),
            std::string::npos);
}

TEST(Spec, ReadsAnExponentAsANumber) {
  const Spec spec = load(shape("batch: 1, q_len: 1, context: 1e3, rope_theta: 5E+5"));
  ASSERT_EQ(spec.shapes.size(), 1u);
  EXPECT_EQ(spec.shapes[0].shape.lengths.context, 1000);
  EXPECT_EQ(spec.shapes[0].shape.problem.rope_theta, 500000);
}

TEST(Spec, NarrowsTheSpaceToListedValues) {
  const Spec spec = load(kHead + "variants: {tunables: {\"attention/*\": {tile_kv: [32, 256]}}}\n");
  const auto tiles = [&](const char* variant) {
    std::set<int64_t> tiles;
    for (const auto& c : space(spec, *registry().find(variant))) tiles.insert(c.at("tile_kv"));
    return tiles;
  };
  EXPECT_EQ(tiles("attention/scalar"), std::set<int64_t>{32});
  EXPECT_EQ(tiles("attention/simd"), std::set<int64_t>{256});
  EXPECT_TRUE(tiles("attention/mma").empty());
}

TEST(Spec, AppliesAConstraintOnlyWhereAllItsTunablesExist) {
  const Spec spec = load(kHead + "variants: {constraints: [tile_kv * splits <= 64]}\n");
  EXPECT_EQ(space(spec, *registry().find("attention/scalar")),
            (std::vector<Configuration>{{{"splits", 1}, {"tile_kv", 32}},
                                        {{"splits", 1}, {"tile_kv", 64}},
                                        {{"splits", 2}, {"tile_kv", 32}}}));
  EXPECT_EQ(space(spec, *registry().find("attention/simd")).size(), 6u);
}

TEST(Spec, HashIsThatOfTheText) {
  const Spec one = load(kHead), same = load(kHead), other = load(kHead + "# note\n");
  EXPECT_EQ(one.hash.size(), 32u);
  EXPECT_EQ(one.hash, same.hash);
  EXPECT_NE(one.hash, other.hash);
}

class SpecFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "muse-spec-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string error_of(const fs::path& file) const {
    const auto spec = load_spec(file, registry());
    return spec ? "loaded" : joined(spec.error());
  }
  fs::path folder_;
};

TEST_F(SpecFile, MissingSaysWhatWritesOne) {
  EXPECT_EQ(
      error_of(folder_ / "none.yaml"),
      (folder_ / "none.yaml").string() + ": no such file; `muse-tune init FILE` writes one\n");
}

TEST_F(SpecFile, FolderIsRefused) {
  EXPECT_EQ(error_of(folder_), folder_.string() + ": is a folder; name a config file in it\n");
}

TEST_F(SpecFile, PipeIsRefusedWithoutWaiting) {
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_NE(error_of(folder_ / "pipe").find("not a regular file"), std::string::npos);
}

TEST_F(SpecFile, OversizedIsRefused) {
  std::ofstream(folder_ / "large.yaml") << std::string(10 << 20, '#');
  EXPECT_NE(error_of(folder_ / "large.yaml").find("larger than 1 MiB"), std::string::npos);
}

TEST_F(SpecFile, UnreadableIsRefused) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  std::ofstream(folder_ / "locked.yaml") << kHead;
  fs::permissions(folder_ / "locked.yaml", fs::perms::none);
  EXPECT_NE(error_of(folder_ / "locked.yaml").find("check its permissions"), std::string::npos);
}

TEST_F(SpecFile, LoadsTheBytesOfTheFile) {
  std::ofstream(folder_ / "good.yaml") << kHead;
  const auto spec = load_spec(folder_ / "good.yaml", registry());
  ASSERT_TRUE(spec);
  EXPECT_EQ(spec->text, kHead);
  EXPECT_EQ(spec->path, (folder_ / "good.yaml").string());
}

/// The configs of the project and the starters, with the variants of this binary.
std::vector<std::pair<std::string, std::string>> shipped() {
  std::vector<std::pair<std::string, std::string>> texts{
      {"starter for the host", starter_config(true)},
      {"starter for a device", starter_config(false)},
  };
  for (const auto& file : fs::directory_iterator(fs::path(MUSE_SOURCE_DIR) / "configs"))
    if (file.path().extension() == ".yaml")
      texts.emplace_back(file.path().string(), slurp(file.path()));
  return texts;
}

TEST(ShippedConfigs, Load) {
  EXPECT_GE(shipped().size(), 6u);
  for (const auto& [path, text] : shipped()) {
    const auto spec = parse_spec(text, path, Registry::global());
    EXPECT_TRUE(spec) << joined(spec.error());
  }
}

TEST(ShippedConfigs, HaveTheShapesTheyPromise) {
  const auto keys = [](const char* file) {
    std::set<std::string> keys;
    const auto spec = load_spec(fs::path(MUSE_SOURCE_DIR) / "configs" / file, Registry::global());
    if (spec)
      for (const ShapeEntry& entry : spec->shapes) keys.insert(key(entry.shape));
    return keys;
  };
  const auto grid = [](std::vector<int64_t> batches, std::vector<int64_t> contexts) {
    std::set<std::string> keys;
    for (const int64_t batch : batches)
      for (const int64_t q_len : {1, 8})
        for (const int64_t context : contexts)
          for (const int64_t window : {0, 2048}) {
            Shape shape;
            shape.problem.batch = batch;
            shape.problem.q_len = q_len;
            shape.problem.window = window;
            shape.problem.rope_theta = window == 0 ? 0 : 500000;
            shape.lengths.context = shape.problem.max_context = context;
            keys.insert(key(shape));
          }
    return keys;
  };
  EXPECT_EQ(keys("h200.yaml"), grid({1, 8, 32, 128}, {4096, 32768}));
  EXPECT_EQ(keys("heldout.yaml"), grid({2, 4, 16, 64}, {8192, 16384}));
  EXPECT_EQ(keys("quick.yaml").size(), 4u);
  const std::set<std::string> decode = keys("decode.yaml");
  EXPECT_EQ(decode.size(), 38u);
  for (const std::string& one : grid({1, 8, 32, 128}, {4096, 32768})) {
    const auto shape = parse_shape(one);
    ASSERT_TRUE(shape) << one;
    if (shape->problem.q_len != 1) continue;
    Shape paged = *shape;
    paged.problem.page_size = 64;
    EXPECT_TRUE(decode.contains(one)) << one;
    EXPECT_TRUE(decode.contains(key(paged))) << key(paged);
  }
  EXPECT_GE(keys("ragged.yaml").size(), 10u);
}

TEST(ShippedConfigs, ServingHasEveryBatchAndBetweenNoKeyOfIt) {
  const auto entries = [](const char* file) {
    const auto spec = load_spec(fs::path(MUSE_SOURCE_DIR) / "configs" / file, Registry::global());
    return spec ? spec->shapes : std::vector<ShapeEntry>{};
  };
  // What a lookup finds a row by.
  using Row = std::tuple<int64_t, int64_t, int64_t, int64_t>;
  const auto row = [](const Shape& shape) {
    const dispatch::Key k = dispatch_key(shape, true);
    return Row{k.window, k.q_len, k.batch, k.context};
  };
  std::set<std::string> all, tuned;
  for (const ShapeEntry& entry : entries("h200.yaml")) tuned.insert(key(entry.shape));
  std::set<Row> rows;
  const std::vector<ShapeEntry> serving = entries("serving.yaml");
  for (const ShapeEntry& entry : serving) {
    if (entry.race == RaceAmong::kAll) all.insert(key(entry.shape));
    rows.insert(row(entry.shape));
  }
  EXPECT_EQ(all, tuned);
  EXPECT_EQ(serving.size(), tuned.size() + 104);
  std::set<Row> expected;
  for (const int64_t q_len : {1, 8})
    for (const int64_t batch : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128}) {
      expected.emplace(2048, q_len, batch, 2048 + q_len - 1);
      for (const int64_t context : {4096, 12288, 32768}) expected.emplace(0, q_len, batch, context);
    }
  EXPECT_EQ(rows, expected);
  const std::vector<ShapeEntry> between = entries("between.yaml");
  EXPECT_EQ(between.size(), 32u);
  for (const ShapeEntry& entry : between) {
    EXPECT_EQ(entry.race, RaceAmong::kAll);
    EXPECT_FALSE(rows.contains(row(entry.shape))) << key(entry.shape);
  }
}

/// One small change to a text.
std::string mutated(const std::string& text, std::mt19937_64& random) {
  static const std::vector<std::string> kPieces{",",        ":",     "[",
                                                "]",        "{",     "}",
                                                "&a",       "*a",    "!",
                                                "- ",       "? ",    "|\n",
                                                ">\n",      "---\n", "...\n",
                                                "\"",       "'",     "#",
                                                "\n",       "  ",    "\t",
                                                "~",        "1e999", "-1",
                                                "0x1",      ".nan",  "<<: ",
                                                "%",        "@",     "`",
                                                "\xC3\xA9", "\xFF",  std::string(1, '\0'),
                                                "\x04",     "\\",    "9999999999999999999999"};
  std::string out = text;
  const size_t at = random() % (out.size() + 1);
  const size_t length = random() % 12;
  switch (random() % 4) {
    case 0:
      out.erase(at, length);
      break;
    case 1:
      out.insert(at, kPieces[random() % kPieces.size()]);
      break;
    case 2:
      out.insert(at, out.substr(random() % (out.size() + 1), length * 4));
      break;
    case 3:
      if (at < out.size()) out[at] = static_cast<char>(random() % 256);
      break;
  }
  return out;
}

TEST(Spec, EndsOnAnyMutationOfAConfig) {
  const std::string seed = slurp(fs::path(MUSE_SOURCE_DIR) / "configs/quick.yaml");
  std::mt19937_64 random(20240607);
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = mutated(seed, random);
    for (uint64_t more = random() % 3; more > 0; --more) text = mutated(text, random);
    const auto spec = parse_spec(text, "m.yaml", Registry::global());
    if (spec) continue;
    ++refused;
    ASSERT_FALSE(spec.error().empty()) << text;
  }
  EXPECT_GT(refused, 1000);
}

TEST(Spec, EndsQuicklyOnTextsMadeToBeSlow) {
  const auto repeated = [](const std::string& piece) {
    std::string text;
    while (text.size() + piece.size() <= (size_t{1} << 20)) text += piece;
    return text;
  };
  for (const char* piece :
       {"[",     "{",    "- ",   "? ",   "a: ",         "\"", "'",    "&a ", "*a ",
        "!a ",   ",",    "]",    "a",    "\n",          " ",  "# \n", "|\n", "a: 1\n",
        "? a\n", "[a, ", "{a: ", "--- ", "%YAML 1.2\n", "\\", "\t"}) {
    const auto begin = std::chrono::steady_clock::now();
    parse_spec(repeated(piece), "m.yaml", registry());
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30)) << piece;
  }
}

}  // namespace
}  // namespace muse::tuner
