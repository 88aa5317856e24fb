// SPDX-License-Identifier: Apache-2.0
// Every CUDA kernel through the five gates without a GPU: each candidate that is compiled for the
// emulator alone, and whole pipelines of the defaults. Shapes are dealt out in turns, so that all
// of them are seen by some candidate of each variant and none takes long.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/simt/kernel_table.h"
#include "tests/simt/shapes.h"
#include "tests/simt/simt_backend.h"
#include "tuner/validate.h"
#include "variants/registry.h"

namespace muse {
namespace {

using tuner::Outcome;

constexpr size_t kShapesOfPipeline = 12;

tuner::Backend& emulator() {
  static const std::unique_ptr<tuner::Backend> backend = simt::make_simt_backend(1);
  return *backend;
}

std::vector<std::string> compiled_candidates() {
  std::vector<std::string> keys;
  for (const simt::CompiledKernel& kernel : simt::compiled_kernels()) {
    if (keys.empty() || keys.back() != kernel.candidate) keys.emplace_back(kernel.candidate);
  }
  return keys;
}

std::vector<const Variant*> cuda_variants() {
  std::vector<const Variant*> variants = Registry::global().all();
  std::erase_if(variants, [](const Variant* v) { return v->target.kind != TargetKind::kCuda; });
  return variants;
}

/// Adds what follows `chain` until the step is whole.
void extend(const Problem& problem, const Chain& chain, std::vector<std::string>& found) {
  if (!chain.empty() && span(chain) == kWholeStep) {
    found.push_back(key(chain));
    return;
  }
  for (const Variant* variant : cuda_variants()) {
    Chain longer = chain;
    longer.push_back({variant, default_configuration(*variant)});
    if (span(longer).first == Stage::kPrepare && joins(problem, longer).ok()) {
      extend(problem, longer, found);
    }
  }
}

std::vector<std::string> default_pipelines() {
  std::vector<std::string> found;
  extend(simt::small_shapes().front().problem, {}, found);
  return found;
}

/// Those whose span covers attention.
std::vector<std::string> default_attentions() {
  std::vector<std::string> keys;
  for (const Variant* variant : cuda_variants()) {
    const Candidate candidate{variant, default_configuration(*variant)};
    if (candidate.span().covers(Stage::kAttention)) keys.push_back(key(candidate));
  }
  return keys;
}

/// Validates on `count` small shapes from number `first` on; at least one has to be supported.
void expect_right(const std::string& text, size_t first, size_t count) {
  const Chain chain = Registry::global().parse_chain(text).value();
  const std::vector<Shape> shapes = simt::small_shapes();
  bool ran = false;
  for (size_t i = 0; i < count; ++i) {
    const Shape& shape = shapes[(first + i) % shapes.size()];
    const tuner::ValidationReport report = tuner::validate(emulator(), chain, shape, {});
    ran = ran || report.outcome == Outcome::kOk;
    EXPECT_TRUE(report.outcome == Outcome::kOk || report.outcome == Outcome::kUnsupported)
        << "muse-simt '" << text << "' " << key(shape) << "\n"
        << tuner::name(report.outcome) << ": " << report.reason;
  }
  EXPECT_TRUE(ran) << text << " supports none of its shapes";
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string text = info.param;
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return text;
}

TEST(EmulatedVariants, AreAllThereWithEveryKernel) {
  std::set<std::string> compiled;
  for (const simt::CompiledKernel& kernel : simt::compiled_kernels()) {
    compiled.insert(std::string(kernel.candidate) + " " + kernel.entry);
  }
  EXPECT_FALSE(cuda_variants().empty());
  for (const Variant* variant : cuda_variants()) {
    for (const std::string& entry : variant->entries) {
      const Candidate candidate{variant, default_configuration(*variant)};
      EXPECT_TRUE(compiled.contains(key(candidate) + " " + entry)) << key(candidate);
    }
  }
}

TEST(EmulatedVariants, SmallShapesAreValidAndDiffer) {
  std::set<std::string> keys;
  for (const Shape& shape : simt::small_shapes()) {
    EXPECT_EQ(check(shape), "") << key(shape);
    EXPECT_EQ(parse_shape(key(shape)).value(), shape);
    keys.insert(key(shape));
  }
  EXPECT_EQ(keys.size(), simt::small_shapes().size());
}

class EmulatedCandidate : public testing::TestWithParam<std::string> {};
TEST_P(EmulatedCandidate, PassesTheGatesAlone) {
  expect_right(GetParam(), 0, simt::small_shapes().size());
}
INSTANTIATE_TEST_SUITE_P(Compiled, EmulatedCandidate, testing::ValuesIn(compiled_candidates()),
                         test_name);

class EmulatedPipeline : public testing::TestWithParam<std::string> {};
TEST_P(EmulatedPipeline, PassesTheGatesAsAWhole) {
  const std::vector<std::string> all = default_pipelines();
  const auto turn = std::find(all.begin(), all.end(), GetParam()) - all.begin();
  expect_right(GetParam(), static_cast<size_t>(turn) * kShapesOfPipeline, kShapesOfPipeline);
}
INSTANTIATE_TEST_SUITE_P(OfDefaults, EmulatedPipeline, testing::ValuesIn(default_pipelines()),
                         test_name);

class EmulatedAttention : public testing::TestWithParam<std::string> {};
TEST_P(EmulatedAttention, PassesTheGatesBehindALongWindow) {
  const Chain chain = Registry::global().parse_chain(GetParam()).value();
  const tuner::ValidationReport report =
      tuner::validate(emulator(), chain, simt::long_window_shape(), {});
  EXPECT_EQ(report.outcome, Outcome::kOk) << report.reason;
}
INSTANTIATE_TEST_SUITE_P(OfDefaults, EmulatedAttention, testing::ValuesIn(default_attentions()),
                         test_name);

/// The last CTA of an odd number of kv heads has one where others have two.
TEST(EmulatedVariants, AreRightOrRefuseAtAnOddNumberOfKvHeads) {
  for (const std::string& text : compiled_candidates()) {
    const Chain chain = Registry::global().parse_chain(text).value();
    if (!chain.front().span().covers(Stage::kAttention)) continue;
    const tuner::ValidationReport report =
        tuner::validate(emulator(), chain, simt::odd_heads_shape(), {});
    EXPECT_TRUE(report.outcome == Outcome::kOk || report.outcome == Outcome::kUnsupported)
        << text << "\n"
        << report.reason;
  }
}

}  // namespace
}  // namespace muse
