// SPDX-License-Identifier: Apache-2.0
// emit --heldout: another sweep's database, held against the tables.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tuner/dispatch_rows.h"
#include "tuner/emit.h"

namespace muse::tuner {

/// The shapes of the last run in `file` that measured whole pipelines in the table's regime, looked
/// up. `tuned` is what the table was made of, in `database`. Throws CommandError: the two are one
/// file, another device class or protocol, no whole pipeline.
HeldOut held_out_of(const std::string& file, const std::string& database,
                    const DispatchTable& table, const MeasuredRun& tuned);

/// For people, on stderr.
void tell_held_out(const HeldOut& held_out);

/// For --json, without the shapes.
nlohmann::json held_out_counts(const HeldOut& held_out);

}  // namespace muse::tuner
