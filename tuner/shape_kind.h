// SPDX-License-Identifier: Apache-2.0
// What makes shapes siblings: a lookup goes from one of them to the other. Pure.
#pragma once

#include <array>
#include <cstdint>

#include "variants/lengths.h"

namespace muse::tuner {

/// The structure that a lookup must meet exactly (heads, head_dim, page class, windowed or not,
/// RoPE or not, scaled or not), and q_len. Batch and context are not in it.
using ShapeKind = std::array<int64_t, 8>;
ShapeKind kind(const Shape& shape);

}  // namespace muse::tuner
