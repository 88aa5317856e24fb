// SPDX-License-Identifier: Apache-2.0
// What a Store is made of; shared by its writing and its reading half.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "db/sqlite.h"
#include "db/store.h"

namespace muse::db {

struct Store::Impl {
  std::filesystem::path file;
  std::unique_ptr<Connection> connection;
  bool writable = false;
  pid_t owner = 0;  ///< the process that opened it
  bool in_transaction = false;
  bool inner_failed = false;

  /// body(connection) within a transaction, giving what it gives.
  template <typename Body>
  auto write(Store& store, Body body) {
    using Result = decltype(body(*connection));
    if constexpr (std::is_void_v<Result>) {
      store.transaction([&] { body(*connection); });
    } else {
      std::optional<Result> result;
      store.transaction([&] { result = body(*connection); });
      return *result;
    }
  }

  /// The rows of a query as values, `read` taking one row.
  template <typename Read, typename... Values>
  auto all(std::string_view sql, Read read, const Values&... values) {
    Statement statement = connection->prepare(sql);
    statement.bind(values...);
    std::vector<decltype(read(statement))> rows;
    while (statement.step()) rows.push_back(read(statement));
    return rows;
  }

  /// The first row of a query; nullopt if there is none.
  template <typename Read, typename... Values>
  auto first(std::string_view sql, Read read, const Values&... values) {
    Statement statement = connection->prepare(sql);
    statement.bind(values...);
    std::optional<decltype(read(statement))> row;
    if (statement.step()) row = read(statement);
    return row;
  }
};

}  // namespace muse::db
