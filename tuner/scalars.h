// SPDX-License-Identifier: Apache-2.0
// Strict reading of the scalars of a config: a text means one thing or is refused with the reason.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace muse::tuner {

struct IntegerRange {
  int64_t low, high;  ///< both allowed
};

struct NumberRange {
  double low, high;
  bool above_low = false;  ///< low itself is not allowed
};

/// Decimal digits with an optional sign '-' and exponent: 128, -1, 1e3. Refused: 0010, 0x80, 1_000,
/// +5, 1.5, nan.
tl::expected<int64_t, std::string> parse_integer(std::string_view text, IntegerRange range);

/// As parse_integer, 0 to 2^64 - 1.
tl::expected<uint64_t, std::string> parse_seed(std::string_view text);

/// As parse_integer, with a fraction and any exponent: 0.5, 1e-3. Always finite.
tl::expected<double, std::string> parse_number(std::string_view text, NumberRange range);

/// Bytes: an integer, alone or with KiB, MiB, GiB or TiB directly behind it.
tl::expected<int64_t, std::string> parse_size(std::string_view text, IntegerRange range);

/// on, off, true, false.
tl::expected<bool, std::string> parse_switch(std::string_view text);

}  // namespace muse::tuner
