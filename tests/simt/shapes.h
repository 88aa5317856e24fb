// SPDX-License-Identifier: Apache-2.0
// Shapes for the emulator: small ones that together hold every kind of edge.
#pragma once

#include <vector>

#include "variants/lengths.h"

namespace muse::simt {

/// Always the same. Any few that follow one another differ in most dimensions.
std::vector<Shape> small_shapes();

/// A window of 2048 and a context just beyond: minutes for a pipeline of simple kernels, so once.
Shape long_window_shape();

/// Three kv heads, and more keys than a ring of tiles holds.
Shape odd_heads_shape();

}  // namespace muse::simt
