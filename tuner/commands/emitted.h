// SPDX-License-Identifier: Apache-2.0
// A folder that emit has written, read back.
#pragma once

#include <filesystem>

#include "tuner/emit.h"

namespace muse::tuner {

/// The folder's table, checked against the header beside it. Throws CommandError(kEnvironment) with
/// the file where one cannot be read, is damaged, or belongs to another.
DispatchTable read_emitted(const std::filesystem::path& folder);

}  // namespace muse::tuner
