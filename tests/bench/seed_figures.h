// SPDX-License-Identifier: Apache-2.0
// Published times of another serving pipeline, to be compared with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "variants/lengths.h"

namespace muse::bench {

/// What that card took for a read of 512 MiB by the same method: the measure of how fast it is.
inline constexpr double kSeedReadUs = 123.648;

struct SeedFigure {
  int64_t batch = 0, q_len = 0, window = 0, context = 0, page_size = 0;
  double total_us = 0;
};

/// The rows of a table with the columns B, L, window, ctx, page_size and total_us, in any order.
/// Throws std::runtime_error with the number of the line that is none.
std::vector<SeedFigure> parse_seed_figures(const std::string& csv);

/// Of the shape, where all requests are equally long and pages lie at random.
std::optional<double> seed_us(const std::vector<SeedFigure>& figures, const Shape& shape);

}  // namespace muse::bench
