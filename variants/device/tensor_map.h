// SPDX-License-Identifier: Apache-2.0
// A tensor map as an argument block holds it.
#pragma once

namespace muse::device {

/// How a tensor lies in memory and which box of it one copy takes; encoded by the driver
/// (TensorMapEncoder), or by who stands in for it.
struct alignas(64) TensorMap {
  unsigned char encoded[128];
};

/// Tokens of a page that a copy by boxes takes at a time.
inline constexpr int kBoxKeys = 16;

}  // namespace muse::device
