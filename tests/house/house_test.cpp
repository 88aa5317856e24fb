// SPDX-License-Identifier: Apache-2.0
// The house itself: which folder may include which, that every stem is registered, what the binary
// needs to run.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "tests/fakes/command.h"
#include "tests/fakes/sanitized.h"
#include "variants/registry.h"

namespace muse {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = MUSE_SOURCE_DIR;

struct Include {
  std::string file, header;
};

/// Every file of the folder that a compiler reads, for the host or for a GPU.
std::vector<fs::path> sources(const std::string& folder) {
  static const std::set<std::string> kEndings{".h", ".cpp", ".cu", ".cuh", ".inl"};
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
    if (kEndings.contains(entry.path().extension())) found.push_back(entry.path());
  }
  EXPECT_FALSE(found.empty()) << folder;
  return found;
}

std::vector<Include> project_includes(const std::string& folder) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*"([^"]+)")re");
  std::vector<Include> found;
  for (const fs::path& file : sources(folder)) {
    std::istringstream text(fakes::read_file(file));
    for (std::string line; std::getline(text, line);) {
      std::smatch match;
      if (std::regex_search(line, match, kInclude)) {
        found.push_back({fs::relative(file, kRoot).string(), match[1]});
      }
    }
  }
  return found;
}

TEST(House, ArrowsRunOneWay) {
  const std::map<std::string, std::set<std::string>> allowed{
      {"variants", {"variants", "muse_attention.h"}},  // it lies beside its C++ form
      {"profiler", {"profiler"}},
      {"db", {"db"}},
      {"reports", {"reports", "db", "profiler/statistics.h"}},
      {"tuner", {"tuner", "variants", "profiler", "db", "reports"}},
  };
  const std::set<std::string> generated{"revision.h"};
  for (const auto& [folder, targets] : allowed) {
    const std::vector<Include> includes = project_includes(folder);
    EXPECT_FALSE(includes.empty()) << folder;
    for (const Include& include : includes) {
      const std::string top = include.header.substr(0, include.header.find('/'));
      EXPECT_TRUE(targets.contains(top) || targets.contains(include.header) ||
                  generated.contains(include.header))
          << include.file << " includes " << include.header;
    }
  }
}

TEST(House, OnlyTheTunerPrints) {
  static const std::regex kPrints(R"(\b(printf|puts|fputs|std::cout|std::cerr|exit)\s*(\(|<<))");
  for (const char* folder : {"variants", "profiler", "db", "reports"}) {
    for (const fs::path& file : sources(folder)) {
      std::istringstream text(fakes::read_file(file));
      for (std::string line; std::getline(text, line);) {
        EXPECT_FALSE(std::regex_search(line, kPrints)) << file << ": " << line;
      }
    }
  }
}

TEST(House, EveryStemIsRegisteredAndNothingElseIs) {
  std::set<std::string> stems, registered;
  for (const char* stage : {"prepare", "attention", "combine", "gate", "fused"}) {
    if (!fs::is_directory(kRoot / "variants" / stage)) continue;
    for (const auto& entry : fs::directory_iterator(kRoot / "variants" / stage)) {
      if (entry.path().extension() != ".cpp") continue;
      stems.insert(std::string(stage) + "/" + entry.path().stem().string());
    }
  }
  for (const Variant* variant : Registry::global().all()) registered.insert(variant->name);
  EXPECT_GE(stems.size(), 9u);
  EXPECT_EQ(stems, registered);
}

TEST(House, EveryVariantHasASourceClosure) {
  std::set<std::string> hashes;
  for (const Variant* variant : Registry::global().all()) {
    const auto hash = code_hash(*variant);
    ASSERT_TRUE(hash) << variant->name;
    EXPECT_EQ(hash->size(), 32u);
    EXPECT_TRUE(hashes.insert(*hash).second) << variant->name << " shares its hash";
  }
}

/// The comment that `text` goes on with, its lines joined; empty where it goes on otherwise.
std::string leading_comment(std::istream& text) {
  std::string comment;
  for (std::string line; std::getline(text, line) && line.starts_with("// ");) {
    comment += (comment.empty() ? "" : " ") + line.substr(3);
  }
  return comment;
}

TEST(House, EverySourceStartsWithLicenceAndPurpose) {
  // Several words up to a full stop, which no directive to a tool has.
  static const std::regex kSentence(R"(^\S+ .*\.( |$))");
  for (const char* folder : {"variants", "profiler", "db", "reports", "tuner", "tests", "cmake"}) {
    for (const fs::path& file : sources(folder)) {
      if (file.string().find("/golden/") != std::string::npos) continue;
      std::istringstream text(fakes::read_file(file));
      std::string licence;
      std::getline(text, licence);
      EXPECT_EQ(licence, "// SPDX-License-Identifier: Apache-2.0") << file;
      EXPECT_TRUE(std::regex_search(leading_comment(text), kSentence))
          << file << " does not say on line 2 what it is for";
    }
  }
}

// A binary built on Debian 12 runs on any distribution at least as new, with nothing installed.
TEST(House, BinaryNeedsOnlyLibcAndLibm) {
  if (fakes::kSanitized) GTEST_SKIP() << "sanitizers bring libraries of their own";
  const fakes::CommandResult dynamic = fakes::run_command({"readelf", "-d", "--wide", MUSE_TUNE});
  if (dynamic.exit_code == 127) GTEST_SKIP() << "readelf (binutils) is not installed";
  ASSERT_EQ(dynamic.exit_code, 0) << dynamic.err;
  static const std::regex kNeeded(R"(NEEDED.*\[([^\]]+)\])");
  std::set<std::string> needed;
  for (std::sregex_iterator i(dynamic.out.begin(), dynamic.out.end(), kNeeded), end; i != end;
       ++i) {
    needed.insert((*i)[1]);
  }
  EXPECT_TRUE(needed.contains("libc.so.6"));
  for (const std::string& library : needed) {
    EXPECT_TRUE(library == "libc.so.6" || library == "libm.so.6" || library.starts_with("ld-linux"))
        << library;
  }
}

TEST(House, BinaryBuiltOnDebian12NeedsGlibc236AtMost) {
  if (fakes::kSanitized) GTEST_SKIP() << "sanitizers bring symbols of their own";
#if __GLIBC__ == 2 && __GLIBC_MINOR__ > 36
  GTEST_SKIP() << "built against a newer glibc";
#endif
  const fakes::CommandResult symbols = fakes::run_command({"readelf", "-V", "--wide", MUSE_TUNE});
  if (symbols.exit_code == 127) GTEST_SKIP() << "readelf (binutils) is not installed";
  static const std::regex kVersion(R"(GLIBC_2\.(\d+))");
  int newest = 0;
  for (std::sregex_iterator i(symbols.out.begin(), symbols.out.end(), kVersion), end; i != end;
       ++i) {
    newest = std::max(newest, std::stoi((*i)[1]));
  }
  EXPECT_GT(newest, 0);
  EXPECT_LE(newest, 36);
}

}  // namespace
}  // namespace muse
