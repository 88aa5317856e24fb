// SPDX-License-Identifier: Apache-2.0
// Writes literals that any C++ compiler reads as the same bytes and numbers.
#include "tuner/cpp_text.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <stdexcept>

namespace muse::tuner {

std::string literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\' || c == '?') {
      out += {'\\', c};
    } else if (byte >= 0x20 && byte < 0x7F) {
      out += c;
    } else {
      out += fmt::format("\\{:03o}", byte);
    }
  }
  return out + '"';
}

std::string decimal(double value) {
  std::array<char, 400> text;
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, 3);
  if (!std::isfinite(value) || error != std::errc{}) {
    throw std::invalid_argument("dispatch row with a time that is no number");
  }
  return {text.data(), end};
}

}  // namespace muse::tuner
