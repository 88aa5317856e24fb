// SPDX-License-Identifier: Apache-2.0
// Writers that compete, die or run out of disk; files replaced as a whole or not at all.
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <random>

#include "db/atomic_file.h"
#include "db/file_system.h"
#include "db/side_lock.h"
#include "tests/db/support.h"

namespace muse::db {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

class DurabilityTest : public testing::Test {
 protected:
  TempFolder folder_;
  fs::path file_ = folder_ / "a.db";

  /// A file with a race of one trial, ready for rounds.
  void make() {
    Store store = Store::open(file_, Open::kCreate);
    const Base base = add_base(store);
    trial_ = add_trial(store, base, "a").id;
    race_ = add_race(store, base);
  }
  Id race_ = 0, trial_ = 0;
};

using SideLockFile = DurabilityTest;
using Writers = DurabilityTest;
using FullDisk = DurabilityTest;
using AtomicFile = DurabilityTest;

struct Pipe {
  Pipe() {
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  int ends[2];
};

TEST_F(SideLockFile, NamesItsHolderWhenTheWaitIsOver) {
  const SideLock held(file_, milliseconds(0));
  const std::string error = error_of([&] { SideLock(file_, milliseconds(20)); });
  EXPECT_NE(error.find("locked by process " + std::to_string(::getpid())), std::string::npos)
      << error;
  EXPECT_NE(error.find("0.02 s"), std::string::npos) << error;
}

TEST_F(SideLockFile, OfADeadHolderIsNoObstacle) {
  make();
  EXPECT_EQ(in_child([&] {
              const SideLock lock(file_);
              std::raise(SIGKILL);
              return 0;
            }),
            -SIGKILL);
  ASSERT_TRUE(fs::exists(file_.string() + ".lock"));
  const SideLock lock(file_, milliseconds(0));
}

TEST_F(SideLockFile, GuardsEvenIfItsFileIsDeleted) {
  { const SideLock lock(file_); }
  fs::remove(file_.string() + ".lock");
  const SideLock lock(file_, milliseconds(0));
  EXPECT_NE(error_of([&] { SideLock(file_, milliseconds(0)); }), "");
}

TEST_F(SideLockFile, IsNeverWrittenThroughALink) {
  write_file(folder_ / "precious", "precious");
  fs::create_symlink("precious", file_.string() + ".lock");
  EXPECT_NE(error_of([&] { const SideLock lock(file_); }), "");
  EXPECT_EQ(read_file(folder_ / "precious"), "precious");
}

TEST_F(Writers, TakeTurnsBesideReaders) {
  constexpr int kWriters = 3, kRounds = 60;
  make();
  std::vector<pid_t> children;
  for (int writer = 0; writer < kWriters; ++writer) {
    children.push_back(start_child([&] {
      Store store = Store::open(file_, Open::kWrite);
      for (int i = 0; i < kRounds; ++i) {
        add_round(store, race_, writer * kRounds + i, trial_, {double(i)});
      }
      return 0;
    }));
  }
  children.push_back(start_child([&] {
    size_t last = 0;
    while (last < kWriters * kRounds) {
      const Store store = Store::open(file_, Open::kRead);
      const size_t now = store.snapshot().rounds(race_).size();
      if (now < last) return 1;
      last = now;
    }
    return 0;
  }));
  for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
  const Store store = Store::open(file_, Open::kRead);
  EXPECT_EQ(store.rounds(race_).size(), size_t{kWriters * kRounds});
  EXPECT_EQ(store.integrity(), "");
}

TEST_F(Writers, KilledAtAnyMomentLoseNothingAcknowledged) {
  constexpr int kKills = 50;
  make();
  std::minstd_rand random(5);
  int64_t next = 0, acknowledged = 0;
  for (int i = 0; i < kKills; ++i) {
    const Pipe pipe;
    const pid_t child = start_child([&] {
      Store store = Store::open(file_, Open::kWrite);
      for (int64_t number = next;; ++number) {
        add_round(store, race_, number, trial_, std::vector<double>(256, double(number)));
        if (::write(pipe.ends[1], &number, sizeof(number)) != sizeof(number)) return 1;
      }
    });
    int64_t number = 0;
    for (int wait = random() % 4; wait >= 0; --wait) {  // it is running and has written
      ASSERT_EQ(::read(pipe.ends[0], &number, sizeof(number)), ssize_t{sizeof(number)});
      acknowledged = number + 1;
    }
    ::usleep(random() % 2000);
    ::kill(child, SIGKILL);
    EXPECT_EQ(wait_for(child), -SIGKILL);
    pollfd ready{.fd = pipe.ends[0], .events = POLLIN, .revents = 0};
    while (::poll(&ready, 1, 0) > 0) {
      ASSERT_EQ(::read(pipe.ends[0], &number, sizeof(number)), ssize_t{sizeof(number)});
      acknowledged = number + 1;
    }
    const Store store = Store::open(file_, Open::kRead);
    ASSERT_EQ(store.integrity(), "");
    const std::vector<RoundRow> rounds = store.rounds(race_);
    // One more may have been committed and not yet acknowledged: hence resume goes by key.
    next = static_cast<int64_t>(rounds.size());
    ASSERT_GE(next, acknowledged);
    ASSERT_LE(next, acknowledged + 1);
    for (int64_t r = 0; r < next; ++r) {
      ASSERT_EQ(rounds[r].number, r);
      ASSERT_EQ(rounds[r].samples.at(0).ns, std::vector<double>(256, double(r)));
    }
  }
  EXPECT_GE(next, kKills);
}

/// More than fits fails with an Error and leaves nothing; what fits afterwards is written.
int write_beyond(const fs::path& file, Id race, Id trial, const std::string& words) {
  Store store = Store::open(file, Open::kWrite);
  const std::string error =
      error_of([&] { add_round(store, race, 0, trial, std::vector<double>(1 << 18, 1.0)); });
  if (error.find(words) == std::string::npos) {
    std::fprintf(stderr, "got: %s\n", error.c_str());
    return 1;
  }
  if (!store.rounds(race).empty() || !store.integrity().empty()) return 2;
  add_round(store, race, 0, trial, {1.0});
  return store.rounds(race).size() == 1 ? 0 : 3;
}

TEST_F(FullDisk, EndsTheTransactionAndNothingElse) {
  const int code = in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
      return 77;
    }
    make();
    const int result = write_beyond(file_, race_, trial_, "make room on the disk");
    if (result != 0) return result;
    // Not even a new file fits: it is not there afterwards, and neither is half of it.
    write_file(folder_ / "filler", std::string(2 << 20, 'x'));
    if (error_of([&] { Store::open(folder_ / "b.db", Open::kCreate); }).empty()) return 4;
    if (error_of([&] { write_atomically(folder_ / "c", std::string(1 << 20, 'y')); }).empty()) {
      return 5;
    }
    return listing(folder_.path()).size() <= 4 && !fs::exists(folder_ / "b.db") &&
                   !fs::exists(folder_ / "c")
               ? 0
               : 6;
  });
  if (code == 77) GTEST_SKIP() << "a file system of its own cannot be mounted here";
  EXPECT_EQ(code, 0);
}

TEST_F(FullDisk, OrAnyOtherFailureToWriteIsAnError) {
  make();
  EXPECT_EQ(in_child([&] {
              std::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{1 << 20, 1 << 20};
              if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 9;
              return write_beyond(file_, race_, trial_, "check the disk");
            }),
            0);
}

TEST_F(AtomicFile, IsWrittenAndReplaced) {
  const fs::path target = folder_ / "out.h";
  write_atomically(target, "one");
  EXPECT_EQ(read_file(target), "one");
  fs::permissions(target, fs::perms(0640));
  write_atomically(target, std::string("t\0wo", 4));
  EXPECT_EQ(read_file(target), std::string("t\0wo", 4));
  EXPECT_EQ(fs::status(target).permissions(), fs::perms(0640));
  write_atomically(target, "");
  EXPECT_EQ(read_file(target), "");
  const fs::path longest = folder_ / std::string(255, 'n');
  write_atomically(longest, "long");
  EXPECT_EQ(read_file(longest), "long");
  EXPECT_EQ(listing(folder_.path()).size(), 2u);
}

TEST_F(AtomicFile, IsWrittenThroughLinks) {
  fs::create_directory(folder_ / "real");
  write_file(folder_ / "real/file", "old");
  fs::create_symlink("real/file", folder_ / "link");
  fs::create_symlink(folder_ / "link", folder_ / "link of link");
  write_atomically(folder_ / "link of link", "new");
  EXPECT_EQ(read_file(folder_ / "real/file"), "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link of link"));
  fs::create_symlink("real/later", folder_ / "dangling");
  write_atomically(folder_ / "dangling", "there");
  EXPECT_EQ(read_file(folder_ / "real/later"), "there");
}

TEST_F(AtomicFile, RefusesWhatIsNoFileWithWordsAndTouchesNothing) {
  write_file(folder_ / "plain", "x");
  fs::create_directory(folder_ / "folder");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  fs::create_symlink("loop", folder_ / "loop");
  const auto before = listing(folder_.path());
  const std::pair<fs::path, const char*> cases[] = {
      {folder_ / "folder", "is a folder"},
      {folder_ / "none/file", "No such file or directory"},
      {folder_ / "plain/file", "Not a directory"},
      {folder_ / "pipe", "is not a regular file"},
      {"/dev/null", "is not a regular file"},
      {folder_ / "loop", "Too many levels"},
      {folder_ / std::string(256, 'n'), "name too long"},
      {"", "is no file name"},
  };
  for (const auto& [path, words] : cases) {
    const std::string error = error_of([&, &file = path] { write_atomically(file, "y"); });
    EXPECT_NE(error.find(words), std::string::npos) << path << ": " << error;
    EXPECT_NE(error.find(path.string()), std::string::npos) << error;
  }
  EXPECT_TRUE(listing(folder_.path()) == before);
}

TEST_F(AtomicFile, RespectsReadOnlyFilesAndFolders) {
  const fs::path target = folder_ / "out.h";
  write_file(target, "old");
  fs::permissions(target, fs::perms(0444));
  fs::permissions(folder_.path(), fs::perms(0777));
  const auto refused = [&] {
    return in_child([&] {
      drop_root();
      const std::string error = error_of([&] { write_atomically(target, "new"); });
      return error.find("Permission denied") == std::string::npos ? 1 : 0;
    });
  };
  EXPECT_EQ(refused(), 0);
  fs::permissions(target, fs::perms(0666));
  fs::permissions(folder_.path(), fs::perms(0555));
  EXPECT_EQ(refused(), 0);
  EXPECT_EQ(read_file(target), "old");
}

/// Calls that fail from their n-th on count; every write is short.
struct Failing {
  int fail_at = -1;  ///< over all calls
  int calls = 0;
  int renamed_at = -1;

  bool next_fails() {
    if (calls++ != fail_at) return false;
    errno = ENOSPC;
    return true;
  }
  FileSystem file_system() {
    return {.write =
                [this](int fd, const void* bytes, size_t size) {
                  if (next_fails()) return ssize_t{-1};
                  return ::write(fd, bytes, std::min<size_t>(size, 3));
                },
            .fsync = [this](int fd) { return next_fails() ? -1 : ::fsync(fd); },
            .rename =
                [this](const char* from, const char* to) {
                  if (next_fails()) return -1;
                  renamed_at = calls;
                  return ::rename(from, to);
                }};
  }
};

TEST_F(AtomicFile, IsTheOldOrTheNewWhicheverCallFails) {
  const fs::path target = folder_ / "out.h";
  const std::string content = "0123456789";
  Failing sound;
  write_file(target, "old");
  write_atomically(target, content, sound.file_system());
  ASSERT_EQ(read_file(target), content);
  ASSERT_EQ(sound.calls, 7);  // four writes, sync, rename, sync of the folder
  for (int n = 0; n < sound.calls; ++n) {
    write_file(target, "old");
    Failing failing{.fail_at = n};
    const std::string error =
        error_of([&] { write_atomically(target, content, failing.file_system()); });
    EXPECT_NE(error.find(target.string()), std::string::npos) << n;
    EXPECT_NE(error.find("No space left on device"), std::string::npos) << n << error;
    EXPECT_EQ(read_file(target), failing.renamed_at < 0 ? "old" : content) << n;
    EXPECT_EQ(listing(folder_.path()).size(), 1u) << n;
  }
}

TEST_F(AtomicFile, GoesOnAfterAnInterruptedWriteAndWithoutSyncOfFolders) {
  FileSystem calls;
  int writes = 0, syncs = 0;
  calls.write = [&](int fd, const void* bytes, size_t size) {
    if (++writes > 1) return ::write(fd, bytes, size);
    errno = EINTR;
    return ssize_t{-1};
  };
  calls.fsync = [&](int fd) {
    if (++syncs == 1) return ::fsync(fd);
    errno = EINVAL;
    return -1;
  };
  write_atomically(folder_ / "out.h", "x", calls);
  EXPECT_EQ(read_file(folder_ / "out.h"), "x");
}

}  // namespace
}  // namespace muse::db
