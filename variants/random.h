// SPDX-License-Identifier: Apache-2.0
// SplitMix64: a seeded stream of 64-bit numbers that is the same on every machine and library,
// which std::distribution types do not promise.
#pragma once

#include <cstdint>

namespace muse {

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

  /// In [0, bound), bound > 0. The bias of the remainder is at most bound / 2^64.
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(next() % static_cast<uint64_t>(bound));
  }

  /// In (0, 1): 53 random bits and a half, so that its logarithm is finite.
  double unit() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }

 private:
  uint64_t state_;
};

}  // namespace muse
