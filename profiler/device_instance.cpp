// SPDX-License-Identifier: Apache-2.0
// Which host this is, and what its clock did while something was measured.
#include "profiler/device_instance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <xxhash.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <vector>

#include "profiler/clock_reading.h"

namespace muse::profiler {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

utsname system_names() {
  utsname names{};
  uname(&names);
  return names;
}

/// "model name : X" -> X; empty where the word does not start the line.
std::string_view cpuinfo_value(std::string_view line, std::string_view word) {
  if (line.substr(0, word.size()) != word) return {};
  const size_t colon = line.find(": ");
  return colon == std::string_view::npos ? std::string_view{} : line.substr(colon + 2);
}

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (const auto model = cpuinfo_value(line, "model name"); !model.empty()) {
      return std::string(model);
    }
  }
  return system_names().machine;  // architectures whose cpuinfo names no model
}

/// Survives a reboot and a renamed host; hashed, because a machine id must not be published.
std::string host_uuid(const std::string& model) {
  std::string machine = first_line("/etc/machine-id");
  if (machine.empty()) machine = system_names().nodename;
  const std::string text = machine + '\n' + model;
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("host-{:016x}{:016x}", hash.high64, hash.low64);
}

/// First line of `file` in the folder of each frequency policy; none in most virtual machines.
std::vector<std::string> policy_lines(const char* file) {
  std::vector<std::string> lines;
  std::error_code missing;
  for (const auto& policy : fs::directory_iterator("/sys/devices/system/cpu/cpufreq", missing)) {
    std::string line = first_line(policy.path() / file);
    if (!line.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

std::string governor() {
  const std::vector<std::string> lines = policy_lines("scaling_governor");
  if (lines.empty()) return "unknown";
  return fmt::format("{}", fmt::join(std::set<std::string>(lines.begin(), lines.end()), ","));
}

double mean_cpu_mhz() {
  double sum = 0;
  int count = 0;
  for (const std::string& khz : policy_lines("scaling_cur_freq")) {
    sum += std::strtod(khz.c_str(), nullptr) / 1000;
    ++count;
  }
  if (count == 0) {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);) {
      const std::string mhz(cpuinfo_value(line, "cpu MHz"));
      if (mhz.empty()) continue;
      sum += std::strtod(mhz.c_str(), nullptr);
      ++count;
    }
  }
  return count == 0 ? -1 : sum / count;
}

}  // namespace

DeviceInstance host_device_instance() {
  const std::string model = cpu_model();
  return {.kind = "host",
          .uuid = host_uuid(model),
          .name = model,
          .driver = system_names().release,
          .clock_policy = governor()};
}

ClockReading read_host_clock() {
  ClockReading clock{.cpu_mhz = mean_cpu_mhz()};
  double load = 0;
  if (getloadavg(&load, 1) == 1) clock.load = load;
  return clock;
}

}  // namespace muse::profiler
