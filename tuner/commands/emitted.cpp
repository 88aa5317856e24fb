// SPDX-License-Identifier: Apache-2.0
// Reads muse_dispatch.json and holds it against muse_dispatch.h.
#include "tuner/commands/emitted.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>

#include "profiler/sampler.h"
#include "tuner/commands/command.h"
#include "tuner/dispatch_file.h"

namespace muse::tuner {
namespace {

namespace fs = std::filesystem;

/// A table of thousands of rows has a few megabytes.
constexpr uintmax_t kMostBytes = uintmax_t{64} << 20;

[[noreturn]] void unreadable(const fs::path& file, const std::string& what) {
  throw CommandError(ExitCode::kEnvironment, fmt::format("{}: {}", printable(file.string()), what));
}

std::string read(const fs::path& file) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(file, error);
  if (error) {
    unreadable(file, fmt::format("{}; `muse-tune emit --out {}` writes it", error.message(),
                                 printable(file.parent_path().string())));
  }
  if (bytes > kMostBytes) unreadable(file, fmt::format("{} bytes are no table's", bytes));
  std::ifstream in(file, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  if (in.bad() || text.size() != bytes) unreadable(file, "cannot be read");
  return text;
}

}  // namespace

DispatchTable read_emitted(const fs::path& folder) {
  const fs::path file = folder / "muse_dispatch.json", header = folder / "muse_dispatch.h";
  auto parsed = parse_dispatch_json(read(file));
  if (!parsed) unreadable(file, parsed.error());
  if (hash_hex(read(header)) != parsed->header_hash) {
    unreadable(header, "it is not the header that muse_dispatch.json describes: emit both again");
  }
  if (!profiler::parse_regime(parsed->table.regime)) {
    unreadable(file, fmt::format("regime: '{}' is none", printable(parsed->table.regime)));
  }
  if (!profiler::parse_timer(parsed->table.timer)) {
    unreadable(file, fmt::format("timer: '{}' is none", printable(parsed->table.timer)));
  }
  return std::move(parsed->table);
}

}  // namespace muse::tuner
