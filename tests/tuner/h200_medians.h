// SPDX-License-Identifier: Apache-2.0
// What an exhaustive sweep on an H200 measured (tests/data/h200_medians.csv), and the device's
// facts.
#pragma once

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tuner/floor_model.h"
#include "variants/registry.h"

namespace muse::tuner::h200 {

inline const DeviceClass kH200{.model = "NVIDIA H200",
                               .host = false,
                               .cc = 90,
                               .sm_count = 132,
                               .memory_bytes = 150109880320,
                               .l2_bytes = 62914560,
                               .smem_per_block_bytes = 232448,
                               .driver_version = 13000,
                               .isa = "sm_90a"};
/// 4.8 TB/s by its data sheet; an empty kernel by CUPTI.
inline const DeviceLimits kH200Limits{
    .dram_bytes_per_s = 4.8e12, .sm_clock_hz = 1.98e9, .launch_floor_ns = 580};
struct Measured {
  Shape shape;
  std::string span, handoff;
  std::vector<Candidate> candidates;
  std::vector<double> medians_ns;
  double best_ns() const { return *std::min_element(medians_ns.begin(), medians_ns.end()); }
};

inline std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> parts;
  std::stringstream stream(line);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

/// The candidate as today's space has it: a tunable that its variant has gained since stands at its
/// default, one of a value that was given up is none.
inline std::optional<Candidate> candidate_of(const std::string& text) {
  const size_t colon = text.find(':');
  const Variant* variant = Registry::global().find(text.substr(0, colon));
  if (variant == nullptr) throw std::runtime_error("no variant of this name: " + text);
  Configuration configuration = default_configuration(*variant);
  std::stringstream tunables(colon == std::string::npos ? "" : text.substr(colon + 1));
  for (std::string one; std::getline(tunables, one, ';');) {
    const size_t equals = one.find('=');
    configuration[one.substr(0, equals)] = std::stoll(one.substr(equals + 1));
  }
  if (!check(*variant, configuration).empty()) return std::nullopt;
  return Candidate{variant, configuration};
}

/// One per shape, span and hand-off.
inline const std::vector<Measured>& measured() {
  static const std::vector<Measured> all = [] {
    std::ifstream file(MUSE_SOURCE_DIR "/tests/data/h200_medians.csv");
    std::map<std::string, Measured> groups;
    std::vector<std::string> shapes;
    for (std::string line; std::getline(file, line);) {
      if (line.empty() || line[0] == '#') continue;
      const std::vector<std::string> row = cells(line);
      if (shapes.empty()) {
        shapes = row;
        continue;
      }
      const std::optional<Candidate> candidate = candidate_of(row[2]);
      if (!candidate) continue;
      for (size_t i = 3; i < row.size(); ++i) {
        if (row[i].empty()) continue;
        Measured& group = groups[shapes[i] + row[0] + row[1]];
        group.shape = *parse_shape(shapes[i]);
        group.span = row[0];
        group.handoff = row[1];
        group.candidates.push_back(*candidate);
        group.medians_ns.push_back(std::stod(row[i]));
      }
    }
    std::vector<Measured> result;
    for (auto& [name, group] : groups) result.push_back(std::move(group));
    return result;
  }();
  return all;
}

}  // namespace muse::tuner::h200
