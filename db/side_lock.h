// SPDX-License-Identifier: Apache-2.0
// The lock file beside a database that lets its writers take turns.
#pragma once

#include <chrono>
#include <filesystem>

namespace muse::db {

inline constexpr std::chrono::seconds kLockWait{60};

/// Holds FILE.lock exclusively (flock) from construction to destruction. Several writers starve
/// each other on SQLite's own lock, hence this one. The lock ends with its holder, however that one
/// dies; the file stays and means nothing by itself.
class SideLock {
 public:
  /// Throws Error where the lock file cannot be opened, or naming the holder when `wait` is over.
  explicit SideLock(const std::filesystem::path& database,
                    std::chrono::milliseconds wait = kLockWait);
  ~SideLock();
  SideLock(const SideLock&) = delete;
  SideLock& operator=(const SideLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace muse::db
