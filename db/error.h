// SPDX-License-Identifier: Apache-2.0
// What this folder throws when the world outside does not play along.
#pragma once

#include <stdexcept>

namespace muse::db {

/// The file cannot be used: missing, a folder, foreign, newer, corrupt, read-only, locked, disk
/// full. what() says which file, what is wrong and what to do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace muse::db
