// SPDX-License-Identifier: Apache-2.0
// flock on FILE.lock, polled until a deadline.
#include "db/side_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "db/error.h"

namespace muse::db {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

int open_lock(const fs::path& path) {
  // No link is followed: the holder writes its process id into the file.
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) {
    throw Error(fmt::format("{}: cannot be opened for locking: {}; make its folder writable",
                            path.string(), std::strerror(errno)));
  }
  return fd;
}

/// Somebody may have deleted the file between open and flock: then this lock guards nothing.
bool still_there(int fd, const fs::path& path) {
  struct stat held {
  }, named{};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

std::string holder(int fd) {
  char text[24] = {};
  const ssize_t size = ::pread(fd, text, sizeof(text) - 1, 0);
  const std::string pid(text, size > 0 ? strspn(text, "0123456789") : 0);
  return pid.empty() ? "another process" : "process " + pid;
}

void write_holder(int fd) {
  const std::string text = fmt::format("{}\n", ::getpid());
  // Only a later message is worse if this fails.
  if (::ftruncate(fd, 0) == 0 && ::pwrite(fd, text.data(), text.size(), 0) < 0) return;
}

}  // namespace

SideLock::SideLock(const fs::path& database, std::chrono::milliseconds wait) {
  fs::path path = database;
  path += ".lock";
  const Clock::time_point deadline = Clock::now() + wait;
  // Each waiter sleeps for another time, so that none keeps missing the moment between two turns.
  std::minstd_rand random(static_cast<unsigned>(::getpid()));
  std::uniform_int_distribution<int> pause_us(200, 2000);
  fd_ = open_lock(path);
  while (true) {
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) {
      if (still_there(fd_, path)) break;
      ::close(fd_);
      fd_ = -1;
      fd_ = open_lock(path);
      continue;
    }
    if (errno != EWOULDBLOCK && errno != EINTR) {
      const int error = errno;
      ::close(fd_);
      throw Error(fmt::format("{}: cannot be locked: {}; keep the database on a local file system",
                              path.string(), std::strerror(error)));
    }
    if (Clock::now() >= deadline) {
      const std::string who = holder(fd_);
      ::close(fd_);
      throw Error(fmt::format("{}: locked by {} (waited {} s); wait for it or end it",
                              database.string(), who, wait.count() / 1000.0));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(pause_us(random)));
  }
  write_holder(fd_);
}

SideLock::~SideLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace muse::db
