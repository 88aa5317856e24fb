// SPDX-License-Identifier: Apache-2.0
// The tables, and how a file of an older version becomes one of this version.
#pragma once

#include <span>
#include <string>

#include "db/sqlite.h"

namespace muse::db {

/// One step of the schema: `sql` leads from version - 1 to version. Steps are only ever appended.
struct Migration {
  int version;
  const char* sql;
};

/// All steps to kSchemaVersion; the first makes the tables of an empty file.
std::span<const Migration> migrations();

/// Runs the steps that are missing in one transaction and stamps application_id and user_version.
/// Throws Error with everything rolled back.
void apply(Connection& connection, std::span<const Migration> steps);

/// user_version of the file.
int version(Connection& connection);

/// quick_check and foreign_key_check; empty if sound, else what is wrong.
std::string integrity(Connection& connection);

}  // namespace muse::db
