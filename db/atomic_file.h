// SPDX-License-Identifier: Apache-2.0
// A file is either the old one or the new one, whole.
#pragma once

#include <filesystem>
#include <string_view>

#include "db/error.h"

namespace muse::db {

/// Temp file beside the target, fsync, rename, fsync of the folder. An existing file keeps its
/// mode; a symbolic link stays one and the file it names is replaced. Throws Error with the path
/// and the system's reason (missing folder, read-only, disk full, target is a folder or a device);
/// the old file stays and no temp file is left. (Only where the folder cannot be synced after the
/// rename is the new file already there.)
void write_atomically(const std::filesystem::path& file, std::string_view content);

}  // namespace muse::db
