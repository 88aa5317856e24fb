// SPDX-License-Identifier: Apache-2.0
// Writes muse_kernels.cu. Every identifier in it is made from registered names, which are plain.
#include "tuner/emit_kernels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "variants/kernel_source.h"

namespace muse::tuner {
namespace {

constexpr const char* kHead =
    "// SPDX-License-Identifier: Apache-2.0\n"
    "// Generated: the kernels that muse_dispatch.h names, for nvcc. Do not edit.\n";

std::string table_entry(const Candidate& candidate, const std::string& entry) {
  return fmt::format("    {{\"{}\", \"{}\",\n     reinterpret_cast<const void*>(&{})}},\n",
                     key(candidate), entry, kernel_expression(candidate, entry));
}

/// The header first, as in table.cpp: what both define is the table's own.
std::string held_against_header(const std::string& id) {
  return fmt::format(
      "#include \"muse_dispatch.h\"\n"
      "#ifndef MUSE_DISPATCH_TABLE_{}\n"
      "#error \"muse_kernels.cu and the muse_dispatch.h beside it are of different emits: take all "
      "files of a folder from one muse-tune emit\"\n"
      "#endif\n",
      id);
}

}  // namespace

std::string kernels_source(const std::vector<Chain>& chains, const std::optional<std::string>& id) {
  std::map<std::string, Candidate> candidates;
  for (const Chain& chain : chains) {
    for (const Candidate& candidate : chain) {
      if (candidate.variant->target.kind == TargetKind::kCuda) {
        candidates.emplace(key(candidate), candidate);
      }
    }
  }
  std::string out = kHead;
  if (candidates.empty()) {
    return out +
           "// The table is for a CPU: its kernels are host functions, none is compiled here.\n";
  }
  out += "// C++17, with include/muse_tune of an installed muse-tune on the include path.\n";
  if (id) out += held_against_header(*id);
  out += "#include \"variants/runtime/linked_table.h\"\n";
  std::string entries;
  for (const auto& [name, candidate] : candidates) {
    out += '\n' + configuration_text(candidate);
    for (const std::string& entry : candidate.variant->entries) {
      entries += table_entry(candidate, entry);
    }
  }
  return out +
         "\nnamespace muse {\nnamespace runtime {\n\n"
         "const Kernel kKernels[] = {\n" +
         entries +
         "};\nconst int kKernelCount = static_cast<int>(sizeof kKernels / sizeof kKernels[0]);\n"
         "const int kCompilerVersion = __CUDACC_VER_MAJOR__ * 1000 + __CUDACC_VER_MINOR__ * 10;\n\n"
         "}  // namespace runtime\n}  // namespace muse\n";
}

}  // namespace muse::tuner
