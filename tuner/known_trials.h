// SPDX-License-Identifier: Apache-2.0
// What a database already knows of a trial, for commands that only read.
#pragma once

#include <optional>
#include <string>

#include "tuner/records.h"

namespace muse::tuner {

/// Trial key parts that a reading command can compute: nullopt where the database has no such
/// device, problem or candidate.
std::optional<db::TrialRow> find_trial(const db::Store& store, const Hello& hello,
                                       const Chain& chain, const RaceGroup& group);

/// Which parts of its key keep the nearest finished trial of the same candidate on the same problem
/// from being this one: "toolkit nvrtc 12.9, now nvrtc 13.0". Empty where there is none.
std::string why_new(const db::Store& store, const Hello& hello, const Chain& chain,
                    const RaceGroup& group);

}  // namespace muse::tuner
