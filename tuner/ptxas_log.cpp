// SPDX-License-Identifier: Apache-2.0
// Reads the log of ptxas -v line by line: an entry function is named, then come its properties.
#include "tuner/ptxas_log.h"

#include <algorithm>
#include <regex>
#include <sstream>

namespace muse::tuner {
namespace {

int64_t number(const std::ssub_match& match) { return std::stoll(match.str()); }

}  // namespace

std::map<std::string, KernelFacts> parse_ptxas_log(std::string_view log) {
  static const std::regex kEntry(R"(Compiling entry function '([^']+)')");
  static const std::regex kProperties(R"(Function properties for (\S+))");
  static const std::regex kSpills(R"((\d{1,15}) bytes spill stores, (\d{1,15}) bytes spill loads)");
  static const std::regex kRegisters(R"(Used (\d{1,15}) registers)");
  static const std::regex kShared(R"((\d{1,15}) bytes smem)");
  std::map<std::string, KernelFacts> kernels;
  std::string entry, function;  // functions that are not inlined have properties of their own
  std::istringstream lines{std::string(log)};
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, match, kEntry)) {
      entry = function = match[1];
      kernels.emplace(entry, KernelFacts{});
    } else if (std::regex_search(line, match, kProperties)) {
      function = match[1];
    } else if (entry.empty()) {
      continue;
    } else if (std::regex_search(line, match, kSpills)) {
      KernelFacts& facts = kernels[entry];
      const int64_t before = function == entry ? 0 : std::max<int64_t>(0, facts.spill_bytes);
      facts.spill_bytes = before + number(match[1]) + number(match[2]);
    } else if (std::regex_search(line, match, kRegisters)) {
      KernelFacts& facts = kernels[entry];
      facts.registers = number(match[1]);
      facts.shared_bytes = std::regex_search(line, match, kShared) ? number(match[1]) : 0;
    }
  }
  return kernels;
}

std::string warnings(std::string_view log) {
  std::string found;
  std::istringstream lines{std::string(log)};
  for (std::string line; std::getline(lines, line);) {
    // NVRTC remarks below every warning how it could be silenced.
    if (line.find("arning") == std::string::npos || line.starts_with("Remark")) continue;
    found += (found.empty() ? "" : "\n") + line;
  }
  return found;
}

}  // namespace muse::tuner
