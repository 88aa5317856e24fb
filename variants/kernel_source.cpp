// SPDX-License-Identifier: Apache-2.0
// The text of a CUDA candidate and the hash over all that it is compiled from.
#include "variants/kernel_source.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <set>
#include <stdexcept>

namespace muse {
namespace {

std::string stem_path(const Variant& variant) { return "variants/" + variant.name + ".cuh"; }

std::string stem_namespace(const Variant& variant) {
  std::string name = "muse::" + variant.name;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

const SourceFile* find_embedded(std::string_view path) {
  const std::vector<SourceFile>& files = embedded_sources();
  const auto found = std::lower_bound(
      files.begin(), files.end(), path,
      [](const SourceFile& file, std::string_view wanted) { return file.path < wanted; });
  return found == files.end() || found->path != path ? nullptr : &*found;
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  return first == std::string_view::npos ? std::string_view() : text.substr(first);
}

/// The path in `#include "path"`; empty for any other line.
std::string_view included_path(std::string_view line) {
  for (const std::string_view word : {"#", "include", "\""}) {
    line = trimmed(line);
    if (!line.starts_with(word)) return {};
    line.remove_prefix(word.size());
  }
  return line.substr(0, line.find('"'));
}

void add_closure(const SourceFile& file, std::set<std::string_view>& paths) {
  if (!paths.insert(file.path).second) return;
  for (std::string_view rest = file.text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size() - 1);
    if (const SourceFile* next = find_embedded(included_path(rest.substr(0, end)))) {
      add_closure(*next, paths);
    }
    rest.remove_prefix(end + 1);
  }
}

}  // namespace

std::vector<SourceFile> embedded_closure(const Variant& variant) {
  const SourceFile* stem = find_embedded(stem_path(variant));
  if (stem == nullptr) {
    throw std::logic_error(fmt::format("{} is not embedded in this binary", stem_path(variant)));
  }
  std::set<std::string_view> paths;
  add_closure(*stem, paths);
  std::vector<SourceFile> files;
  for (const std::string_view path : paths) files.push_back(*find_embedded(path));
  return files;
}

std::string configuration_name(const Configuration& configuration) {
  std::string name;
  for (const auto& [tunable, value] : configuration) {
    const std::string digits =
        value < 0 ? fmt::format("m{}", fmt::to_string(value).substr(1)) : fmt::to_string(value);
    name += fmt::format("{}{}_{}", name.empty() ? "" : "_", tunable, digits);
  }
  return name.empty() ? "defaults" : name;
}

std::string configuration_text(const Candidate& candidate) {
  const Variant& variant = *candidate.variant;
  std::string text =
      fmt::format("#include \"{}\"\n\nnamespace {} {{\nstruct {} {{\n", stem_path(variant),
                  stem_namespace(variant), configuration_name(candidate.configuration));
  for (const auto& [tunable, value] : candidate.configuration) {
    text += fmt::format("  static constexpr int {} = {};\n", tunable, value);
  }
  return text + fmt::format("}};\n}}  // namespace {}\n", stem_namespace(variant));
}

std::string kernel_expression(const Candidate& candidate, std::string_view entry) {
  const std::string scope = stem_namespace(*candidate.variant);
  return fmt::format("{0}::{1}<{0}::{2}>", scope, entry,
                     configuration_name(candidate.configuration));
}

std::string source_hash(const Candidate& candidate) {
  std::string text = configuration_text(candidate);
  for (const std::string& entry : candidate.variant->entries) {
    text += kernel_expression(candidate, entry) + '\n';
  }
  for (const SourceFile& file : embedded_closure(*candidate.variant)) {
    text += fmt::format("{}\n{}\n{}\n", file.path, file.text.size(), file.text);
  }
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace muse
