// SPDX-License-Identifier: Apache-2.0
// What is installed, as those who use it meet it: emitted folders and projects of others are
// configured, built and linked against it, and what they make is run.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "tests/fakes/command.h"
#include "tests/fakes/sanitized.h"
#include "tuner/emit.h"
#include "tuner/emit_build.h"
#include "tuner/emit_kernels.h"
#include "tuner/plan.h"
#include "tuner/records.h"
#include "variants/registry.h"

namespace muse {
namespace {

namespace fs = std::filesystem;
using fakes::CommandResult;
using fakes::read_file;
using fakes::write_file;
using nlohmann::json;

constexpr const char* kConfig = R"(schema: 1
defaults: {pool_bytes: 1MiB}
shapes:
  - {batch: [2, 8], q_len: 1, window: 0, rope_theta: 0, context: 64}
  - {batch: 2, q_len: 2, window: 32, rope_theta: 10000, context: 96}
variants: {include: ["*/scalar", "*/simd"], tunables: {"*": {threads: [1, 2], splits: [1, 4]}}}
measure: {max_rounds: 8, half_width_pct: 20}
)";
constexpr const char* kMeasured = "b2_l1_h16x2_d64_ps1_w0_rope0_kv1_t64_uniform_random_s1";
constexpr const char* kWindowed = "b2_l2_h16x2_d64_ps1_w32_rope10000_kv1_t96_uniform_random_s1";

bool is_there(const std::string& program) {
  return fakes::run_command({program, "--version"}).exit_code == 0;
}

class Consumer : public ::testing::Test {
 protected:
  void SetUp() override {
    if (fakes::kSanitized) GTEST_SKIP() << "the library needs its sanitizer's runtime";
    if (!is_there("cmake")) GTEST_SKIP() << "cmake is not on the path";
    run({"cmake", "--install", MUSE_BINARY_DIR, "--component", "runtime", "--prefix",
         prefix().string()});
  }
  fs::path prefix() const { return folder_ / "prefix"; }
  /// Runs what has to go well; gives what it printed.
  std::string run(const std::vector<std::string>& words) {
    const CommandResult result = fakes::run_command(words, {.folder = folder_.path()});
    EXPECT_EQ(result.exit_code, 0) << words[0] << " " << (words.size() > 1 ? words[1] : "") << "\n"
                                   << result.out << result.err;
    return result.out;
  }
  /// A table of this CPU in the folder `table`.
  void emit_host_table() {
    write_file(folder_ / "tiny.yaml", kConfig);
    run({MUSE_TUNE, "sweep", "tiny.yaml", "--target", "host", "--any-build"});
    run({MUSE_TUNE, "emit", "--out", "table"});
  }
  CommandResult configure(const fs::path& source, const std::string& build,
                          const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"cmake",
                                   "-S",
                                   source.string(),
                                   "-B",
                                   build,
                                   "-G",
                                   "Ninja",
                                   "-DCMAKE_BUILD_TYPE=Release",
                                   "-DCMAKE_PREFIX_PATH=" + prefix().string()};
    words.insert(words.end(), more.begin(), more.end());
    return fakes::run_command(words, {.folder = folder_.path()});
  }
  std::vector<std::string> compilers(const std::string& cxx) const {
    return {"-DCMAKE_CXX_COMPILER=" + cxx,
            "-DCMAKE_C_COMPILER=" + std::string(cxx == "clang++" ? "clang" : "gcc"),
            "-DDISPATCH_DIR=" + (folder_ / "table").string()};
  }
  /// Compiles the table's joint with the library as g++ does by hand.
  CommandResult compile_table() {
    return fakes::run_command({"g++", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
                               "-c", "-I", "table", "-I", (prefix() / "include/muse_tune").string(),
                               (prefix() / "share/muse_tune/table.cpp").string(), "-o", "table.o"},
                              {.folder = folder_.path()});
  }
  void edit_header(const std::string& pattern, const std::string& by) {
    const fs::path file = folder_ / "table/muse_dispatch.h";
    const std::string before = read_file(file);
    const std::string after = std::regex_replace(before, std::regex(pattern), by);
    ASSERT_NE(before, after) << pattern;
    write_file(file, after);
  }
  fakes::TemporaryFolder folder_;
};

class ConsumerOf : public Consumer, public ::testing::WithParamInterface<const char*> {};

TEST_P(ConsumerOf, ProgramsAndLibrariesServeTheTable) {
  const std::string cxx = GetParam();
  if (!is_there(cxx)) GTEST_SKIP() << cxx << " is not installed";
  emit_host_table();
  const CommandResult configured =
      configure(fs::path(MUSE_SOURCE_DIR) / "tests/consumer/project", "b", compilers(cxx));
  ASSERT_EQ(configured.exit_code, 0) << configured.err;
  run({"cmake", "--build", "b"});
  const std::string decoded = run({"b/decode_cpp", kMeasured, kWindowed});
  EXPECT_NE(decoded.find(std::string(kMeasured) + ": match=exact"), std::string::npos) << decoded;
  for (const char* program : {"b/decode_c", "b/decode_by_shared", "b/decode_by_static"}) {
    const std::string out = run({program});
    EXPECT_EQ(out.find("match=exact guard=tuned"), 0u) << out;
  }
}

INSTANTIATE_TEST_SUITE_P(Compilers, ConsumerOf, testing::Values("g++", "clang++"),
                         [](const auto& info) {
                           return info.param == std::string("g++") ? "Gcc" : "Clang";
                         });

/// Names that a shared library lets be seen.
std::set<std::string> exported(const std::string& nm_output) {
  std::set<std::string> names;
  std::istringstream lines(nm_output);
  for (std::string address, kind, name; lines >> address >> kind >> name;) names.insert(name);
  return names;
}

/// What muse_attention.h declares.
std::set<std::string> declared() {
  const std::string header =
      read_file(fs::path(MUSE_SOURCE_DIR) / "variants/runtime/muse_attention.h");
  static const std::regex kFunction(R"(MUSE_ATTENTION_API [^;(]*\b(muse_attention_\w+)\()");
  std::set<std::string> names;
  for (std::sregex_iterator i(header.begin(), header.end(), kFunction), end; i != end; ++i) {
    names.insert((*i)[1]);
  }
  return names;
}

TEST_F(Consumer, AnEmittedFolderBuildsAlone) {
  emit_host_table();
  const CommandResult configured = configure(folder_ / "table", "b");
  ASSERT_EQ(configured.exit_code, 0) << configured.err;
  run({"cmake", "--build", "b"});

  const json checked = json::parse(run({"b/muse_selfcheck", "--json", "--repeat", "3"}));
  EXPECT_EQ(checked["schema"], "muse.selfcheck");
  EXPECT_GE(checked["right"], 5) << "three rows by context, two or three without, the base";
  EXPECT_EQ(checked["wrong"], 0);
  for (const json& entry : checked["entries"]) {
    EXPECT_EQ(entry["not_run"], "") << entry;
    EXPECT_GT(entry["median_us"], 0) << entry;
  }
  const CommandResult nothing =
      fakes::run_command({(folder_ / "b/muse_selfcheck").string(), "--max-bytes", "1"});
  EXPECT_EQ(nothing.exit_code, 4) << "nothing could be checked";
  EXPECT_NE(nothing.out.find("more than allowed"), std::string::npos) << nothing.out;
  EXPECT_EQ(fakes::run_command({(folder_ / "b/muse_selfcheck").string(), "--repeat"}).exit_code, 2);
  const CommandResult full = fakes::run_command(
      {"sh", "-c", "exec '" + (folder_ / "b/muse_selfcheck").string() + "' --repeat 0 >/dev/full"});
  EXPECT_EQ(full.exit_code, 3) << "the report is lost";
  EXPECT_NE(full.err.find("could not be written"), std::string::npos) << full.err;

  if (!is_there("nm")) return;
  EXPECT_EQ(exported(run({"nm", "-D", "--defined-only", "b/libmuse_attention.so"})), declared());
}

TEST_F(Consumer, ASelfcheckFailsWhereARowIsNotAnsweredByItsOwnPipeline) {
  emit_host_table();
  edit_header(R"re(Pipeline\{\d+\}(, \d+\.))re", "Pipeline{999}$1");  // every row: it cannot run
  ASSERT_EQ(configure(folder_ / "table", "b").exit_code, 0);
  run({"cmake", "--build", "b", "--target", "muse_selfcheck"});
  const std::string program = (folder_ / "b/muse_selfcheck").string();
  const CommandResult checked = fakes::run_command({program, "--repeat", "0", "--json"});
  EXPECT_EQ(checked.exit_code, 4) << checked.err;
  const json document = json::parse(checked.out);
  EXPECT_EQ(document["wrong"], 0) << "others serve them";
  EXPECT_GE(document["right"], 1) << "the shape for the base, shapes between the rows";
  EXPECT_GE(document["other_pipeline"], 4);
  EXPECT_EQ(document["missed"].size(), 1u) << document["missed"];
  const CommandResult told = fakes::run_command({program, "--repeat", "0"});
  EXPECT_EQ(told.exit_code, 4);
  EXPECT_NE(
      told.out.find("what won there does not run here, and this pipeline is expected to lose"),
      std::string::npos)
      << told.out;
  EXPECT_NE(told.out.find("the caches flushed before as in a sweep.\nIn a sweep other candidates"),
            std::string::npos)
      << told.out;
}

TEST_F(Consumer, OfTwoSharedLibrariesInAProgramEachReachesItsOwnTable) {
  emit_host_table();
  fs::copy(folder_ / "table", folder_ / "other", fs::copy_options::recursive);
  edit_header(R"re(kDevice = \{"[^"]*")re", "kDevice = {\"First of two\"");
  std::vector<std::string> words = compilers("g++");
  words.push_back("-DOTHER_DISPATCH_DIR=" + (folder_ / "other").string());
  const CommandResult configured =
      configure(fs::path(MUSE_SOURCE_DIR) / "tests/consumer/project", "b", words);
  ASSERT_EQ(configured.exit_code, 0) << configured.err;
  run({"cmake", "--build", "b", "--target", "two_tables"});
  const std::string out = run({"b/two_tables"});
  const size_t second = out.find("second: ");
  ASSERT_NE(second, std::string::npos) << out;
  EXPECT_LT(out.find("First of two"), second) << out;
  EXPECT_EQ(out.find("First of two", second), std::string::npos) << out;
  if (!is_there("nm")) return;
  const std::string seen = run({"nm", "-D", "--defined-only", "b/libsecond.so"});
  EXPECT_EQ(seen.find("linked_table"), std::string::npos) << seen;
}

TEST_F(Consumer, BuildsByHandWithWhatPkgConfigSays) {
  if (!is_there("pkg-config")) GTEST_SKIP() << "pkg-config is not installed";
  emit_host_table();
  fs::path found;
  for (const auto& entry : fs::recursive_directory_iterator(prefix())) {
    if (entry.path().filename() == "muse_attention.pc") found = entry.path().parent_path();
  }
  ASSERT_FALSE(found.empty());
  const auto ask = [&](const std::string& what) {
    std::istringstream words(
        run({"env", "PKG_CONFIG_PATH=" + found.string(), "pkg-config", what, "muse_attention"}));
    std::vector<std::string> all;
    for (std::string word; words >> word;) all.push_back(word);
    return all;
  };
  const auto with = [](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  run({"g++", "-std=c++17", "-c", "-I", "table", "-I", ask("--variable=table_include").at(0),
       ask("--variable=table_source").at(0), "-o", "table.o"});
  const std::string main = std::string(MUSE_SOURCE_DIR) + "/tests/consumer/project/main.c";
  run(with({"gcc", "-std=c11", "-c", main, "-o", "main.o"}, ask("--cflags")));
  run(with({"gcc", "main.o", "table.o", "-o", "program"}, ask("--libs")));
  EXPECT_EQ(run({"./program"}).find("match=exact"), 0u);
}

TEST_F(Consumer, AStaleOrForeignTableDoesNotCompileAndSaysWhatToDo) {
  emit_host_table();
  const std::string good = read_file(folder_ / "table/muse_dispatch.h");
  const CommandResult compiled = compile_table();
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  const auto refused = [&](const std::string& pattern, const std::string& by,
                           const std::string& message) {
    write_file(folder_ / "table/muse_dispatch.h", good);
    edit_header(pattern, by);
    const CommandResult result = compile_table();
    EXPECT_NE(result.exit_code, 0) << pattern;
    EXPECT_NE(result.err.find(message), std::string::npos) << message << "\n" << result.err;
    EXPECT_NE(result.err.find("sweep and emit again"), std::string::npos) << result.err;
  };
  refused(R"re(("prepare/\w+", 1, "|built_from\("prepare/\w+", ")[0-9a-f]{8})re",
          "$0"
          "00000000",
          "built from other sources");
  refused(R"re((built_with_abi\("prepare/\w+", )1)re", "$01$1", "takes other arguments");
  refused("#define MUSE_DISPATCH_VARIANTS", "#define SOMETHING_ELSE", "does not list its variants");
}

TEST_F(Consumer, ATableOfANeighbourServesItsRowsAndAForeignOneTheBase) {
  emit_host_table();
  ASSERT_EQ(configure(fs::path(MUSE_SOURCE_DIR) / "tests/consumer/project", "b", compilers("g++"))
                .exit_code,
            0);
  const auto decoded = [&] {
    run({"cmake", "--build", "b", "--target", "decode_c"});
    return run({"b/decode_c"});
  };
  edit_header(R"re(kDevice = \{"[^"]*")re", "kDevice = {\"Another label\"");
  std::string out = decoded();
  EXPECT_EQ(out.find("match=other device guard=near device"), 0u) << out;
  edit_header(R"re(kDevice = \{"Another label", "[^"]*")re", "kDevice = {\"Another\", \"other\"");
  out = decoded();
  EXPECT_EQ(out.find("match=base guard=foreign"), 0u) << out;
}

/// CMake breaks lines where they are long.
std::string on_one_line(const std::string& text) {
  return std::regex_replace(text, std::regex("\\s+"), " ");
}

TEST_F(Consumer, AFolderWithoutATableIsNamed) {
  const CommandResult configured =
      configure(fs::path(MUSE_SOURCE_DIR) / "tests/consumer/project", "b", compilers("g++"));
  EXPECT_NE(configured.exit_code, 0);
  EXPECT_NE(on_one_line(configured.err)
                .find("`muse-tune emit --out " + (folder_ / "table").string() + "` writes"),
            std::string::npos)
      << configured.err;
}

TEST_F(Consumer, AHeaderBesideTheJsonOfAnotherEmitIsRefused) {
  emit_host_table();
  edit_header("MUSE_DISPATCH_TABLE_[0-9a-f]{8}", "MUSE_DISPATCH_TABLE_00000000");
  const CommandResult configured = configure(folder_ / "table", "b");
  EXPECT_NE(configured.exit_code, 0);
  EXPECT_NE(on_one_line(configured.err)
                .find("muse_dispatch.json and muse_dispatch.h in " + (folder_ / "table").string() +
                      " are of different emits: take all files of a folder from one"),
            std::string::npos)
      << configured.err;
}

TEST_F(Consumer, IsPackedForDebianWithLibcAlone) {
  if (!is_there("dpkg-deb") || !is_there("cpack")) GTEST_SKIP() << "dpkg-deb or cpack is missing";
  run({"cpack", "-G", "DEB", "--config", std::string(MUSE_BINARY_DIR) + "/CPackConfig.cmake", "-B",
       (folder_ / "packed").string()});
  fs::path package;
  for (const auto& entry : fs::directory_iterator(folder_ / "packed")) {
    if (entry.path().extension() == ".deb") package = entry.path();
  }
  ASSERT_FALSE(package.empty());
  const std::string depends = run({"dpkg-deb", "-f", package.string(), "Depends"});
  EXPECT_TRUE(std::regex_match(depends, std::regex("libc6 \\(>= [0-9.]+\\)\n"))) << depends;
  const std::string files = run({"dpkg-deb", "-c", package.string()});
  for (const char* file : {"/usr/bin/muse-tune", "/libmuse_attention.a", "/muse_attention.hpp",
                           "/muse_tuneConfig.cmake", "/muse_attention.pc", "/table.cpp"}) {
    EXPECT_NE(files.find(std::string(file) + "\n"), std::string::npos) << file << "\n" << files;
  }
}

/// The default base of a GPU as the table of a made-up one: what emit writes after a sweep there.
class ConsumerOfAGpu : public Consumer {
 protected:
  void SetUp() override {
    Consumer::SetUp();
    if (IsSkipped()) return;
    const auto base = tuner::default_base(TargetKind::kCuda, Registry::global());
    ASSERT_TRUE(base) << base.error();
    tuner::DispatchTable table;
    table.base = key(*base);
    table.regime = "cold";
    table.timer = "cupti";
    table.device = {.model = "Fictional GPU",
                    .host = false,
                    .cc = 90,
                    .sm_count = 132,
                    .memory_bytes = int64_t{1} << 37,
                    .driver_version = 13000,
                    .isa = "sm_90a"};
    table.toolkit = "nvrtc 13.0";
    table.rules = tuner::dispatch_rules({{"batch", "log2"}, {"context", "log2"}}, 1.6);
    for (const Candidate& candidate : *base) {
      table.variants.push_back(
          {candidate.variant->name, candidate.variant->abi, code_hash(*candidate.variant).value()});
    }
    Shape shape = parse_shape(kMeasured).value();
    table.rows = {{.shape = shape,
                   .pipeline = table.base,
                   .median_ns = 20000,
                   .low_ns = 19900,
                   .high_ns = 20100,
                   .base_median_ns = 20000,
                   .status = "winner",
                   .run = 1,
                   .date = "2030-01-02T03:04:05Z"}};
    table.captured = table.rows;
    const std::string header = tuner::dispatch_header(table);
    fs::create_directory(folder_ / "table");
    write_file(folder_ / "table/muse_dispatch.h", header);
    write_file(folder_ / "table/muse_dispatch.json",
               tuner::dispatch_json(table, tuner::hash_hex(header)));
    write_file(folder_ / "table/muse_kernels.cu",
               tuner::kernels_source({*base}, tuner::emit_id(table)));
    write_file(folder_ / "table/CMakeLists.txt", tuner::build_text(table, "0.1.0"));
  }
};

TEST_F(ConsumerOfAGpu, AProjectWithoutCudaIsToldWhatTheTableNeeds) {
  const CommandResult configured =
      configure(fs::path(MUSE_SOURCE_DIR) / "tests/consumer/project", "b", compilers("g++"));
  EXPECT_NE(configured.exit_code, 0);
  const std::string said = on_one_line(configured.err);
  EXPECT_NE(said.find("is for a GPU (Fictional GPU, sm_90a)"), std::string::npos) << said;
  const bool enable = said.find("enable_language(CUDA)") != std::string::npos;
  const bool rebuild = said.find("built without the CUDA target") != std::string::npos;
  EXPECT_TRUE(enable || rebuild) << said;
}

TEST_F(ConsumerOfAGpu, ItsFolderBuildsWithNvcc) {
  if (std::string(MUSE_NVCC).empty()) GTEST_SKIP() << "no nvcc here";
  const CommandResult configured =
      configure(folder_ / "table", "b", {"-DCMAKE_CUDA_COMPILER=" MUSE_NVCC});
  ASSERT_EQ(configured.exit_code, 0) << configured.err;
  const std::string built = run({"cmake", "--build", "b"});
  EXPECT_EQ(built.find("warning"), std::string::npos) << built;
  // Without a GPU it says so; on one, the table of another serves the base.
  const CommandResult checked =
      fakes::run_command({(folder_ / "b/muse_selfcheck").string(), "--repeat", "0"});
  EXPECT_TRUE(
      checked.exit_code == 0 ||
      (checked.exit_code == 3 && checked.err.find("muse_selfcheck: error: ") != std::string::npos))
      << checked.exit_code << checked.out << checked.err;
  if (!is_there("nm")) return;
  EXPECT_EQ(exported(run({"nm", "-D", "--defined-only", "b/libmuse_attention.so"})), declared());
}

}  // namespace
}  // namespace muse
