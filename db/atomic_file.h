// SPDX-License-Identifier: Apache-2.0
// A file is either the old one or the new one, whole.
#pragma once

#include <filesystem>
#include <string_view>

namespace muse::db {

/// Temp file beside the target, fsync, rename, fsync of the folder. Throws Error with the path and the
/// system's reason (missing folder, read-only, disk full, target is a folder); the old file stays.
void write_atomically(const std::filesystem::path& file, std::string_view content);

}  // namespace muse::db
