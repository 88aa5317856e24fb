// SPDX-License-Identifier: Apache-2.0
// Values that are NaN in rows which one query of a request attends and another does not: what a
// masked key multiplied by zero lets through.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tuner/gates.h"
#include "tuner/inputs.h"

namespace muse::tuner {

/// The first nan_dims() values of one kv head in one key's row.
struct NanValues {
  int64_t request, kv_head, key;
};

/// Less than a head and no whole number of words, so that the neighbours of a NaN show, too.
int64_t nan_dims(const Problem& problem);

/// One for each request and kv head, in turns: the row of the last draft token, which the last
/// query alone attends; and, where a window has left it behind, the first row of the first query.
/// Empty where q_len is 1.
std::vector<NanValues> partly_attended(const Inputs& in);

/// The result of a run without the NaN, [T, Hq, D], with NaN in every element that has to have one:
/// those of the queries that attend such a row. `whole_heads`: of out, where a head's norm spreads
/// it.
std::vector<double> with_nan(const Inputs& in, const std::vector<NanValues>& values,
                             bool whole_heads, std::vector<double> result);

/// Poison: NaN exactly where it is expected, and all else as it was: to 2^-6 of the head's rms and
/// 2^-7 of the element, which leaves room for sums whose last bits depend on what zero multiplies.
std::optional<GateFailure> judge_with_nan(std::string_view buffer, int64_t head_dim,
                                          std::span<const double> expected,
                                          std::span<const double> got);

}  // namespace muse::tuner
