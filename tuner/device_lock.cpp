// SPDX-License-Identifier: Apache-2.0
// Turns on a device by locks on two bytes of one file. Byte 0 is the queue's head, byte 1 the
// device: who waits for the device holds the head, so a holder that lets go and comes straight back
// cannot take the device again before the one that waits.
#include "tuner/device_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <thread>

namespace muse::tuner {
namespace {

constexpr off_t kHead = 0, kDevice = 1;
constexpr std::chrono::milliseconds kPause{10};

/// Locks of the open file, not of the process: two of them in one process exclude each other too.
bool set_lock(int fd, off_t byte, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  while (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
    if (errno == EAGAIN || errno == EACCES) return false;
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "device lock");
  }
  return true;
}

void wait_for(int fd, off_t byte, const std::function<void()>& waiting) {
  while (!set_lock(fd, byte, F_WRLCK)) {
    waiting();
    std::this_thread::sleep_for(kPause);
  }
}

/// The uuid as part of a file name: nothing in it can leave the folder.
std::string file_name(const std::string& uuid) {
  std::string safe;
  for (const char c : uuid) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    safe += plain ? c : '-';
  }
  return fmt::format("muse-tune-{}-{}.lock", geteuid(), safe);
}

}  // namespace

DeviceLock::DeviceLock(const std::filesystem::path& folder, const std::string& uuid)
    : path_(folder / file_name(uuid)),
      file_(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600)) {
  const std::string what = fmt::format("device lock '{}'", path_.string());
  if (!file_) throw std::system_error(errno, std::generic_category(), what);
  struct stat status {};
  if (fstat(file_.get(), &status) != 0) {
    throw std::system_error(errno, std::generic_category(), what);
  }
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid()) {
    throw std::system_error(EPERM, std::generic_category(),
                            what + " is not a regular file of this user");
  }
}

void DeviceLock::acquire(const std::function<void()>& waiting) {
  wait_for(file_.get(), kHead, waiting);
  wait_for(file_.get(), kDevice, waiting);
  set_lock(file_.get(), kHead, F_UNLCK);
}

void DeviceLock::release() { set_lock(file_.get(), kDevice, F_UNLCK); }

std::filesystem::path lock_folder() {
  const char* variable = std::getenv("XDG_RUNTIME_DIR");
  const std::filesystem::path folder(variable ? variable : "");
  std::error_code ignored;
  if (folder.is_absolute() && std::filesystem::is_directory(folder, ignored)) return folder;
  return "/tmp";
}

}  // namespace muse::tuner
