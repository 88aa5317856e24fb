// SPDX-License-Identifier: Apache-2.0
// SQLite's C API with ownership and errors: a connection, its statements, nothing else.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "db/error.h"

namespace muse::db {

/// A call that SQLite refused; `code` is its extended result code.
class SqliteError : public Error {
 public:
  SqliteError(int code, const std::string& what) : Error(what), code(code) {}
  int code;
};

class Connection;

/// A prepared statement: bind, step, read the columns of the row from left to right. Goes back to
/// the connection's cache when it dies.
class Statement {
 public:
  Statement(Connection& connection, sqlite3_stmt* statement)
      : connection_(connection), statement_(statement) {}
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  /// Binds all parameters in order and makes the statement ready to step.
  template <typename... Values>
  Statement& bind(const Values&... values) {
    reset();
    int index = 0;
    (bind_one(++index, values), ...);
    return *this;
  }
  /// True when there is a row. Throws SqliteError.
  bool step();
  /// Steps to the end, ignoring rows.
  void run();

  int columns() const { return sqlite3_column_count(statement_); }
  std::string column_name(int column) const { return sqlite3_column_name(statement_, column); }
  int column_type(int column) const { return sqlite3_column_type(statement_, column); }

  // The next column of the row. NULL reads as 0, an empty text or the given value.
  int64_t integer() { return sqlite3_column_int64(statement_, next_++); }
  bool flag() { return integer() != 0; }
  double real(double if_null = 0);
  std::string text();
  std::string_view blob();  ///< valid until the next step

 private:
  void reset();
  void check(int code);
  void bind_one(int index, int64_t value) { check(sqlite3_bind_int64(statement_, index, value)); }
  void bind_one(int index, int value) { bind_one(index, int64_t{value}); }
  void bind_one(int index, bool value) { bind_one(index, int64_t{value}); }
  void bind_one(int index, uint64_t value) { bind_one(index, static_cast<int64_t>(value)); }
  void bind_one(int index, double value) { check(sqlite3_bind_double(statement_, index, value)); }
  void bind_one(int index, std::string_view value);
  void bind_one(int index, const std::string& value) { bind_one(index, std::string_view(value)); }
  void bind_one(int index, std::span<const std::byte> value);
  template <typename Value>
  void bind_one(int index, const std::optional<Value>& value) {
    if (value)
      bind_one(index, *value);
    else
      check(sqlite3_bind_null(statement_, index));
  }

  Connection& connection_;
  sqlite3_stmt* statement_;
  int next_ = 0;
};

/// One open database. Not thread-safe, not usable in a forked child.
class Connection {
 public:
  enum class Mode { kRead, kWrite, kNew, kMemory };
  /// Opens and configures the connection; does not yet read the file. `shown` is its name in
  /// messages.
  Connection(const std::filesystem::path& file, std::string shown, Mode mode);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// From the cache where the same text was prepared before.
  Statement prepare(std::string_view sql);
  /// Runs statements that give no rows.
  void execute(const char* sql);
  int64_t last_id() const { return sqlite3_last_insert_rowid(handle_); }
  /// Rows that the last insert, update or delete met.
  int64_t changes() const { return sqlite3_changes(handle_); }
  bool in_transaction() const { return sqlite3_get_autocommit(handle_) == 0; }
  /// Ends a transaction that is still open. SQLite has rolled back by itself after some errors.
  void rollback() noexcept;
  /// The only value of a statement that gives one, e.g. a pragma; empty where it gives none.
  std::string value(std::string_view sql);

  /// Hot journals are not yet played back and nothing is locked: the file's bytes as they are.
  /// False where it is shorter.
  bool read_raw(void* bytes, int size, int64_t offset);
  bool writable() const { return sqlite3_db_readonly(handle_, "main") == 0; }
  /// Pragmas of a connection that writes, read back: journal DELETE, synchronous FULL.
  void prepare_for_writing();
  /// Replaces the whole content of `target` with this one's, consistent in itself.
  void copy_to(Connection& target);

  const std::string& shown() const { return shown_; }
  /// Throws SqliteError with the file, SQLite's words and what to do.
  [[noreturn]] void fail(int code) const;

 private:
  friend class Statement;
  void configure();
  void set_option(int option, int value, const char* name);
  /// Sets a pragma and reads it back, for an unknown one is ignored without a word.
  void set_pragma(const std::string& name, const std::string& value, const std::string& expected);

  std::string shown_;
  sqlite3* handle_ = nullptr;
  std::unordered_map<std::string_view, sqlite3_stmt*> idle_;  ///< by their own text
};

}  // namespace muse::db
