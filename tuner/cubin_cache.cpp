// SPDX-License-Identifier: Apache-2.0
// The cache of cubins: FOLDER/TOOLKIT/ARCHITECTURE/KEY.cubin. A file is one line with the hash of
// the rest, one line of JSON, then the cubin; what does not fit its hash is not there.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "db/atomic_file.h"
#include "tuner/compile.h"
#include "tuner/console.h"
#include "tuner/nvrtc.h"
#include "tuner/records.h"
#include "variants/kernel_source.h"

namespace muse::tuner {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kFormat = 1;

/// "nvrtc 13.0" as a folder's name.
std::string folder_name(std::string toolkit) {
  std::replace(toolkit.begin(), toolkit.end(), ' ', '-');
  return toolkit;
}

/// The inverse, for folders that NVRTC's cubins lie in; nullopt for any other.
struct Release {
  int major = 0, minor = 0;
  auto operator<=>(const Release&) const = default;
};
std::optional<Release> release_of(const std::string& folder) {
  Release release;
  int end = 0;
  if (std::sscanf(folder.c_str(), "nvrtc-%d.%d%n", &release.major, &release.minor, &end) != 2 ||
      static_cast<size_t>(end) != folder.size()) {
    return std::nullopt;
  }
  return release;
}

std::string flags_text() {
  std::string text;
  for (const std::string& flag : compile_flags()) text += flag + '\n';
  return text;
}

fs::path file_of(const fs::path& folder, const std::string& source_hash, const std::string& toolkit,
                 const std::string& architecture) {
  const std::string key = hash_hex(
      fmt::format("{}\n{}\n{}\n{}\n{}", kFormat, source_hash, toolkit, architecture, flags_text()));
  return folder / folder_name(toolkit) / architecture / (key + ".cubin");
}

json header(const Compiled& compiled, const std::string& candidate) {
  json kernels = json::array();
  for (const CompiledKernel& kernel : compiled.kernels) {
    kernels.push_back({{"entry", kernel.entry},
                       {"symbol", kernel.symbol},
                       {"registers", kernel.registers},
                       {"shared_bytes", kernel.shared_bytes},
                       {"spill_bytes", kernel.spill_bytes}});
  }
  return {{"candidate", candidate},
          {"source_hash", compiled.source_hash},
          {"cubin_hash", compiled.cubin_hash},
          {"cubin_bytes", compiled.cubin.size()},
          {"kernels", kernels},
          {"compile_ms", compiled.compile_ms},
          {"log", compiled.log}};
}

/// Throws json::exception where the header is not one of this format.
Compiled from_header(const json& header) {
  Compiled compiled;
  compiled.source_hash = header.at("source_hash").get<std::string>();
  compiled.cubin_hash = header.at("cubin_hash").get<std::string>();
  compiled.compile_ms = header.at("compile_ms").get<double>();
  compiled.log = header.at("log").get<std::string>();
  for (const json& kernel : header.at("kernels")) {
    compiled.kernels.push_back({.entry = kernel.at("entry").get<std::string>(),
                                .symbol = kernel.at("symbol").get<std::string>(),
                                .registers = kernel.at("registers").get<int64_t>(),
                                .shared_bytes = kernel.at("shared_bytes").get<int64_t>(),
                                .spill_bytes = kernel.at("spill_bytes").get<int64_t>()});
  }
  return compiled;
}

/// Cuts the first line off; nullopt where there is no whole one.
std::optional<std::string_view> take_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return line;
}

std::optional<Compiled> parse(std::string_view content, const std::string& source_hash) {
  const auto hash = take_line(content);
  if (!hash || *hash != hash_hex(content)) return std::nullopt;
  const auto line = take_line(content);
  if (!line) return std::nullopt;
  try {
    Compiled compiled = from_header(json::parse(*line));
    compiled.cubin = content;
    if (compiled.source_hash != source_hash || compiled.cubin_hash != hash_hex(content)) {
      return std::nullopt;
    }
    return compiled;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

/// What lies in the folder; nothing of one that cannot be read.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; at != end; at.increment(error)) {
    paths.push_back(at->path());
  }
  return paths;
}

bool holds_cubins(const fs::path& toolkit_folder) {
  for (const fs::path& architecture : entries_of(toolkit_folder)) {
    for (const fs::path& file : entries_of(architecture)) {
      if (file.extension() == ".cubin") return true;
    }
  }
  return false;
}

/// A write takes milliseconds. Younger temp files stay: their writer may be a process of another
/// machine or container, whose number says nothing here.
constexpr std::chrono::minutes kTempLife{10};

/// Removes what writers left behind that were killed before they could rename it.
void remove_orphans(const fs::path& folder) {
  const auto now = fs::file_time_type::clock::now();
  for (const fs::path& file : entries_of(folder)) {
    int pid = 0, end = 0;
    const std::string name = file.filename().string();
    if (std::sscanf(name.c_str(), ".muse-%d-%*u.tmp%n", &pid, &end) != 1 || pid <= 0 ||
        static_cast<size_t>(end) != name.size()) {
      continue;
    }
    std::error_code error;
    const auto written = fs::last_write_time(file, error);
    if (error || now - written < kTempLife || kill(pid, 0) == 0 || errno != ESRCH) continue;
    fs::remove(file, error);  // where it stays, it costs space alone
  }
}

}  // namespace

fs::path CubinCache::default_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  // The XDG rules pass over a path that is not absolute.
  if (const std::string cache = variable("XDG_CACHE_HOME"); cache.starts_with('/')) {
    return fs::path(cache) / "muse-tune";
  }
  if (const std::string home = variable("HOME"); !home.empty()) {
    return fs::path(home) / ".cache" / "muse-tune";
  }
  throw IoError(
      "no folder for compiled kernels: neither XDG_CACHE_HOME nor HOME is set; use --cache DIR");
}

std::optional<Compiled> CubinCache::find(const Candidate& candidate, const std::string& toolkit,
                                         const std::string& architecture) const {
  const std::string hash = muse::source_hash(candidate);
  std::ifstream in(file_of(folder_, hash, toolkit, architecture), std::ios::binary);
  if (!in) return std::nullopt;
  std::ostringstream content;
  content << in.rdbuf();
  return parse(content.view(), hash);
}

void CubinCache::store(const Candidate& candidate, const std::string& toolkit,
                       const std::string& architecture, const Compiled& compiled) const {
  const fs::path file = file_of(folder_, compiled.source_hash, toolkit, architecture);
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (error) {
    throw IoError(fmt::format("{}: cannot make the folder for compiled kernels: {}",
                              file.parent_path().string(), error.message()));
  }
  remove_orphans(file.parent_path());
  const std::string rest =
      header(compiled, key(candidate)).dump(-1, ' ', false, json::error_handler_t::replace) + '\n' +
      compiled.cubin;
  db::write_atomically(file, hash_hex(rest) + '\n' + rest);
}

std::string CubinCache::newest_toolkit() const {
  std::optional<Release> newest;
  for (const fs::path& entry : entries_of(folder_)) {
    const auto release = release_of(entry.filename().string());
    if (!release || (newest && *release < *newest)) continue;
    if (holds_cubins(entry)) newest = release;
  }
  return newest ? fmt::format("nvrtc {}.{}", newest->major, newest->minor) : "";
}

}  // namespace muse::tuner
