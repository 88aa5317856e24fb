// SPDX-License-Identifier: Apache-2.0
// Build tool. For every stem below variants/ (a file <stage>/<stem>.cpp) hashes its sources and
// every project header they include into a table that code_hash() reads: host stems together with
// compiler and flags, whereas a stem with a .cuh is made by another compiler. And embeds all that
// kernels are compiled from at run time. OVERLAY, where given, is a folder that files may lie in
// as if it were ROOT. Usage: muse-source-closure ROOT CLOSURES EMBEDDED COMPILER_AND_FLAGS
// [OVERLAY]
#include <xxhash.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

constexpr const char* kStages[] = {"prepare", "attention", "combine", "gate", "fused"};

/// Where project files lie; the first that has one counts.
using Roots = std::vector<fs::path>;

/// Empty where there is no such file.
fs::path locate(const Roots& roots, const fs::path& file) {
  for (const fs::path& root : roots) {
    if (fs::is_regular_file(root / file)) return root / file;
  }
  return {};
}

std::string read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// Project headers are included by their path from the root.
void add_closure(const Roots& roots, const std::string& file, std::set<std::string>& closure) {
  const fs::path place = locate(roots, file);
  if (place.empty() || !closure.insert(file).second) return;
  static const std::regex kInclude(R"re(^[ \t]*#[ \t]*include[ \t]*"([^"]+)")re");
  std::istringstream text(read(place));
  for (std::string line; std::getline(text, line);) {
    std::smatch match;
    if (std::regex_search(line, match, kInclude)) add_closure(roots, match[1], closure);
  }
}

// What a header declares lies in the source beside it: where variants share such helpers, both
// belong to the closure.
bool has_source_beside(const fs::path& header) {
  const fs::path folder = header.parent_path();
  return header.extension() == ".h" && (folder == "variants/host" || folder == "variants/device" ||
                                        header == "variants/contract.h");
}

std::set<std::string> closure_of(const Roots& roots, const std::string& stem) {
  std::set<std::string> closure;
  for (const char* ending : {".cpp", ".cuh", ".h"}) add_closure(roots, stem + ending, closure);
  for (size_t before = 0; before != closure.size();) {
    before = closure.size();
    for (const std::string& file : std::set<std::string>(closure)) {
      if (!has_source_beside(file)) continue;
      add_closure(roots, fs::path(file).replace_extension(".cpp").string(), closure);
    }
  }
  return closure;
}

/// Files of that ending directly in the folder, by path from the root.
std::set<std::string> files_in(const Roots& roots, const fs::path& folder, const char* ending) {
  std::set<std::string> files;
  for (const fs::path& root : roots) {
    if (!fs::is_directory(root / folder)) continue;
    for (const auto& entry : fs::directory_iterator(root / folder)) {
      if (entry.path().extension() != ending) continue;
      files.insert((folder / entry.path().filename()).string());
    }
  }
  return files;
}

std::string hash_hex(const std::string& text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  char hex[33];
  std::snprintf(hex, sizeof hex, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return hex;
}

std::map<std::string, std::string> closure_hashes(const Roots& roots,
                                                  const std::string& compiler_and_flags) {
  std::map<std::string, std::string> hashes;
  for (const fs::path stage : kStages) {
    for (const std::string& file : files_in(roots, "variants" / stage, ".cpp")) {
      const std::string name = (stage / fs::path(file).stem()).string();
      const bool device_code = !locate(roots, fs::path(file).replace_extension(".cuh")).empty();
      std::string text = device_code ? "cuda" : compiler_and_flags;
      for (const std::string& each : closure_of(roots, "variants/" + name)) {
        text += '\n' + each + '\n' + read(locate(roots, each));
      }
      hashes[name] = hash_hex(text);
    }
  }
  return hashes;
}

std::set<std::string> embedded_files(const Roots& roots) {
  std::set<std::string> files;
  for (const fs::path folder : kStages) {
    for (const auto& file : files_in(roots, "variants" / folder, ".cuh")) {
      add_closure(roots, file, files);
    }
  }
  for (const auto& file : files_in(roots, "variants/device", ".cuh"))
    add_closure(roots, file, files);
  return files;
}

/// Any bytes as a string literal, a line of them to a line. Octal escapes end after three digits,
/// whatever follows.
std::string literal(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n\"\n    \"";
    } else if (c == '"' || c == '\\' || c == '?') {
      out += {'\\', c};
    } else if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      char escape[5];
      std::snprintf(escape, sizeof escape, "\\%03o", static_cast<unsigned char>(c));
      out += escape;
    }
  }
  return out + '"';
}

std::string closures_text(const Roots& roots, const std::string& compiler_and_flags) {
  std::string out =
      "// Generated by muse-source-closure.\n#include \"variants/source_closures.h\"\n\n"
      "namespace muse {\n\nconst SourceClosure kSourceClosures[] = {\n";
  for (const auto& [name, hash] : closure_hashes(roots, compiler_and_flags)) {
    out += "    {\"" + name + "\", \"" + hash + "\"},\n";
  }
  return out + "    {nullptr, nullptr},\n};\n\n}  // namespace muse\n";
}

// Clang minds strings above 64 KiB, which a standard need not take; every compiler here does.
std::string embedded_text(const Roots& roots) {
  std::string out =
      "// Generated by muse-source-closure.\n#include \"variants/kernel_source.h\"\n\n"
      "#pragma GCC diagnostic ignored \"-Woverlength-strings\"\n\n"
      "namespace muse {\n\nconst std::vector<SourceFile>& embedded_sources() {\n"
      "  using namespace std::string_view_literals;\n"
      "  static const std::vector<SourceFile> files{\n";
  for (const std::string& file : embedded_files(roots)) {
    out += "    {\"" + file + "\"sv,\n    " + literal(read(locate(roots, file))) + "sv},\n";
  }
  return out + "  };\n  return files;\n}\n\n}  // namespace muse\n";
}

bool write(const char* file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  if (!out) std::cerr << file << ": cannot write\n";
  return static_cast<bool>(out);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) {
    std::cerr << "usage: muse-source-closure ROOT CLOSURES EMBEDDED COMPILER_AND_FLAGS [OVERLAY]\n";
    return 2;
  }
  Roots roots{argv[1]};
  if (argc == 6) roots.emplace_back(argv[5]);
  const bool written =
      write(argv[2], closures_text(roots, argv[4])) && write(argv[3], embedded_text(roots));
  return written ? 0 : 1;
}
