// SPDX-License-Identifier: Apache-2.0
// What sweep does with the folders of --incumbent before work begins.
#pragma once

#include <string>
#include <vector>

#include "tuner/challengers.h"
#include "tuner/plan.h"
#include "tuner/protocol.h"

namespace muse::tuner {

/// The folders' tables. Throws CommandError: see read_emitted(); kNotComparable where a table names
/// a pipeline that this binary does not have.
std::vector<DispatchTable> read_incumbents(const std::vector<std::string>& folders);

/// The tables with what they are worth on the device at hand. Throws CommandError(kNotComparable)
/// for one of a foreign device class.
std::vector<Incumbent> incumbents(const std::vector<std::string>& folders,
                                  std::vector<DispatchTable> tables, const Hello& hello);

/// Says on stderr which of their answers do not race, and for want of which candidates. `filtered`:
/// not only the config excludes some.
void say_left_out(const std::vector<std::string>& folders, const std::vector<Incumbent>& incumbents,
                  const Plan& plan, const Spec& spec, bool filtered);

}  // namespace muse::tuner
