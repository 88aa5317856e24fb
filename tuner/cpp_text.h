// SPDX-License-Identifier: Apache-2.0
// Values as C++ source text.
#pragma once

#include <string>
#include <string_view>

namespace muse::tuner {

/// A C++ string literal of the bytes: printable ASCII as it is, the rest as octal escapes (three
/// digits, so that a digit behind one does not join it). `?` is escaped against trigraphs.
std::string literal(std::string_view text);

/// With three decimals and a point under any locale. Throws std::invalid_argument where it is no
/// finite number.
std::string decimal(double value);

}  // namespace muse::tuner
