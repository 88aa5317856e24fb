// SPDX-License-Identifier: Apache-2.0
// The calls by which files are replaced, as values: a test can fail the n-th of any of them.
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string_view>

namespace muse::db {

/// Each member has the meaning, results and errno of the POSIX call of its name.
struct FileSystem {
  std::function<ssize_t(int, const void*, size_t)> write = ::write;
  std::function<int(int)> fsync = ::fsync;
  std::function<int(const char*, const char*)> rename = ::rename;
};

/// The body of write_atomically (atomic_file.h), over the given calls.
void write_atomically(const std::filesystem::path& file, std::string_view content,
                      const FileSystem& calls);

/// Puts `from` in the place of `to`, both in one folder, and makes that last through a power cut.
/// Throws Error naming `to`.
void replace_file(const std::filesystem::path& from, const std::filesystem::path& to,
                  const FileSystem& calls);

/// Where a path leads after its symbolic links, the last of which may lead to nothing yet.
/// Throws Error on a loop.
std::filesystem::path follow_links(const std::filesystem::path& file);

}  // namespace muse::db
