// SPDX-License-Identifier: Apache-2.0
// What a check found, for people and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tuner/check_run.h"

namespace muse::tuner {

/// Prints a line for each row that was looked at and for each answer for an unseen shape.
void print_check(const DispatchTable& table, const CheckResult& result);

/// The fields of "muse.check".
nlohmann::json check_json(const DispatchTable& table, const CheckResult& result);

/// On stderr: what failed, how many of which verdict, and why it ended. `budget` as given.
void say_end(const CheckResult& result, const std::string& budget);

}  // namespace muse::tuner
