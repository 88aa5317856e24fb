// SPDX-License-Identifier: Apache-2.0
// Replacing a file as a whole: temp file, fsync, rename, fsync of the folder.
#include "db/atomic_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "db/file_system.h"

namespace muse::db {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;  // as the kernel's own limit
constexpr int kMaxTempNames = 100;
// Large writes are cut so that no single call is interrupted for long; Linux ends them at 2 GiB
// anyway.
constexpr size_t kChunkBytes = size_t{16} << 20;

[[noreturn]] void fail(const fs::path& file, std::string_view action, int error) {
  throw Error(fmt::format("{}: {}: {}", file.string(), action, std::strerror(error)));
}

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  /// The last chance to hear of a failed write on a network file system.
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

/// Removes the temp file unless it has become the target.
struct TempFile {
  fs::path path;
  bool kept = false;
  ~TempFile() {
    if (!kept) ::unlink(path.c_str());
  }
};

/// Mode of the file to replace, nullopt where there is none. Refuses what a rename must not
/// replace.
std::optional<mode_t> mode_to_keep(const fs::path& file, const fs::path& target) {
  struct stat status {};
  if (::stat(target.c_str(), &status) != 0) {
    if (errno == ENOENT) return std::nullopt;
    fail(file, "cannot be written", errno);
  }
  if (S_ISDIR(status.st_mode)) {
    throw Error(fmt::format("{}: is a folder; name a file", file.string()));
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(fmt::format("{}: is not a regular file; name a file", file.string()));
  }
  // A rename needs no right on the file itself, yet a read-only file is meant to stay.
  if (::access(target.c_str(), W_OK) != 0) fail(file, "cannot be written", errno);
  return status.st_mode & 07777;
}

/// Opens a new file under a name of its own; the name is short, for the target's may be of any
/// length.
int open_temp(const fs::path& file, const fs::path& folder, fs::path& path) {
  static std::atomic<unsigned> counter{0};
  for (int attempt = 0; attempt < kMaxTempNames; ++attempt) {
    path = folder / fmt::format(".muse-{}-{}.tmp", ::getpid(), counter++);
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) return fd;
    if (errno != EEXIST) fail(file, "cannot be written", errno);
  }
  fail(file, "no free name for a temp file beside it", EEXIST);
}

void write_all(const fs::path& file, int fd, std::string_view content, const FileSystem& calls) {
  while (!content.empty()) {
    const ssize_t written = calls.write(fd, content.data(), std::min(content.size(), kChunkBytes));
    if (written > 0) {
      content.remove_prefix(static_cast<size_t>(written));
    } else if (written == 0 || errno != EINTR) {
      fail(file, "cannot be written", written == 0 ? EIO : errno);
    }
  }
}

void sync_folder(const fs::path& file, const fs::path& folder, const FileSystem& calls) {
  Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() < 0) fail(file, "its folder cannot be synced", errno);
  // EINVAL: this file system cannot sync folders, so there is nothing to wait for.
  if (calls.fsync(descriptor.get()) != 0 && errno != EINVAL) {
    fail(file, "its folder cannot be synced", errno);
  }
}

}  // namespace

fs::path follow_links(const fs::path& file) {
  fs::path target = file;
  std::error_code error;
  for (int links = 0; fs::is_symlink(fs::symlink_status(target, error)); ++links) {
    if (links == kMaxLinks) fail(file, "cannot be followed", ELOOP);
    const fs::path next = fs::read_symlink(target, error);
    if (error) fail(file, "cannot be followed", error.value());
    target = folder_of(target) / next;  // an absolute `next` stands alone
  }
  return target;
}

void replace_file(const fs::path& from, const fs::path& to, const FileSystem& calls) {
  if (calls.rename(from.c_str(), to.c_str()) != 0) fail(to, "cannot be replaced", errno);
  sync_folder(to, folder_of(to), calls);
}

void write_atomically(const fs::path& file, std::string_view content, const FileSystem& calls) {
  const fs::path target = follow_links(file);
  if (!target.has_filename()) throw Error(fmt::format("'{}': is no file name", file.string()));
  const std::optional<mode_t> mode = mode_to_keep(file, target);
  TempFile temp;
  Descriptor descriptor(open_temp(file, folder_of(target), temp.path));
  if (mode && ::fchmod(descriptor.get(), *mode) != 0) fail(file, "cannot keep its mode", errno);
  write_all(file, descriptor.get(), content, calls);
  if (calls.fsync(descriptor.get()) != 0) fail(file, "cannot be synced", errno);
  if (descriptor.close() != 0) fail(file, "cannot be written", errno);
  if (calls.rename(temp.path.c_str(), target.c_str()) != 0) fail(file, "cannot be replaced", errno);
  temp.kept = true;
  sync_folder(file, folder_of(target), calls);
}

void write_atomically(const fs::path& file, std::string_view content) {
  write_atomically(file, content, FileSystem{});
}

}  // namespace muse::db
