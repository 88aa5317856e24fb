// SPDX-License-Identifier: Apache-2.0
// Opening: kind of file, header, recovery, version, soundness, migration.
#include "db/open.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "db/file_system.h"
#include "db/side_lock.h"

namespace muse::db {
namespace {

namespace fs = std::filesystem;

constexpr char kLastStatus[] = "SELECT status FROM run ORDER BY id DESC LIMIT 1";

// Places in the 100 bytes every SQLite file starts with.
constexpr int kHeaderBytes = 100;
constexpr char kMagic[] = "SQLite format 3";  // with its NUL 16 bytes
constexpr int kWriteVersionAt = 18, kReadVersionAt = 19, kApplicationIdAt = 68;
constexpr unsigned char kWal = 2;

fs::path with_suffix(fs::path file, const std::string& suffix) {
  file += suffix;
  return file;
}

bool is_there(const fs::path& file) {
  struct stat status {};
  return ::lstat(file.c_str(), &status) == 0;
}

bool can_write(const fs::path& path) { return ::access(path.c_str(), W_OK) == 0; }

[[noreturn]] void fail_read_only(const std::string& shown, const fs::path& what) {
  throw Error(
      fmt::format("{}: cannot be written: {} is read-only; make it writable or name another "
                  "file with --db",
                  shown, what.string()));
}

/// Missing, a folder, a device, empty: told apart before SQLite sees the file.
void check_kind(const std::string& shown, const fs::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) {
    if (errno == ENOENT) {
      throw Error(fmt::format("{}: no database there; `muse-tune sweep CONFIG` makes one", shown));
    }
    throw Error(fmt::format("{}: cannot be reached: {}; check the path and its rights", shown,
                            std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode)) {
    throw Error(fmt::format("{}: is a folder; name a database file in it", shown));
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(fmt::format("{}: is not a regular file; name a database file", shown));
  }
  if (status.st_size == 0) {
    throw Error(
        fmt::format("{}: is empty, which a database never is; delete it, "
                    "`muse-tune sweep CONFIG` makes a new one",
                    shown));
  }
}

/// A file of SQLite, of this program, in the journal mode that this program uses.
void check_header(Connection& connection) {
  const std::string& shown = connection.shown();
  std::array<unsigned char, kHeaderBytes> header{};
  if (!connection.read_raw(header.data(), kHeaderBytes, 0) ||
      std::memcmp(header.data(), kMagic, sizeof(kMagic)) != 0) {
    throw Error(
        fmt::format("{}: is not a database of muse-tune (no SQLite header); name another "
                    "file or move this one away",
                    shown));
  }
  const unsigned char* id = &header[kApplicationIdAt];
  const unsigned application = unsigned{id[0]} << 24 | id[1] << 16 | id[2] << 8 | id[3];
  if (application != unsigned{kApplicationId}) {
    throw Error(
        fmt::format("{}: is a database of another program (application_id 0x{:08X}); name "
                    "another file",
                    shown, application));
  }
  if (header[kWriteVersionAt] == kWal || header[kReadVersionAt] == kWal) {
    throw Error(
        fmt::format("{}: was switched to journal mode WAL, which this program does not use; "
                    "switch it back: sqlite3 {} 'PRAGMA journal_mode=DELETE'",
                    shown, shown));
  }
}

/// Makes the file under another name first, so that it is whole from its first moment on.
void create(const std::string& shown, const fs::path& file, std::span<const Migration> steps) {
  const fs::path folder = file.parent_path();
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw Error(
        fmt::format("{}: cannot be made: no folder {}; make it first", shown, folder.string()));
  }
  if (!can_write(folder)) fail_read_only(shown, folder);
  const SideLock lock(file);
  if (is_there(file)) return;  // another process was first
  if (const fs::path journal = with_suffix(file, "-journal"); is_there(journal)) {
    // Of a database that was deleted or moved. SQLite would take it for the new file's own and play
    // it back into it; whoever brings the old file back needs it.
    replace_file(journal, with_suffix(journal, ".left"), FileSystem{});
  }
  const fs::path temp = folder / ("." + file.filename().string() + ".new");
  const auto remove_temp = [&] {
    ::unlink(temp.c_str());
    ::unlink(with_suffix(temp, "-journal").c_str());
  };
  remove_temp();  // of a process that was killed here
  try {
    {
      Connection connection(temp, shown, Connection::Mode::kNew);
      connection.prepare_for_writing();
      apply(connection, steps);
    }
    replace_file(temp, file, FileSystem{});
  } catch (...) {
    remove_temp();
    throw;
  }
}

/// Reads for the first time. A transaction that a killed writer left half done must be rolled back
/// first, which a connection that only reads cannot do.
void first_read(Connection& connection, const fs::path& file) {
  try {
    version(connection);
    return;
  } catch (const SqliteError& error) {
    if (error.code != SQLITE_READONLY_ROLLBACK) throw;
  }
  if (!can_write(file) || !can_write(file.parent_path())) {
    throw Error(
        fmt::format("{}: a killed writer left a transaction to roll back ({}-journal), and "
                    "it cannot be written here; copy both to where they can be",
                    connection.shown(), file.filename().string()));
  }
  Connection writer(file, connection.shown(), Connection::Mode::kWrite);
  version(writer);
  version(connection);
}

void check_version(Connection& connection, int newest) {
  const int found = version(connection);
  if (found > newest) {
    throw Error(
        fmt::format("{}: was written by a newer muse-tune (schema version {}, this one knows "
                    "{}); use that one",
                    connection.shown(), found, newest));
  }
  if (found < 1) {
    throw Error(
        fmt::format("{}: the database is damaged (schema version {}); restore a copy, or "
                    "move it away and sweep again",
                    connection.shown(), found));
  }
}

void check_soundness(Connection& connection) {
  if (const std::string wrong = integrity(connection); !wrong.empty()) {
    throw Error(
        fmt::format("{}: the database is damaged: {}; restore a copy, or move it away and "
                    "sweep again",
                    connection.shown(), wrong));
  }
}

void migrate(Connection& connection, const fs::path& file, std::span<const Migration> steps) {
  const SideLock lock(file);
  const int from = version(connection);
  if (from == steps.back().version) return;  // another process was first
  const fs::path backup = with_suffix(file, fmt::format(".v{}.bak", from));
  const fs::path temp = file.parent_path() / ("." + backup.filename().string() + ".new");
  ::unlink(temp.c_str());
  {
    Connection copy(temp, backup.string(), Connection::Mode::kNew);
    connection.copy_to(copy);
  }
  replace_file(temp, backup, FileSystem{});
  apply(connection, steps);
}

std::unique_ptr<Connection> migrated_in_memory(Connection& connection,
                                               std::span<const Migration> steps) {
  auto memory = std::make_unique<Connection>("", connection.shown(), Connection::Mode::kMemory);
  connection.copy_to(*memory);
  apply(*memory, steps);
  return memory;
}

}  // namespace

bool can_be_written(const fs::path& path) {
  if (path.empty()) return false;
  const fs::path file = follow_links(fs::absolute(path)).lexically_normal();
  const fs::path lock = with_suffix(file, ".lock");
  return can_write(file) && can_write(file.parent_path()) && (!is_there(lock) || can_write(lock));
}

Opened open_checked(const fs::path& path, Open how, std::span<const Migration> steps) {
  const std::string shown = path.string();
  if (path.empty()) throw Error("the database's name is empty; name a file with --db");
  const fs::path file = follow_links(fs::absolute(path)).lexically_normal();
  const bool writes = how != Open::kRead;
  if (how == Open::kCreate && !is_there(file)) create(shown, file, steps);
  check_kind(shown, file);
  const bool journal_left = is_there(with_suffix(file, "-journal"));

  auto connection = std::make_unique<Connection>(
      file, shown, writes ? Connection::Mode::kWrite : Connection::Mode::kRead);
  check_header(*connection);
  if (writes) {
    if (!connection->writable()) fail_read_only(shown, file);
    if (!can_write(file.parent_path())) fail_read_only(shown, file.parent_path());
    connection->prepare_for_writing();
  }
  first_read(*connection, file);
  check_version(*connection, steps.back().version);
  if (journal_left || connection->value(kLastStatus) == "running") check_soundness(*connection);
  if (version(*connection) < steps.back().version) {
    if (writes)
      migrate(*connection, file, steps);
    else
      connection = migrated_in_memory(*connection, steps);
  }
  if (!writes) connection->execute("PRAGMA query_only=ON");
  return {file, std::move(connection)};
}

}  // namespace muse::db
