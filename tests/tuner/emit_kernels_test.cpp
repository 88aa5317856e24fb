// SPDX-License-Identifier: Apache-2.0
// muse_kernels.cu: what it names, and that nvcc makes the kernels of it, where nvcc is.
#include "tuner/emit_kernels.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/fakes/command.h"
#include "tuner/emit.h"
#include "tuner/plan.h"
#include "variants/registry.h"

namespace muse::tuner {
namespace {

namespace fs = std::filesystem;

size_t count(const std::string& text, const std::string& word) {
  size_t found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

Candidate of(const std::string& name) {
  const auto candidate = Registry::global().parse_candidate(name);
  if (!candidate) throw std::runtime_error(candidate.error());
  return *candidate;
}

/// Every CUDA variant at its default, each a chain of its own.
std::vector<Chain> every_default() {
  std::vector<Chain> chains;
  for (const Variant* variant : Registry::global().all()) {
    if (variant->target.kind != TargetKind::kCuda) continue;
    chains.push_back({Candidate{variant, default_configuration(*variant)}});
  }
  return chains;
}

TEST(EmitKernels, NamesEveryKernelOnceInOneOrder) {
  const std::vector<Chain> chains = every_default();
  std::vector<Chain> again(chains.rbegin(), chains.rend());
  again.insert(again.end(), chains.begin(), chains.end());
  const std::string text = kernels_source(chains);
  EXPECT_EQ(text, kernels_source(again));
  size_t kernels = 0;
  for (const Chain& chain : chains) {
    EXPECT_EQ(count(text, "{\"" + key(chain) + "\""), chain[0].variant->entries.size());
    kernels += chain[0].variant->entries.size();
  }
  EXPECT_EQ(count(text, "reinterpret_cast<const void*>"), kernels);
  EXPECT_EQ(count(text, "#include \"variants/runtime/linked_table.h\""), 1u);
}

TEST(EmitKernels, KeepsTwoConfigurationsOfOneVariantApart) {
  const Variant& mma = *Registry::global().find("attention/mma");
  std::vector<Configuration> all = space(mma);
  ASSERT_GE(all.size(), 2u);
  const std::string text = kernels_source({{Candidate{&mma, all[0]}}, {Candidate{&mma, all[1]}}});
  EXPECT_EQ(count(text, "reinterpret_cast<const void*>"), 2 * mma.entries.size());
}

TEST(EmitKernels, AsksForTheHeaderOfItsOwnEmit) {
  const std::vector<Chain> chains = {{of("attention/mma")}};
  const std::string text = kernels_source(chains, "0123");
  const size_t header =
      text.find("#include \"muse_dispatch.h\"\n#ifndef MUSE_DISPATCH_TABLE_0123\n");
  EXPECT_LT(header, text.find("#include \"variants/")) << text;
  EXPECT_EQ(kernels_source(chains).find("muse_dispatch.h\"\n"), std::string::npos);
}

TEST(EmitKernels, IsACommentForAHostTable) {
  const std::string text = kernels_source({{of("attention/scalar")}});
  EXPECT_EQ(text.find("#include"), std::string::npos);
  EXPECT_NE(text.find("host functions"), std::string::npos);
}

class EmittedByNvcc : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string(MUSE_NVCC).empty()) GTEST_SKIP() << "no nvcc here";
    char pattern[] = "/tmp/muse_emit_XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }
  /// As the header promises: other hosts' warnings are errors.
  fakes::CommandResult compile(const std::string& file, const std::string& text) {
    fakes::write_file(folder_ / file, text);
    return fakes::run_command({MUSE_NVCC, "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a",
                               "-Xcompiler=-Wall,-Wextra,-Werror", "-I", MUSE_SOURCE_DIR, "-I",
                               folder_.string(), "-c", (folder_ / file).string(), "-o",
                               (folder_ / "out.o").string()});
  }
  fs::path folder_;
};

TEST_F(EmittedByNvcc, EveryVariantAtItsDefaultCompiles) {
  const fakes::CommandResult result = compile("muse_kernels.cu", kernels_source(every_default()));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err.find("warning"), std::string::npos) << result.err;
}

TEST_F(EmittedByNvcc, TheHeaderCompilesBesideItsOwnKernelsAlone) {
  const auto base = default_base(TargetKind::kCuda, Registry::global());
  ASSERT_TRUE(base) << base.error();
  DispatchTable table;
  table.base = key(*base);
  table.regime = "cold";
  table.timer = "cupti";
  table.device.host = false;
  table.device.model = "Fictional GPU";
  table.device.isa = "sm_90a";
  table.toolkit = "nvrtc 13.0";
  Shape shape;
  shape.lengths.context = 4096;
  shape.problem.max_context = default_max_context(shape);
  table.rows = {{.shape = shape,
                 .pipeline = key(*base),
                 .median_ns = 20000,
                 .low_ns = 19900,
                 .high_ns = 20100,
                 .base_median_ns = 20000,
                 .status = "winner",
                 .run = 1,
                 .date = "2030-01-02T03:04:05Z"}};
  fakes::write_file(folder_ / "muse_dispatch.h", dispatch_header(table));
  const std::string kernels = kernels_source({*base}, emit_id(table));
  const fakes::CommandResult result =
      compile("muse_kernels.cu",
              kernels + "static_assert(muse::dispatch::kRowCount == 1, \"one shape\");\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err.find("warning"), std::string::npos) << result.err;

  table.rows[0].median_ns = 19950;
  fakes::write_file(folder_ / "muse_dispatch.h", dispatch_header(table));
  const fakes::CommandResult mixed = compile("muse_kernels.cu", kernels);
  EXPECT_NE(mixed.exit_code, 0);
  EXPECT_NE(mixed.err.find("are of different emits: take all files"), std::string::npos)
      << mixed.err;
}

}  // namespace
}  // namespace muse::tuner
