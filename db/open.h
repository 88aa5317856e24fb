// SPDX-License-Identifier: Apache-2.0
// From a path to a connection that can be trusted: what is checked, in which order, with which
// words.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "db/schema.h"
#include "db/store.h"

namespace muse::db {

struct Opened {
  std::filesystem::path file;  ///< absolute, links followed: where journal and lock file lie
  std::unique_ptr<Connection> connection;
};

/// The body of Store::can_be_written.
bool can_be_written(const std::filesystem::path& file);

/// The body of Store::open over the given schema steps, the last of which is "this version".
Opened open_checked(const std::filesystem::path& file, Open how, std::span<const Migration> steps);

}  // namespace muse::db
