// SPDX-License-Identifier: Apache-2.0
// The parts of doctor: what each check says, and who makes them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace muse::tuner {

enum class Verdict : uint8_t { kPass, kWarn, kFail };

struct Check {
  std::string name;
  Verdict verdict = Verdict::kPass;
  std::string seen;
  std::string remedy;  ///< empty where there is nothing to do
};

struct Examination {
  std::vector<Check> checks;
  nlohmann::json ceilings;                       ///< of a GPU; null without one
  std::vector<std::vector<std::string>> tables;  ///< the same for people; the first row is the head
};

/// What every target relies on: build, worker, database folder, clock, load.
void examine_host(Examination& out);

/// What a GPU needs of the machine: driver, compiler, NVML; then the device itself, its tracing and
/// its ceilings. `target`: "auto" or "cuda:N". auto without a GPU says so and leaves the rest of it
/// out.
void examine_gpu(const std::string& target, bool quick, Examination& out);

}  // namespace muse::tuner
