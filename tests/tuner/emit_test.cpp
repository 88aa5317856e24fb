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
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <locale>
#include <random>
#include <sstream>

namespace muse::tuner {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(MUSE_SOURCE_DIR) / "tests/golden/muse_dispatch.h";

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
  table.variants = {{"prepare/scalar", 1}, {"fused/vector", 2}, {"attention/vector", 1}};
  table.generator = "muse-tune 0.0.0";
  table.rows = {
      row(shape(1, 1, 0, 4096), kFast),          row(shape(8, 1, 0, 4096), kFused),
      row(shape(1, 1, 2048, 4096), kFast, 1111), row(shape(1, 1, 2048, 32768), kFused, 2222),
      row(shape(1, 8, 2048, 1024), kBase),       row(shape(1, 8, 2048, 4096), kFused)};
  Shape ragged = shape(4, 1, 0, 8000);
  ragged.lengths.profile = Profile::kOutlier;
  ragged.lengths.rest = 1;
  table.rows.push_back(row(ragged, kFused));
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
  for (size_t i = 0; i < std::size(names); ++i) {
    table.rows.push_back(row(shape(static_cast<int64_t>(i) + 1, 1, 0, 100), names[i]));
    table.rows.back().status = table.rows.back().date = names[i];
    table.variants.push_back({names[i], 1});
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

/// Two units that include the header. The second compares every lookup near every row, and some far
/// from all, with a walk over the rows.
constexpr const char* kOther = R"unit(
#include "muse_dispatch.h"
#include "muse_dispatch.h"
const void* other_rows() { return muse::dispatch::kRows; }
)unit";
constexpr const char* kBruteForce = R"unit(
#include "muse_dispatch.h"
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <locale>
const void* other_rows();
namespace d = muse::dispatch;
static bool same(const d::Key& a, const d::Key& b) {
  return a.batch == b.batch && a.q_len == b.q_len && a.num_q_heads == b.num_q_heads &&
         a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim &&
         a.page_size == b.page_size && a.window == b.window && a.rope == b.rope &&
         a.scaled == b.scaled && a.context == b.context;
}
static d::Choice walk(d::Key key) {
  for (std::int64_t size : {key.batch, key.q_len, key.num_q_heads, key.num_kv_heads, key.head_dim,
                            key.page_size, key.context}) {
    if (size <= 0) return {d::kBase, d::Match::kInvalid, nullptr};
  }
  if (key.window < 0) return {d::kBase, d::Match::kInvalid, nullptr};
  if (key.window > 0) {
    const __int128 most = static_cast<__int128>(key.window) + key.q_len - 1;
    if (key.context > most) key.context = static_cast<std::int64_t>(most);
  }
  for (int i = 0; i < d::kRowCount; ++i) {
    if (same(d::kRows[i].key, key)) return {d::kRows[i].pipeline, d::Match::kExact, &d::kRows[i]};
  }
  return {d::kBase, d::Match::kBase, nullptr};
}
static int wrong = 0, exact = 0, asked = 0;
static void ask(const d::Key& key) {
  const d::Choice got = d::lookup(key), expected = walk(key);
  ++asked;
  exact += got.match == d::Match::kExact;
  wrong +=
      got.pipeline != expected.pipeline || got.match != expected.match || got.row != expected.row;
  wrong += d::info(got.pipeline).candidates < 1;
}
static_assert(noexcept(d::lookup(d::Key{})), "lookup must not throw");
static_assert(d::lookup(d::Key{}).match == d::Match::kBase, "usable in constant expressions");
int main() {
  const std::int64_t odd[] = {0,
                              -1,
                              1,
                              2,
                              3,
                              9,
                              2047,
                              2048,
                              2049,
                              4096,
                              32768,
                              std::numeric_limits<std::int64_t>::max(),
                              std::numeric_limits<std::int64_t>::min()};
  std::int64_t d::Key::*const sizes[] = {
      &d::Key::batch,    &d::Key::q_len,     &d::Key::num_q_heads, &d::Key::num_kv_heads,
      &d::Key::head_dim, &d::Key::page_size, &d::Key::window,      &d::Key::context};
  for (int i = 0; i <= d::kRowCount; ++i) {
    const d::Key start = i < d::kRowCount ? d::kRows[i].key : d::Key{};
    ask(start);
    for (auto first : sizes) {
      for (auto second : sizes) {
        for (std::int64_t a : odd) {
          for (std::int64_t b : odd) {
            d::Key key = start;
            key.*first = a;
            key.*second = b;
            ask(key);
            key.rope = !key.rope;
            ask(key);
          }
        }
      }
    }
  }
  for (int i = 1; i < d::kRowCount; ++i)
    wrong += d::detail::compare(d::kRows[i - 1].key, d::kRows[i].key) > 0;
  wrong += other_rows() != static_cast<const void*>(d::kRows);
  std::printf("%d wrong, exact %s, of %d\n", wrong, exact > 0 ? "some" : "none", asked);
  return wrong == 0 ? 0 : 1;
}
)unit";

constexpr const char* kPrintKeys = R"unit(
#include "muse_dispatch.h"
#include <cstdio>
int main() {
  for (int i = 0; i < muse::dispatch::kRowCount; ++i) {
    std::puts(muse::dispatch::info(muse::dispatch::kRows[i].pipeline).key);
  }
}
)unit";

class EmitCompiled : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (run(folder_, {GetParam(), "--version"}).status != 0) {
      GTEST_SKIP() << GetParam() << " is not installed";
    }
  }
  /// Builds both units with the table and runs them.
  Ended build_and_run(const DispatchTable& table) {
    folder_.write("muse_dispatch.h", dispatch_header(table));
    const std::string other = folder_.write("other.cpp", kOther).string();
    const std::string main = folder_.write("main.cpp", kBruteForce).string();
    const std::string program = (folder_ / "program").string();
    // __int128 in the test's own walk is an extension.
    const Ended built = compile(folder_, GetParam(),
                                {"-O1", "-Wno-pedantic", "-fsanitize=undefined",
                                 "-fno-sanitize-recover=all", main, other, "-o", program});
    if (built.status != 0) return built;
    return run(folder_, {program});
  }
  Folder folder_;
};

TEST_P(EmitCompiled, AnswersLikeAWalkOverTheRows) {
  const Ended ended = build_and_run(sample_table());
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_EQ(ended.output.rfind("0 wrong, exact some", 0), 0u) << ended.output;
}

TEST_P(EmitCompiled, AnswersWithTheBaseWhereTheTableIsEmpty) {
  DispatchTable table = sample_table();
  table.rows.clear();
  table.variants.clear();
  const Ended ended = build_and_run(table);
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_EQ(ended.output.rfind("0 wrong, exact none", 0), 0u) << ended.output;
}

TEST_P(EmitCompiled, IsCleanUnderStrictWarnings) {
  folder_.write("muse_dispatch.h", dispatch_header(sample_table()));
  const std::string unit = folder_.write("unit.cpp", kOther).string();
  const Ended ended =
      compile(folder_, GetParam(), {"-c", unit, "-o", (folder_ / "unit.o").string()});
  EXPECT_EQ(ended.status, 0) << ended.output;
}

TEST_P(EmitCompiled, KeepsHostileNamesApartAsText) {
  const DispatchTable table = hostile_table();
  folder_.write("muse_dispatch.h", dispatch_header(table));
  const std::string unit = folder_.write("unit.cpp", kPrintKeys).string();
  const std::string program = (folder_ / "program").string();
  const Ended built = compile(folder_, GetParam(), {unit, "-o", program});
  ASSERT_EQ(built.status, 0) << built.output;
  std::string expected;
  for (const DispatchRow& r : table.rows) expected += std::string(r.pipeline.c_str()) + "\n";
  EXPECT_EQ(run(folder_, {program}).output, expected);
}

TEST_P(EmitCompiled, RefusesAStaleTableAtCompileTime) {
  folder_.write("muse_dispatch.h", dispatch_header(sample_table()));
  const std::string unit = folder_.write("unit.cpp", kOther).string();
  const auto with_hash = [&](const std::string& hash) {
    return compile(folder_, GetParam(),
                   {"-fsyntax-only", "-DMUSE_DISPATCH_SOURCE_HASH=\"" + hash + "\"", unit});
  };
  EXPECT_EQ(with_hash(sample_table().source_hash).status, 0);
  const Ended stale = with_hash("0123456789abcdef0123456789abcdee");
  EXPECT_NE(stale.status, 0);
  EXPECT_NE(stale.output.find("sweep and emit again"), std::string::npos) << stale.output;
}

INSTANTIATE_TEST_SUITE_P(Compilers, EmitCompiled, testing::Values("g++", "clang++"),
                         [](const auto& info) {
                           return info.param == std::string("g++") ? "Gcc" : "Clang";
                         });

TEST(Emit, MatchesTheGoldenHeader) {
  const std::string header = dispatch_header(sample_table());
  if (std::getenv("MUSE_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(kGolden, std::ios::binary) << header;
  }
  EXPECT_EQ(header, read(kGolden)) << "MUSE_UPDATE_GOLDEN=1 rewrites " << kGolden;
}

TEST(Emit, IsTheSameForAnyOrderOfRows) {
  DispatchTable table = sample_table();
  const std::string expected = dispatch_header(table);
  std::mt19937_64 random(1);
  for (int i = 0; i < 10; ++i) {
    std::shuffle(table.rows.begin(), table.rows.end(), random);
    std::shuffle(table.variants.begin(), table.variants.end(), random);
    ASSERT_EQ(dispatch_header(table), expected);
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
  std::locale::global(before);
  EXPECT_EQ(header, expected);
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
