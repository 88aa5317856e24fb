// SPDX-License-Identifier: Apache-2.0
// The store as a whole: its soundness, and any table as text.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "db/schema.h"
#include "db/store.h"
#include "db/store_impl.h"

namespace muse::db {
namespace {

constexpr char kTables[] = R"sql(
SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\'
ORDER BY name)sql";

std::optional<std::string> cell_text(Statement& statement, int column) {
  switch (statement.column_type(column)) {
    case SQLITE_NULL:
      statement.integer();
      return std::nullopt;
    case SQLITE_INTEGER:
      return std::to_string(statement.integer());
    case SQLITE_FLOAT:
      return fmt::format("{}", statement.real());  // the shortest text that reads back the same
    case SQLITE_BLOB: {
      std::string hex;
      for (const char byte : statement.blob()) {
        fmt::format_to(std::back_inserter(hex), "{:02x}", static_cast<unsigned char>(byte));
      }
      return hex;
    }
    default:
      return statement.text();
  }
}

}  // namespace

std::string Store::integrity() const { return muse::db::integrity(*impl_->connection); }

std::vector<std::string> Store::table_names() const {
  return impl_->all(kTables, [](Statement& s) { return s.text(); });
}

Store::Table Store::table(const std::string& name) const {
  const std::vector<std::string> names = table_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    throw Error(fmt::format("{}: no table '{}'", impl_->connection->shown(), name));
  }
  std::string quoted;
  for (const char c : name) quoted.append(c == '"' ? 2 : 1, c);
  Statement statement =
      impl_->connection->prepare(fmt::format("SELECT * FROM \"{}\" ORDER BY 1, 2", quoted));
  Table table{name, {}, {}};
  for (int i = 0; i < statement.columns(); ++i) table.columns.push_back(statement.column_name(i));
  while (statement.step()) {
    auto& row = table.rows.emplace_back();
    for (int i = 0; i < statement.columns(); ++i) row.push_back(cell_text(statement, i));
  }
  return table;
}

}  // namespace muse::db
