// SPDX-License-Identifier: Apache-2.0
// All 256 e4m3 values, for loops where a look-up is cheaper than taking the code apart.
#pragma once

#include <array>

#include "variants/numerics.h"

namespace muse::host {

/// f32 [256] by code.
inline const float* e4m3_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (unsigned int code = 0; code < 256; ++code) {
      values[code] = e4m3_to_f32(static_cast<unsigned char>(code));
    }
    return values;
  }();
  return table.data();
}

}  // namespace muse::host
