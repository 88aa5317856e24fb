// SPDX-License-Identifier: Apache-2.0
// The cache of cubins: what is part of its key, damage, sharing, and what killed writers leave.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tests/tuner/compile_fixture.h"
#include "tuner/console.h"
#include "tuner/records.h"
#include "variants/kernel_source.h"

namespace muse::tuner {
namespace {

namespace fs = std::filesystem;

using CubinCacheTest = CompileTest;

TEST_F(CubinCacheTest, KnowsCandidateToolkitAndArchitectureApart) {
  const CubinCache cache(cache_.path());
  const Compiled compiled = *compile(options()).at(key_of(64)).compiled;
  EXPECT_TRUE(cache.find(candidate(64), kStub, "sm_90a"));
  EXPECT_FALSE(cache.find(candidate(64), kStub, "sm_80"));
  EXPECT_FALSE(cache.find(candidate(64), "nvrtc 13.0", "sm_90a"));
  EXPECT_FALSE(cache.find(candidate(512), kStub, "sm_90a"));
  const CubinCache moved(cache_.path() / "elsewhere");
  EXPECT_FALSE(moved.find(candidate(64), kStub, "sm_90a"));
  fs::rename(cache_.path() / "nvrtc-99.7", cache_.path() / "kept");
  fs::create_directory(cache_.path() / "elsewhere");
  fs::rename(cache_.path() / "kept", cache_.path() / "elsewhere/nvrtc-99.7");
  ASSERT_TRUE(moved.find(candidate(64), kStub, "sm_90a"));  // no path is part of the key
  EXPECT_EQ(moved.find(candidate(64), kStub, "sm_90a")->cubin, compiled.cubin);
}

TEST_F(CubinCacheTest, TakesDamageForAbsence) {
  const CubinCache cache(cache_.path());
  ASSERT_EQ(compile_all({candidate(64)}, kStub, options()).at(key_of(64)).outcome, Outcome::kOk);
  fs::path file;
  for (const auto& entry : fs::recursive_directory_iterator(cache_.path())) {
    if (entry.is_regular_file()) file = entry.path();
  }
  const std::string whole = fakes::read_file(file);
  for (size_t at = 0; at < whole.size(); at += 1 + whole.size() / 200) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    fakes::write_file(file, damaged);
    EXPECT_FALSE(cache.find(candidate(64), kStub, "sm_90a")) << "byte " << at;
    fakes::write_file(file, whole.substr(0, at));
    EXPECT_FALSE(cache.find(candidate(64), kStub, "sm_90a")) << at << " bytes";
  }
  fakes::write_file(file, whole + "x");
  EXPECT_FALSE(cache.find(candidate(64), kStub, "sm_90a"));
  EXPECT_FALSE(compile_all({candidate(64)}, kStub, options()).at(key_of(64)).cached);
  EXPECT_TRUE(cache.find(candidate(64), kStub, "sm_90a"));
}

TEST_F(CubinCacheTest, IsSharedByManyWritersAndReaders) {
  const Compiled compiled = *compile_all({candidate(64)}, kStub, options()).at(key_of(64)).compiled;
  std::vector<std::thread> threads;
  std::atomic<int> broken{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const CubinCache cache(cache_.path());
      for (int round = 0; round < 20; ++round) {
        cache.store(candidate(64), kStub, "sm_90a", compiled);
        const auto found = cache.find(candidate(64), kStub, "sm_90a");
        if (!found || found->cubin != compiled.cubin) ++broken;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(broken, 0);
}

TEST_F(CubinCacheTest, TellsTheNewestToolkitOfItsCubins) {
  const CubinCache cache(cache_.path());
  EXPECT_EQ(CubinCache(cache_.path() / "nowhere").newest_toolkit(), "");
  EXPECT_EQ(cache.newest_toolkit(), "");
  const Compiled compiled{.source_hash = source_hash(candidate(32))};
  for (const char* toolkit : {"nvrtc 13.9", "nvrtc 13.10", "nvrtc 13.2"}) {
    cache.store(candidate(32), toolkit, "sm_90a", compiled);
  }
  fs::create_directories(cache_.path() / "nvrtc-14.0/sm_90a");
  fs::create_directories(cache_.path() / "nvrtc-15.0-alpha");
  EXPECT_EQ(cache.newest_toolkit(), "nvrtc 13.10");
}

TEST_F(CubinCacheTest, PassesOverFoldersThatCannotBeRead) {
  const CubinCache cache(cache_.path());
  const Compiled compiled{.source_hash = source_hash(candidate(32))};
  cache.store(candidate(32), "nvrtc 13.2", "sm_90a", compiled);
  for (const char* folder : {"nvrtc-13.2/sm_80", "nvrtc-13.9"}) {
    fs::create_directories(cache_.path() / folder);
    fs::permissions(cache_.path() / folder, fs::perms::none);
  }
  for (const char* folder : {"", "nvrtc-13.2", "nvrtc-13.2/sm_90a"}) {
    fs::permissions(cache_.path() / folder, fs::perms(0755));
  }
  constexpr uid_t kNobody = 65534;
  const bool root = geteuid() == 0;  // whom no mode stops
  if (root && seteuid(kNobody) != 0) GTEST_SKIP() << "root cannot become anyone else here";
  std::string newest;
  EXPECT_NO_THROW(newest = cache.newest_toolkit());
  ASSERT_TRUE(!root || seteuid(0) == 0);
  EXPECT_EQ(newest, "nvrtc 13.2");
  for (const char* folder : {"nvrtc-13.2/sm_80", "nvrtc-13.9"}) {
    fs::permissions(cache_.path() / folder, fs::perms::owner_all);
  }
}

TEST_F(CubinCacheTest, LosesTempFilesOfWritersThatAreGone) {
  const CubinCache cache(cache_.path());
  const Compiled compiled{.cubin_hash = hash_hex(""), .source_hash = source_hash(candidate(32))};
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  ASSERT_EQ(waitpid(gone, nullptr, 0), gone);
  const fs::path folder = cache_.path() / "nvrtc-13.2/sm_90a";
  fs::create_directories(folder);
  const auto leave = [&](pid_t pid, const std::string& end, std::chrono::minutes age) {
    const fs::path file = folder / (".muse-" + std::to_string(pid) + end);
    fakes::write_file(file, "half");
    fs::last_write_time(file, fs::file_time_type::clock::now() - age);
    return file;
  };
  using std::chrono::minutes;
  const fs::path orphan = leave(gone, "-0.tmp", minutes(60));
  const fs::path alive = leave(getpid(), "-77.tmp", minutes(60));
  const fs::path young = leave(gone, "-1.tmp", minutes(0));
  const fs::path other = leave(gone, "-0.tmp.kept", minutes(60));
  cache.store(candidate(32), "nvrtc 13.2", "sm_90a", compiled);
  EXPECT_FALSE(fs::exists(orphan));
  for (const fs::path& file : {alive, young, other}) EXPECT_TRUE(fs::exists(file)) << file;
  EXPECT_TRUE(cache.find(candidate(32), "nvrtc 13.2", "sm_90a"));
}

TEST_F(CubinCacheTest, LiesInTheXdgFolderUnlessTold) {
  const std::string home = std::getenv("HOME") ? std::getenv("HOME") : "/";
  setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_EQ(CubinCache::default_folder(), "/xdg/muse-tune");
  setenv("XDG_CACHE_HOME", "relative", 1);
  setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(CubinCache::default_folder(), "/home/someone/.cache/muse-tune");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_THROW(CubinCache::default_folder(), std::runtime_error);
  setenv("HOME", home.c_str(), 1);
}

}  // namespace
}  // namespace muse::tuner
