// SPDX-License-Identifier: Apache-2.0
// Build tool. Writes for each CUDA variant a translation unit with its kernels in the default
// configuration and a seeded sample of the other legal ones, and the table of all. Usage:
// muse-simt-source FOLDER STAGE/STEM...
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "variants/kernel_source.h"
#include "variants/registry.h"

namespace muse {
namespace {

// Every configuration costs seconds of compilation and of tests.
constexpr size_t kLeast = 3, kMost = 10;

using Value = std::pair<std::string, int64_t>;

/// What a sample should show: each value of a tunable and, where CTAs merge within the launch, each
/// way from there to the output.
std::vector<Value> traits(const Configuration& configuration) {
  std::vector<Value> all(configuration.begin(), configuration.end());
  const auto value_of = [&](const char* tunable) {
    const auto found = configuration.find(tunable);
    return found == configuration.end() ? 0 : found->second;
  };
  all.emplace_back(
      "merge", (value_of("cluster") > 1 ? 1 : 0) + 2 * value_of("ticket") + 4 * value_of("gate"));
  return all;
}

/// Default first; then, of a seeded order, whichever has most traits that none before has had.
std::vector<Configuration> sampled(const Variant& variant) {
  std::vector<Configuration> chosen{default_configuration(variant)};
  std::vector<Configuration> rest = space(variant);
  std::erase(rest, chosen.front());
  std::mt19937_64 random(rest.size());
  for (size_t i = rest.size(); i > 1; --i) std::swap(rest[i - 1], rest[random() % i]);
  std::set<Value> seen;
  const auto note = [&seen](const Configuration& configuration) {
    for (const Value& trait : traits(configuration)) seen.insert(trait);
  };
  note(chosen.front());
  const auto fresh = [&seen](const Configuration& configuration) {
    const std::vector<Value> all = traits(configuration);
    return std::count_if(all.begin(), all.end(),
                         [&seen](const Value& trait) { return !seen.contains(trait); });
  };
  while (!rest.empty() && chosen.size() < kMost) {
    const auto best = std::max_element(
        rest.begin(), rest.end(),
        [&](const Configuration& a, const Configuration& b) { return fresh(a) < fresh(b); });
    if (fresh(*best) == 0 && chosen.size() >= kLeast) break;
    note(*best);
    chosen.push_back(*best);
    rest.erase(best);
  }
  return chosen;
}

std::string identifier(std::string name) {
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

/// Rewritten only where it differs, so that nothing is compiled in vain.
void write(const std::filesystem::path& file, const std::string& text) {
  std::ifstream in(file, std::ios::binary);
  if (in && std::string(std::istreambuf_iterator<char>(in), {}) == text) return;
  std::ofstream out(file, std::ios::binary);
  if (!(out << text).flush()) throw std::runtime_error(file.string() + " cannot be written");
}

std::string unit(const Variant& variant) {
  std::string kernels, table;
  for (const Configuration& configuration : sampled(variant)) {
    const Candidate candidate{&variant, configuration};
    kernels += configuration_text(candidate) + "\n";
    for (const std::string& entry : variant.entries) {
      table += fmt::format("    {{\"{}\", \"{}\", KernelOf<&{}>::kernel()}},\n", key(candidate),
                           entry, kernel_expression(candidate, entry));
    }
  }
  return fmt::format(
      "// Generated.\n#include \"tests/simt/kernel_table.h\"\n{}namespace muse::simt {{\n"
      "std::vector<CompiledKernel> kernels_of_{}() {{\n  return {{\n{}  }};\n}}\n}}\n",
      kernels, identifier(variant.name), table);
}

std::string table(const std::vector<std::string>& names) {
  std::string declared, added;
  for (const std::string& name : names) {
    const std::string function = "kernels_of_" + identifier(name);
    declared += fmt::format("std::vector<CompiledKernel> {}();\n", function);
    added += fmt::format("    for (const CompiledKernel& kernel : {}()) all.push_back(kernel);\n",
                         function);
  }
  return fmt::format(
      "// Generated.\n#include \"tests/simt/kernel_table.h\"\nnamespace muse::simt {{\n{}"
      "const std::vector<CompiledKernel>& compiled_kernels() {{\n"
      "  static const std::vector<CompiledKernel> kernels = [] {{\n"
      "    std::vector<CompiledKernel> all;\n{}    return all;\n  }}();\n  return "
      "kernels;\n}}\n}}\n",
      declared, added);
}

void generate(const std::filesystem::path& folder, std::vector<std::string> stems) {
  std::sort(stems.begin(), stems.end());
  std::vector<std::string> registered;
  for (const Variant* variant : Registry::global().all()) {
    if (variant->target.kind == TargetKind::kCuda) registered.push_back(variant->name);
  }
  if (registered != stems) {
    throw std::runtime_error(fmt::format("CUDA variants registered: {}; with a .cuh: {}",
                                         fmt::join(registered, ", "), fmt::join(stems, ", ")));
  }
  for (const std::string& name : registered) {
    write(folder / (identifier(name) + ".cpp"), unit(*Registry::global().find(name)));
  }
  write(folder / "table.cpp", table(registered));
}

}  // namespace
}  // namespace muse

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: muse-simt-source FOLDER STAGE/STEM...\n", stderr);
    return 2;
  }
  try {
    muse::generate(argv[1], {argv + 2, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "muse-simt-source: %s\n", error.what());
    return 1;
  }
  return 0;
}
