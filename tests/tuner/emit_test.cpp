// SPDX-License-Identifier: Apache-2.0
// The dispatch header: golden bytes, clean under two compilers, right against brute force.
//
// MUSE_UPDATE_GOLDEN=1 in the environment rewrites tests/golden/muse_dispatch.h.
#include "tuner/emit.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <clocale>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <locale>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "tuner/emit_build.h"

namespace muse::tuner {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(MUSE_SOURCE_DIR) / "tests/golden/muse_dispatch.h";
const fs::path kGoldenJson = fs::path(MUSE_SOURCE_DIR) / "tests/golden/muse_dispatch.json";
const fs::path kUnits = fs::path(MUSE_SOURCE_DIR) / "tests/tuner/emitted";

Shape shape(int64_t batch, int64_t q_len, int64_t window, int64_t context) {
  Shape s;
  s.problem.batch = batch;
  s.problem.q_len = q_len;
  s.problem.window = window;
  s.problem.rope_theta = window > 0 ? 500000 : 0;
  s.lengths.context = context;
  s.problem.max_context = default_max_context(s);
  return s;
}

DispatchRow row(const Shape& s, const std::string& pipeline, double median_ns = 12345) {
  return {.shape = s,
          .pipeline = pipeline,
          .median_ns = median_ns,
          .low_ns = median_ns - 45,
          .high_ns = median_ns + 55,
          .base_median_ns = 2 * median_ns,
          .status = "tie(2)",
          .run = 3,
          .date = "2030-01-02T03:04:05Z"};
}

const std::string kBase = "prepare/scalar + attention/scalar + combine/scalar + gate/scalar";
const std::string kFast =
    "prepare/vector + attention/vector:splits=4,tile_kv=64 + combine/vector + gate/vector";
const std::string kFused = "fused/vector:tile_kv=128";
const std::string kBetween = "fused/vector:tile_kv=256";  // of no row

/// The same choice for some shapes of one key, of which the first loses most.
DispatchRow captured(const std::vector<Shape>& shapes, const std::string& pipeline) {
  DispatchRow result = row(shapes.front(), pipeline);
  result.status = "captured";
  double regret_pct = 2.5;
  for (const Shape& s : shapes) {
    result.over.push_back({key(s), result.median_ns, regret_pct});
    regret_pct /= 2;
  }
  result.regret_pct = 2.5;
  return result;
}

/// One of everything: windowed and full layers, colliding keys, a ragged batch, the base as choice.
DispatchTable sample_table() {
  DispatchTable table;
  table.base = kBase;
  table.regime = "cold";
  table.timer = "host";
  table.device.model = "Fictional CPU \"8\" \\ two";
  table.device.isa = "avx2";
  table.device.sm_count = 8;
  table.device.memory_bytes = int64_t{1} << 36;
  table.driver = "6.1.0";
  table.toolkit = "none";
  table.source_hash = "0123456789abcdef0123456789abcdef";
  table.variants = {
      {"prepare/scalar", 1, "aa"}, {"fused/vector", 2, "bb"}, {"attention/vector", 1, "cc"}};
  table.rules = dispatch_rules({{"batch", "log2"}, {"context", "log2"}}, 1.6);
  table.regret = {0.012, 0.003};
  table.captured_regret = {0.025, 0.01};
  table.provenance = {{"config", "a.yaml"}};
  table.generator = "muse-tune 0.0.0";
  table.rows = {
      row(shape(1, 1, 0, 4096), kFast),          row(shape(8, 1, 0, 4096), kFused),
      row(shape(1, 1, 2048, 4096), kFast, 1111), row(shape(1, 1, 2048, 32768), kFused, 2222),
      row(shape(1, 8, 2048, 1024), kBase),       row(shape(1, 8, 2048, 4096), kFused)};
  Shape ragged = shape(4, 1, 0, 8000);
  ragged.lengths.profile = Profile::kOutlier;
  ragged.lengths.rest = 1;
  table.rows.push_back(row(ragged, kFused));
  table.rows[0].losses = {{kBase, 6553}, {kFast, 0}, {kFused, 120}, {kBetween, 7}};
  table.rows[1].losses = {{kFused, 0}, {kBetween, dispatch::kUnmeasured - 1}};
  table.rows[3].losses = {{kBase, 10000}, {kFused, 0}};
  table.rows.front().rule = "fastest";
  table.rows.front().tie_set = {kFast, kFused};
  table.captured = {captured({shape(1, 1, 0, 4096)}, kFast),
                    captured({shape(1, 1, 2048, 4096), shape(1, 1, 2048, 32768)}, kFused),
                    captured({shape(1, 8, 2048, 1024), shape(1, 8, 2048, 4096)}, kBase)};
  table.captured[1].losses = {{kBase, 9999}, {kFused, 250}};
  return table;
}

/// Names as nobody should choose them.
DispatchTable hostile_table() {
  DispatchTable table = sample_table();
  table.base = "gemm-128x64 + a.b + 3stage + class + two words";
  const std::string names[] = {"a\"b",
                               "a\\",
                               "gr\xc3\xb6\xc3\x9f"
                               "e",
                               "k<float, 128>",
                               "a-b",
                               "a_b",
                               "\?\?/",
                               "*/ /* // \n#error newline",
                               std::string("nul\0l", 5) +
                                   "\x01"
                                   "7",
                               "\xff\xfe",
                               "%s{}",
                               ""};
  table.rows.clear();
  table.captured.clear();
  for (size_t i = 0; i < std::size(names); ++i) {
    table.rows.push_back(row(shape(static_cast<int64_t>(i) + 1, 1, 0, 100), names[i]));
    table.rows.back().status = table.rows.back().date = names[i];
    table.variants.push_back({names[i], 1, names[i]});
  }
  table.device.model = table.driver = table.toolkit = table.generator = names[7];
  return table;
}

std::string read(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "muse_emit_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

struct Ended {
  int status;
  std::string output;
};

/// Runs a program without a shell; status 127 where there is none.
Ended run(const Folder& folder, std::vector<std::string> arguments) {
  const std::string log = (folder / "log").string();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return {127, ""};
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, read(log)};
}

const std::vector<std::string> kStrict = {"-std=c++17",   "-Wall",    "-Wextra", "-Wpedantic",
                                          "-Wconversion", "-Wshadow", "-Werror"};

Ended compile(const Folder& folder, const std::string& compiler,
              const std::vector<std::string>& more) {
  std::vector<std::string> command{compiler};
  command.insert(command.end(), kStrict.begin(), kStrict.end());
  command.insert(command.end(), more.begin(), more.end());
  return run(folder, command);
}

std::string unit(const std::string& name) { return (kUnits / name).string(); }

/// Of the base and 14 more, some not measured, many the same.
std::map<std::string, uint16_t> random_losses(std::mt19937_64& random) {
  std::map<std::string, uint16_t> losses;
  if (random() % 8 == 0) return losses;
  if (random() % 4 != 0) losses[kBase] = static_cast<uint16_t>(random() % 3000);
  for (int i = 0; i < 14; ++i) {
    if (random() % 3 == 0) continue;
    losses["p/" + std::to_string(i)] =
        static_cast<uint16_t>(random() % 16 == 0 ? dispatch::kUnmeasured - 1 : random() % 5 * 100);
  }
  return losses;
}

/// Many shapes of several structures at odd places, some sharing keys, of 15 pipelines and more.
DispatchTable random_table(uint64_t seed, const std::map<std::string, std::string>& axes) {
  DispatchTable table = sample_table();
  table.rules = dispatch_rules(axes, 1.6);
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t bound) { return static_cast<int64_t>(random() % bound); };
  for (int i = 0; i < 80; ++i) {
    Shape s = shape(1 + (below(256) >> below(9)), 1 + below(3) * 3, below(2) * (1024 << below(2)),
                    16 + (below(1 << 17) >> below(14)));
    s.problem.page_size = int64_t{1} << (below(4) == 0 ? 4 + below(5) : 0);
    s.problem.kv_scale = below(8) == 0 ? 2 : 1;
    s.problem.max_context = default_max_context(s);
    table.rows.push_back(row(s, "p/" + std::to_string(below(12))));
    table.captured.push_back(captured({s}, "p/" + std::to_string(below(12))));
    table.rows.back().losses = random_losses(random);
    table.captured.back().losses = random_losses(random);
  }
  return table;
}

class EmitCompiled : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (run(folder_, {GetParam(), "--version"}).status != 0) {
      GTEST_SKIP() << GetParam() << " is not installed";
    }
  }
  void write_header(const DispatchTable& table) const {
    folder_.write("muse_dispatch.h", dispatch_header(table));
  }
  std::string include() const { return "-I" + (folder_ / "").string(); }
  /// Holds a million answers against a walk over the rows.
  Ended ask_a_million(const DispatchTable& table) {
    write_header(table);
    const std::string program = (folder_ / "program").string();
    const Ended built = compile(folder_, GetParam(),
                                {"-O2", "-fsanitize=undefined", "-fno-sanitize-recover=all",
                                 include(), unit("walk.cpp"), unit("other.cpp"), "-o", program});
    if (built.status != 0) return built;
    return run(folder_, {program});
  }
  /// Compiles other.cpp without making anything of it.
  Ended check_unit(std::vector<std::string> more) {
    more.insert(more.end(), {"-fsyntax-only", include(), unit("other.cpp")});
    return compile(folder_, GetParam(), more);
  }
  Folder folder_;
};

TEST_P(EmitCompiled, AnswersLikeAWalkOverTheRows) {
  const Ended ended = ask_a_million(random_table(1, {{"batch", "log2"}, {"context", "log2"}}));
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_EQ(ended.output.rfind("0 wrong of 1000000", 0), 0u) << ended.output;
  EXPECT_EQ(ended.output.find(" 0,"), std::string::npos)
      << "every kind of answer: " << ended.output;
  EXPECT_EQ(ended.output.find(" 0\n"), std::string::npos)
      << "and other pipelines than the nearest row's: " << ended.output;
}

TEST_P(EmitCompiled, TakesTheAxesOfTheConfig) {
  const Ended ended =
      ask_a_million(random_table(2, {{"batch", "exact"}, {"context", "log2"}, {"q_len", "log2"}}));
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_EQ(ended.output.rfind("0 wrong of 1000000", 0), 0u) << ended.output;
}

TEST_P(EmitCompiled, AnswersWithTheBaseWhereTheTableIsEmpty) {
  DispatchTable table = sample_table();
  table.rows.clear();
  table.captured.clear();
  table.variants.clear();
  const Ended ended = ask_a_million(table);
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_EQ(ended.output.rfind("0 wrong of 1000000; exact 0, near 0, other device 0", 0), 0u)
      << ended.output;
}

TEST_P(EmitCompiled, IsCleanUnderStrictWarnings) {
  write_header(sample_table());
  const Ended ended = check_unit({});
  EXPECT_EQ(ended.status, 0) << ended.output;
}

TEST_P(EmitCompiled, KeepsHostileNamesApartAsText) {
  const DispatchTable table = hostile_table();
  write_header(table);
  const std::string program = (folder_ / "program").string();
  const Ended built =
      compile(folder_, GetParam(), {include(), unit("print_keys.cpp"), "-o", program});
  ASSERT_EQ(built.status, 0) << built.output;
  std::string expected;
  for (const DispatchRow& r : table.rows) expected += std::string(r.pipeline.c_str()) + "\n";
  EXPECT_EQ(run(folder_, {program}).output, expected);
  // Assertions about them: an empty list of what is built is told by name, and compiles otherwise.
  const Ended nothing = check_unit({"-DMUSE_BUILD_VARIANTS(X)="});
  EXPECT_NE(nothing.status, 0);
  EXPECT_NE(nothing.output.find("a-b: this build lacks it"), std::string::npos) << nothing.output;
  EXPECT_NE(nothing.output.find("a_b: this build lacks it"), std::string::npos) << nothing.output;
}

TEST_P(EmitCompiled, RefusesAStaleTableAtCompileTime) {
  write_header(sample_table());
  const auto with_hash = [&](const std::string& hash) {
    return check_unit({"-DMUSE_DISPATCH_SOURCE_HASH=\"" + hash + "\""});
  };
  EXPECT_EQ(with_hash(sample_table().source_hash).status, 0);
  const Ended stale = with_hash("0123456789abcdef0123456789abcdee");
  EXPECT_NE(stale.status, 0);
  EXPECT_NE(stale.output.find("sweep and emit again"), std::string::npos) << stale.output;
}

TEST_P(EmitCompiled, LooksAtTheVariantsThatItNamesAndAtNoOther) {
  write_header(sample_table());
  const auto with = [&](const std::string& fused, const std::string& more) {
    return check_unit({"-DMUSE_BUILD_VARIANTS(X)=X(\"prepare/scalar\",1,\"aa\")" + fused +
                       "X(\"attention/vector\",1,\"cc\")" + more});
  };
  const std::string same = "X(\"fused/vector\",2,\"bb\")";
  EXPECT_EQ(with(same, "").status, 0) << with(same, "").output;
  EXPECT_EQ(with(same, "X(\"gate/unused\",9,\"zz\")").status, 0);
  const Ended sanitized = check_unit(
      {"-fsanitize=undefined", "-DMUSE_BUILD_VARIANTS(X)=X(\"prepare/scalar\",1,\"aa\")" + same +
                                   "X(\"attention/vector\",1,\"cc\")"});
  EXPECT_EQ(sanitized.status, 0) << sanitized.output;
  const Ended other_abi = with("X(\"fused/vector\",3,\"bb\")", "");
  EXPECT_NE(other_abi.status, 0);
  EXPECT_NE(other_abi.output.find("fused/vector: this build lacks it, or takes other arguments"),
            std::string::npos)
      << other_abi.output;
  const Ended other_source = with("X(\"fused/vector\",2,\"bc\")", "");
  EXPECT_NE(other_source.status, 0);
  EXPECT_NE(other_source.output.find("fused/vector: built from other sources"), std::string::npos)
      << other_source.output;
  EXPECT_EQ(other_source.output.find("prepare/scalar: "), std::string::npos);
}

TEST_P(EmitCompiled, RefusesTheTableOfAnotherArchitecture) {
  write_header(sample_table());
  EXPECT_EQ(check_unit({"-DMUSE_DISPATCH_ISA=\"avx2\""}).status, 0);
  const Ended foreign = check_unit({"-DMUSE_DISPATCH_ISA=\"sm_90a\""});
  EXPECT_NE(foreign.status, 0);
  EXPECT_NE(foreign.output.find("another architecture"), std::string::npos) << foreign.output;
}

TEST_P(EmitCompiled, RefusesTwoTablesAndTwoFormatsInOneUnit) {
  write_header(sample_table());
  DispatchTable other = sample_table();
  other.rows.pop_back();
  const std::string second = folder_.write("second.h", dispatch_header(other)).string();
  const Ended two = check_unit({"-include", second});
  EXPECT_NE(two.status, 0);
  EXPECT_NE(two.output.find("two dispatch tables meet"), std::string::npos) << two.output;
  const Ended format = check_unit({"-DMUSE_DISPATCH_FORMAT=2"});
  EXPECT_NE(format.status, 0);
  EXPECT_NE(format.output.find("emit again"), std::string::npos) << format.output;
}

/// The sample with three shapes held out, one of them not measured with what the table picks.
DispatchTable with_held_out() {
  DispatchTable table = sample_table();
  const HeldOutShape near{.shape = "near \"one\"",
                          .match = dispatch::Match::kNear,
                          .distance = 0.5,
                          .pick = kFast,
                          .best = kFused,
                          .best_ns = 1000,
                          .pick_ns = 1125},
      exact{.shape = "exact",
            .match = dispatch::Match::kExact,
            .pick = kFused,
            .best = kFused,
            .best_ns = 1000,
            .pick_ns = 1000},
      base{.shape = "far", .pick = kBase, .best = kFused, .best_ns = 1000};
  table.held_out = HeldOut{
      .shapes = {exact, base, near}, .captured = {base}, .provenance = {{"database", "other.db"}}};
  return table;
}

TEST_P(EmitCompiled, SaysWhatIsLostOnShapesThatWereHeldOut) {
  write_header(with_held_out());
  const std::string check = folder_
                                .write("check.cpp", R"(#include "muse_dispatch.h"
namespace d = muse::dispatch;
static_assert(d::kHeldOutShapes == 3 && d::kHeldOutMeasured == 2, "");
static_assert(d::kHeldOutExact == 1 && d::kHeldOutNear == 1 && d::kHeldOutBase == 1, "");
static_assert(d::kHeldOutRegretPctWorst == 12.5 && d::kHeldOutRegretPctMean == 6.066, "");
static_assert(d::detail::same_text(d::kHeldOutWorstShape, "near \"one\""), "");
static_assert(d::kCapturedHeldOutShapes == 1 && d::kCapturedHeldOutMeasured == 0, "");
static_assert(d::kCapturedHeldOutBase == 1 && d::kCapturedHeldOutRegretPctWorst == -1, "");
static_assert(d::kCapturedHeldOutRegretPctMean == -1, "");
static_assert(d::detail::same_text(d::kCapturedHeldOutWorstShape, ""), "");
)")
                                .string();
  const Ended ended = compile(folder_, GetParam(), {"-fsyntax-only", include(), check});
  EXPECT_EQ(ended.status, 0) << ended.output;
}

TEST_P(EmitCompiled, SharesAUnitWithTheLookupOfTheSources) {
  write_header(sample_table());
  const std::string lookup = std::string(MUSE_SOURCE_DIR) + "/variants/runtime/dispatch_lookup.h";
  EXPECT_EQ(check_unit({"-include", lookup}).status, 0);
}

INSTANTIATE_TEST_SUITE_P(Compilers, EmitCompiled, testing::Values("g++", "clang++"),
                         [](const auto& info) {
                           return info.param == std::string("g++") ? "Gcc" : "Clang";
                         });

TEST(Emit, HostileNamesCompileUnderNvcc) {
  if (std::string(MUSE_NVCC).empty()) GTEST_SKIP() << "no nvcc here";
  const Folder folder;
  folder.write("muse_dispatch.h", dispatch_header(hostile_table()));
  const std::string unit =
      folder.write("unit.cu", "#include \"muse_dispatch.h\"\n#include \"muse_dispatch.h\"\n")
          .string();
  const Ended ended = run(folder, {MUSE_NVCC, "-std=c++17", "-Xcompiler=-Wall,-Wextra,-Werror",
                                   "-c", unit, "-o", (folder / "unit.o").string()});
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_EQ(ended.output.find("warning"), std::string::npos) << ended.output;
}

TEST_P(EmitCompiled, ReadsAThousandRowsInATimeThatIsTold) {
  DispatchTable table = sample_table();
  table.rows.clear();
  for (int i = 0; i < 1000; ++i) table.rows.push_back(row(shape(1 + i % 50, 1, 0, 64 + i), kFast));
  table.captured.clear();
  write_header(table);
  const auto start = std::chrono::steady_clock::now();
  const Ended ended = compile(
      folder_, GetParam(),
      {"-O2", "-c", include(), unit("print_keys.cpp"), "-o", (folder_ / "unit.o").string()});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(ended.status, 0) << ended.output;
  RecordProperty("seconds", std::to_string(took.count()));
  std::printf("%s: %.2f s\n", GetParam(), took.count());
}

TEST(Emit, MatchesTheGoldenHeader) {
  const std::string header = dispatch_header(sample_table());
  const std::string json = dispatch_json(sample_table(), "0123");
  if (std::getenv("MUSE_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(kGolden, std::ios::binary) << header;
    std::ofstream(kGoldenJson, std::ios::binary) << json;
  }
  EXPECT_EQ(header, read(kGolden)) << "MUSE_UPDATE_GOLDEN=1 rewrites " << kGolden;
  EXPECT_EQ(json, read(kGoldenJson)) << "MUSE_UPDATE_GOLDEN=1 rewrites " << kGoldenJson;
}

TEST(Emit, ListsItsVariantsForTheLinkerWhereEveryNameIsOneOfCpp) {
  DispatchTable table = sample_table();
  EXPECT_NE(dispatch_header(table).find("#define MUSE_DISPATCH_VARIANTS(X) \\\n"
                                        "  X(attention, vector) \\\n  X(fused, vector) \\\n"
                                        "  X(prepare, scalar)\n"),
            std::string::npos);
  table.variants = {{"gate/class", 1, "aa"}, {"gate/3stage", 1, "bb"}};
  EXPECT_NE(dispatch_header(table).find("X(gate, 3stage) \\\n  X(gate, class)\n"),
            std::string::npos)
      << "as a part of a longer name each of them is one";
  for (const char* name : {"gate/a-b", "gate/a.b", "gate/two words", "gate", "gate/", "gate/a/b",
                           "gate/gr\xc3\xb6", "gate/a\"b", "gate/a\\"}) {
    table.variants = {{"gate/good", 1, "aa"}, {name, 1, "bb"}};
    EXPECT_EQ(dispatch_header(table).find("MUSE_DISPATCH_VARIANTS"), std::string::npos) << name;
  }
}

TEST(Emit, AllFilesHaveTheIdOfWhatTheHeaderSays) {
  const std::string id = emit_id(sample_table());
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
  const std::string header = dispatch_header(sample_table());
  EXPECT_NE(header.find("\n#define MUSE_DISPATCH_TABLE_" + id + "\n"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(dispatch_json(sample_table(), ""))["id"], id);
  DispatchTable other = sample_table();
  other.rows.front().median_ns += 1;
  EXPECT_NE(emit_id(other), id);
  other = sample_table();
  other.generator = "muse-tune 0.0.1";
  EXPECT_NE(emit_id(other), id);
}

TEST(Emit, ItsBuildNamesTheLanguagesOfTheTarget) {
  DispatchTable table = sample_table();
  EXPECT_NE(build_text(table, "1.2.3").find("project(muse_dispatch LANGUAGES CXX)\n"),
            std::string::npos);
  EXPECT_NE(build_text(table, "1.2.3").find("find_package(muse_tune 1.2.3 REQUIRED)\n"),
            std::string::npos);
  EXPECT_TRUE(build_text(table, "1.2.3").starts_with(kBuildMark));
  table.device.host = false;
  EXPECT_NE(build_text(table, "1.2.3").find("LANGUAGES CXX CUDA)\n"), std::string::npos);
}

TEST(Emit, TheJsonHasEachShapeThatWasHeldOut) {
  const auto parsed = nlohmann::json::parse(dispatch_json(with_held_out(), ""));
  EXPECT_FALSE(nlohmann::json::parse(dispatch_json(sample_table(), "")).contains("held_out"));
  const nlohmann::json& all = parsed["held_out"];
  EXPECT_EQ(all["guard"], "tuned");
  EXPECT_EQ(all["provenance"]["database"], "other.db");
  const nlohmann::json& eager = all["entries"];
  EXPECT_EQ(eager["measured"], 2);
  EXPECT_EQ(eager["worst_shape"], "near \"one\"");
  EXPECT_EQ(eager["regret"]["worst_pct"], 12.5);
  ASSERT_EQ(eager["lookups"].size(), 3u);
  const nlohmann::json& near = eager["lookups"][2];
  EXPECT_EQ(near["match"], "near");
  EXPECT_EQ(near["distance"], 0.5);
  EXPECT_EQ(near["pick"], kFast);
  EXPECT_EQ(near["best"], kFused);
  EXPECT_EQ(near["regret_pct"], 12.5);
  EXPECT_TRUE(eager["lookups"][1]["regret_pct"].is_null());
  EXPECT_TRUE(all["captured"]["regret"].is_null());
  EXPECT_EQ(parsed["entries"].size(), sample_table().rows.size());
}

TEST(Emit, IsTheSameForAnyOrderOfRows) {
  DispatchTable table = sample_table();
  const std::string expected = dispatch_header(table);
  std::mt19937_64 random(1);
  for (int i = 0; i < 10; ++i) {
    std::shuffle(table.rows.begin(), table.rows.end(), random);
    std::shuffle(table.variants.begin(), table.variants.end(), random);
    std::shuffle(table.captured.begin(), table.captured.end(), random);
    ASSERT_EQ(dispatch_header(table), expected);
    ASSERT_EQ(dispatch_json(table, ""), dispatch_json(sample_table(), ""));
    ASSERT_EQ(emit_id(table), emit_id(sample_table()));
  }
}

class CommaPunctuation : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Emit, HowAPipelineIsLaunchedStaysInItsKeyAndIsNoCandidate) {
  DispatchTable overlapping = sample_table();
  overlapping.rows.front().pipeline = kFast + " + pdl";
  const std::string text = dispatch_header(overlapping);
  EXPECT_NE(text.find('"' + kFast + " + pdl\""), std::string::npos);
  EXPECT_EQ(text.find("\"pdl\""), std::string::npos);
}

TEST(Emit, WritesNumbersWithAPointUnderAnyLocale) {
  const std::string expected = dispatch_header(sample_table());
  const std::locale before =
      std::locale::global(std::locale(std::locale::classic(), new CommaPunctuation));
  std::setlocale(LC_ALL, "de_DE.UTF-8");  // where it is installed
  const std::string header = dispatch_header(sample_table());
  const std::string under_locale = dispatch_json(sample_table(), "");  // with the id
  std::locale::global(before);
  std::setlocale(LC_ALL, "C");
  EXPECT_EQ(header, expected);
  EXPECT_EQ(under_locale, dispatch_json(sample_table(), ""));
}

TEST(Emit, ChoosesTheLargestContextOfAWindowedKey) {
  EXPECT_EQ(dispatch_context(shape(1, 1, 2048, 4096)), 2048);
  EXPECT_EQ(dispatch_context(shape(1, 1, 2048, 32768)), 2048);
  EXPECT_EQ(dispatch_context(shape(1, 8, 2048, 4096)), 2055);
  EXPECT_EQ(dispatch_context(shape(1, 8, 2048, 1024)), 1024);
  EXPECT_EQ(dispatch_context(shape(1, 1, 0, 32768)), 32768);
  const std::string header = dispatch_header(sample_table());
  const size_t chosen = header.find("_t32768_"),
               evidence = header.find("w2048_rope500000_kv1_t4096_");
  ASSERT_NE(chosen, std::string::npos);
  ASSERT_NE(evidence, std::string::npos) << "the other row stays as evidence";
  EXPECT_LT(chosen, evidence);
}

TEST(Emit, FindsRaggedShapesUnderTheirMeanContext) {
  Shape ragged = shape(4, 1, 0, 8000);
  ragged.lengths.profile = Profile::kOutlier;
  ragged.lengths.rest = 1;
  EXPECT_EQ(dispatch_context(ragged), (8000 + 3 + 3) / 4);
  // Uniform lengths of the same mean come first.
  DispatchTable table = sample_table();
  table.rows = {row(ragged, kFused), row(shape(4, 1, 0, dispatch_context(ragged)), kFast)};
  const std::string header = dispatch_header(table);
  EXPECT_LT(header.find("_uniform_"), header.find("_outlier1_"));
}

TEST(Emit, HostileTextIsStillJson) {
  const auto parsed = nlohmann::json::parse(dispatch_json(hostile_table(), ""));
  EXPECT_EQ(parsed["schema"], "muse.dispatch");
  EXPECT_EQ(parsed["entries"].size(), hostile_table().rows.size());
}

TEST(Emit, KnowsTheCompilerOfATable) {
  EXPECT_EQ(compiler_version("nvrtc 13.0", false), 13000);
  EXPECT_EQ(compiler_version("nvrtc 12.9.41", false), 12090);
  EXPECT_EQ(compiler_version("GNU 12.2.0", true), 0);
  for (const char* none : {"", "nvrtc", "nvrtc 13", "nvrtc 99999999999.0", "13.x"}) {
    EXPECT_EQ(compiler_version(none, false), 0) << none;
  }
}

TEST(Emit, RefusesATimeThatIsNoNumber) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    DispatchTable table = sample_table();
    table.rows[0].median_ns = bad;
    EXPECT_THROW(dispatch_header(table), std::invalid_argument);
  }
}

}  // namespace
}  // namespace muse::tuner
