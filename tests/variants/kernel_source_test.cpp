// SPDX-License-Identifier: Apache-2.0
// The text of CUDA candidates, what of it is embedded, and what their hashes depend on.
#include "variants/kernel_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "tests/fakes/command.h"
#include "variants/registry.h"

namespace muse {
namespace {

namespace fs = std::filesystem;

Variant stem(const std::string& name, std::vector<std::string> entries = {"attend"}) {
  Variant variant;
  variant.name = name;
  variant.target.kind = TargetKind::kCuda;
  variant.entries = std::move(entries);
  return variant;
}

std::set<std::string> included_by(std::string_view text) {
  static const std::regex kInclude(R"re(^[ \t]*#[ \t]*include[ \t]*"([^"]+)")re");
  std::set<std::string> paths;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_search(line, match, kInclude)) paths.insert(match[1]);
  }
  return paths;
}

TEST(KernelSource, NamesAConfigurationByItsTunablesSorted) {
  EXPECT_EQ(configuration_name({{"tile_kv", 64}, {"splits", 4}}), "splits_4_tile_kv_64");
  EXPECT_EQ(configuration_name({{"shift", -1}}), "shift_m1");
  EXPECT_EQ(configuration_name({}), "defaults");
}

TEST(KernelSource, IsTheStemAndTheConfigurationAsAType) {
  const Variant variant = stem("attention/mma");
  const Candidate candidate{&variant, {{"tile_kv", 64}, {"splits", 4}}};
  EXPECT_EQ(configuration_text(candidate),
            "#include \"variants/attention/mma.cuh\"\n\n"
            "namespace muse::attention_mma {\n"
            "struct splits_4_tile_kv_64 {\n"
            "  static constexpr int splits = 4;\n"
            "  static constexpr int tile_kv = 64;\n"
            "};\n"
            "}  // namespace muse::attention_mma\n");
  EXPECT_EQ(kernel_expression(candidate, "attend"),
            "muse::attention_mma::attend<muse::attention_mma::splits_4_tile_kv_64>");
}

TEST(EmbeddedSources, AreTheFilesThemselvesInOrder) {
  const std::vector<SourceFile>& files = embedded_sources();
  ASSERT_FALSE(files.empty());
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string path(files[i].path);
    EXPECT_EQ(files[i].text, fakes::read_file(fs::path(MUSE_SOURCE_DIR) / path)) << path;
    if (i > 0) {
      EXPECT_LT(files[i - 1].path, files[i].path);
    }
  }
}

TEST(EmbeddedSources, HoldEveryProjectHeaderThatTheyInclude) {
  std::set<std::string> paths;
  for (const SourceFile& file : embedded_sources()) paths.emplace(file.path);
  for (const SourceFile& file : embedded_sources()) {
    for (const std::string& included : included_by(file.text)) {
      EXPECT_TRUE(paths.contains(included)) << file.path << " includes " << included;
    }
  }
}

TEST(EmbeddedSources, HoldTheStemOfEveryCudaVariant) {
  for (const Variant* variant : Registry::global().all()) {
    if (variant->target.kind != TargetKind::kCuda) continue;
    const std::vector<SourceFile> files = embedded_closure(*variant);
    const auto is_stem = [&](const SourceFile& file) {
      return file.path == "variants/" + variant->name + ".cuh";
    };
    EXPECT_TRUE(std::any_of(files.begin(), files.end(), is_stem)) << variant->name;
  }
}

TEST(EmbeddedClosure, ReachesHeadersOfHeadersAndNothingElse) {
  const Variant gate = stem("gate/separate");
  std::set<std::string> reached;
  for (const SourceFile& file : embedded_closure(gate)) reached.emplace(file.path);
  EXPECT_TRUE(reached.contains("variants/gate/separate.cuh"));
  EXPECT_TRUE(reached.contains("variants/device/types.h"));
  EXPECT_FALSE(reached.contains("variants/attention/mma.cuh"));
  const Variant unknown = stem("gate/nowhere");
  EXPECT_THROW(embedded_closure(unknown), std::logic_error);
}

TEST(SourceHash, DependsOnStemConfigurationAndEntries) {
  const Variant mma = stem("attention/mma"), simt = stem("attention/simt");
  const Variant more = stem("attention/mma", {"attend", "attend_8_rows"});
  const Configuration two{{"splits", 2}}, four{{"splits", 4}};
  const std::string hash = source_hash({&mma, two});
  EXPECT_EQ(hash.size(), 32u);
  EXPECT_EQ(hash, source_hash({&mma, two}));
  EXPECT_NE(hash, source_hash({&mma, four}));
  EXPECT_NE(hash, source_hash({&simt, two}));
  EXPECT_NE(hash, source_hash({&more, two}));
}

/// Hash of each stem in the tree, as the build tool writes them.
std::string closures(const fakes::TemporaryFolder& folder, const std::string& flags) {
  const fakes::CommandResult result =
      fakes::run_command({MUSE_BINARY_DIR "/variants/muse-source-closure", folder.path().string(),
                          folder / "closures.cpp", folder / "embedded.cpp", flags});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return fakes::read_file(folder / "closures.cpp");
}

std::string line_of(const std::string& text, const std::string& name) {
  const size_t at = text.find("{\"" + name + "\"");
  EXPECT_NE(at, std::string::npos) << name;
  return text.substr(at, text.find('\n', at) - at);
}

TEST(CodeHash, OfACudaStemIgnoresTheHostCompilerAndSeesAllItsFiles) {
  const fakes::TemporaryFolder folder;
  fs::create_directories(folder / "variants/gate");
  fs::create_directories(folder / "variants/device");
  fakes::write_file(folder / "variants/gate/host.cpp", "int host;\n");
  fakes::write_file(folder / "variants/gate/cuda.cpp", "#include \"variants/gate/cuda.cuh\"\n");
  fakes::write_file(folder / "variants/gate/cuda.cuh", "#include \"variants/device/help.h\"\n");
  fakes::write_file(folder / "variants/device/help.h", "\"\\\t\xff trigraph?\?/\r\n");
  fakes::write_file(folder / "variants/device/help.cpp", "int help;\n");
  const std::string before = closures(folder, "g++ -O2");
  const std::string other = closures(folder, "clang++ -O3");
  EXPECT_NE(line_of(before, "gate/host"), line_of(other, "gate/host"));
  EXPECT_EQ(line_of(before, "gate/cuda"), line_of(other, "gate/cuda"));
  for (const char* file : {"variants/gate/cuda.cpp", "variants/gate/cuda.cuh",
                           "variants/device/help.h", "variants/device/help.cpp"}) {
    const std::string text = fakes::read_file(folder / file);
    fakes::write_file(folder / file, text + "// changed\n");
    const std::string after = closures(folder, "g++ -O2");
    EXPECT_NE(line_of(before, "gate/cuda"), line_of(after, "gate/cuda")) << file;
    EXPECT_EQ(line_of(before, "gate/host"), line_of(after, "gate/host")) << file;
    fakes::write_file(folder / file, text);
  }
  EXPECT_EQ(closures(folder, "g++ -O2"), before);
  // Every byte that a compiler could read as something else is escaped.
  const std::string embedded = fakes::read_file(folder / "embedded.cpp");
  EXPECT_NE(embedded.find(R"(\"\\\011\377 trigraph\?\?/\015\n)"), std::string::npos) << embedded;
}

}  // namespace
}  // namespace muse
