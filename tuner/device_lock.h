// SPDX-License-Identifier: Apache-2.0
// Two processes that measure on one device take turns: a lock file named by the device.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "tuner/process.h"

namespace muse::tuner {

/// The lock of one device instance. The kernel frees it when its holder dies.
class DeviceLock {
 public:
  /// `<folder>/muse-tune-<uid>-<uuid>.lock`, 0600. Throws std::system_error where it cannot be had
  /// or is not a regular file of this user.
  DeviceLock(const std::filesystem::path& folder, const std::string& uuid);

  /// Takes the lock. Calls `waiting` each time it looks and finds another holder, every 10 ms.
  void acquire(const std::function<void()>& waiting);
  void release();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  Fd file_;
};

/// XDG_RUNTIME_DIR where it is an absolute path to a folder, else /tmp.
std::filesystem::path lock_folder();

}  // namespace muse::tuner
