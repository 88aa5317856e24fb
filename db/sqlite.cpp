// SPDX-License-Identifier: Apache-2.0
// Connection and statement over SQLite's C API.
#include "db/sqlite.h"

#include <fmt/format.h>

#include <chrono>
#include <random>
#include <thread>

#include "db/side_lock.h"

namespace muse::db {
namespace {

using Clock = std::chrono::steady_clock;

/// SQLite's own handler soon waits 100 ms between two tries, during which fast writers take every
/// gap: short random pauses come through.
int wait_for_lock(void*, int tries) {
  thread_local Clock::time_point first;
  thread_local std::minstd_rand random(
      static_cast<unsigned>(Clock::now().time_since_epoch().count()));
  if (tries == 0) first = Clock::now();
  if (Clock::now() - first >= kLockWait) return 0;
  std::uniform_int_distribution<int> pause_us(200, 3000);
  std::this_thread::sleep_for(std::chrono::microseconds(pause_us(random)));
  return 1;
}

const char* what_to_do(int code) {
  switch (code & 0xFF) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return "the database is damaged; restore a copy, or move it away and sweep again";
    case SQLITE_FULL:
      return "nothing of this step was kept; make room on the disk and run again";
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return "another program keeps the database locked; wait for it or end it";
    case SQLITE_READONLY:
      if (code == SQLITE_READONLY_ROLLBACK) {
        return "a writer was killed and its journal must be rolled back first; run again";
      }
      return "make the file and its folder writable";
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return "check the rights on the file and its folder";
    case SQLITE_IOERR:
      return "check the disk; what was committed before is kept";
    case SQLITE_NOMEM:
      return "end other programs";
    default:
      return "the file does not hold what this program writes, or this is a fault of the program";
  }
}

int open_flags(Connection::Mode mode) {
  switch (mode) {
    case Connection::Mode::kRead:
      return SQLITE_OPEN_READONLY;
    case Connection::Mode::kWrite:
      return SQLITE_OPEN_READWRITE;
    case Connection::Mode::kNew:
      return SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    case Connection::Mode::kMemory:
      return SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_MEMORY;
  }
  return 0;
}

}  // namespace

Statement::~Statement() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
  // A second use of the same text at the same time had to be prepared apart; one is kept.
  const std::string_view sql = sqlite3_sql(statement_);  // lives as long as the statement
  if (!connection_.idle_.emplace(sql, statement_).second) sqlite3_finalize(statement_);
}

void Statement::check(int code) {
  if (code != SQLITE_OK) connection_.fail(code);
}

void Statement::reset() {
  sqlite3_reset(statement_);  // repeats the error of the last step, which was thrown there
}

bool Statement::step() {
  next_ = 0;
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  connection_.fail(code);
}

void Statement::run() {
  while (step()) {
  }
}

void Statement::bind_one(int index, std::string_view value) {
  // A null pointer would bind NULL.
  const char* data = value.data() == nullptr ? "" : value.data();
  check(sqlite3_bind_text64(statement_, index, data, value.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
}

void Statement::bind_one(int index, std::span<const std::byte> value) {
  if (value.empty()) return check(sqlite3_bind_zeroblob(statement_, index, 0));
  check(sqlite3_bind_blob64(statement_, index, value.data(), value.size(), SQLITE_TRANSIENT));
}

double Statement::real(double if_null) {
  const int column = next_++;
  return column_type(column) == SQLITE_NULL ? if_null : sqlite3_column_double(statement_, column);
}

std::string Statement::text() {
  const int column = next_++;
  const unsigned char* text = sqlite3_column_text(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return text == nullptr ? std::string()
                         : std::string(reinterpret_cast<const char*>(text), size_t(size));
}

std::string_view Statement::blob() {
  const int column = next_++;
  const void* bytes = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return bytes == nullptr ? std::string_view()
                          : std::string_view(static_cast<const char*>(bytes), size_t(size));
}

Connection::Connection(const std::filesystem::path& file, std::string shown, Mode mode)
    : shown_(std::move(shown)) {
  const std::string name = mode == Mode::kMemory ? ":memory:" : file.string();
  const int code = sqlite3_open_v2(name.c_str(), &handle_, open_flags(mode), nullptr);
  try {
    if (code != SQLITE_OK) fail(code);
    configure();
  } catch (...) {
    sqlite3_close(handle_);
    throw;
  }
}

Connection::~Connection() {
  for (const auto& [sql, statement] : idle_) sqlite3_finalize(statement);
  sqlite3_close(handle_);
}

void Connection::fail(int code) const {
  const char* words = handle_ == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(handle_);
  throw SqliteError(code, fmt::format("{}: {}: {}", shown_, words, what_to_do(code)));
}

void Connection::set_option(int option, int value, const char* name) {
  int now = -1;
  const int code = sqlite3_db_config(handle_, option, value, &now);
  if (code != SQLITE_OK || now != value) {
    throw Error(fmt::format("{}: this SQLite ({}) has no {}; use 3.37 or later", shown_,
                            sqlite3_libversion(), name));
  }
}

void Connection::set_pragma(const std::string& name, const std::string& value,
                            const std::string& expected) {
  execute(fmt::format("PRAGMA {}={}", name, value).c_str());
  const std::string now = this->value("PRAGMA " + name);
  if (now != expected) {
    throw Error(fmt::format("{}: {} is '{}', must be '{}'; this SQLite is {}", shown_, name, now,
                            expected, sqlite3_libversion()));
  }
}

void Connection::configure() {
  sqlite3_extended_result_codes(handle_, 1);
  sqlite3_busy_handler(handle_, wait_for_lock, nullptr);
  set_option(SQLITE_DBCONFIG_DEFENSIVE, 1, "defensive mode");
  set_option(SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, "trusted_schema");
  set_option(SQLITE_DBCONFIG_ENABLE_FKEY, 1, "foreign keys");
  set_option(SQLITE_DBCONFIG_DQS_DML, 0, "strict quoting");
  // The schema has neither; a foreign hand may have planted some.
  set_option(SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, "switch for triggers");
  set_option(SQLITE_DBCONFIG_ENABLE_VIEW, 0, "switch for views");
  set_pragma("cell_size_check", "ON", "1");  // damaged pages are noticed where they are read
  set_pragma("temp_store", "MEMORY", "2");   // sorting leaves no files
}

void Connection::prepare_for_writing() {
  set_pragma("journal_mode", "DELETE", "delete");
  set_pragma("synchronous", "FULL", "2");
}

Statement Connection::prepare(std::string_view sql) {
  if (const auto found = idle_.find(sql); found != idle_.end()) {
    sqlite3_stmt* statement = found->second;
    idle_.erase(found);
    return Statement(*this, statement);
  }
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(handle_, sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) fail(code);
  return Statement(*this, statement);
}

void Connection::execute(const char* sql) {
  const int code = sqlite3_exec(handle_, sql, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) fail(code);
}

void Connection::rollback() noexcept {
  // If this fails, SQLite has rolled back or will do so from the journal at the next opening.
  if (in_transaction()) sqlite3_exec(handle_, "ROLLBACK", nullptr, nullptr, nullptr);
}

std::string Connection::value(std::string_view sql) {
  Statement statement = prepare(sql);
  return statement.step() ? statement.text() : std::string();
}

bool Connection::read_raw(void* bytes, int size, int64_t offset) {
  // Through SQLite's own descriptor: closing another one on the same file would drop the locks of
  // every connection of this process.
  sqlite3_file* file = nullptr;
  int code = sqlite3_file_control(handle_, "main", SQLITE_FCNTL_FILE_POINTER, &file);
  if (code != SQLITE_OK) fail(code);
  code = file->pMethods->xRead(file, bytes, size, offset);
  if (code == SQLITE_IOERR_SHORT_READ) return false;
  if (code != SQLITE_OK) fail(code);
  return true;
}

void Connection::copy_to(Connection& target) {
  sqlite3_backup* backup = sqlite3_backup_init(target.handle_, "main", handle_, "main");
  if (backup == nullptr) target.fail(sqlite3_errcode(target.handle_));
  int code = SQLITE_OK;
  // One step copies all under one read lock; the busy handler is not asked here, so wait by hand.
  for (int tries = 0;; ++tries) {
    code = sqlite3_backup_step(backup, -1);
    const int primary = code & 0xFF;
    if (primary != SQLITE_BUSY && primary != SQLITE_LOCKED) break;
    if (wait_for_lock(nullptr, tries) == 0) break;
  }
  sqlite3_backup_finish(backup);
  if (code != SQLITE_DONE) {
    throw SqliteError(code, fmt::format("{}: cannot be copied: {}: {}", shown_,
                                        sqlite3_errstr(code), what_to_do(code)));
  }
}

}  // namespace muse::db
