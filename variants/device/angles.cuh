// SPDX-License-Identifier: Apache-2.0
// Cosine and sine of an f32 angle as the RoPE table has them: rounded to f32 from f64. Plain
// arithmetic, the same on the host, where tests hold it against the table.
#pragma once

#include "variants/numerics.h"

namespace muse::device {

struct CosSin {
  float cosine, sine;
};

/// Taylor's series on [-pi/4, pi/4]: the first term left out is below 2^-45.
MUSE_HOST_DEVICE inline double cosine_near_zero(double x) {
  const double s = x * x;
  double sum = -1.0 / 87178291200.0;  // 14!
  sum = sum * s + 1.0 / 479001600.0;
  sum = sum * s - 1.0 / 3628800.0;
  sum = sum * s + 1.0 / 40320.0;
  sum = sum * s - 1.0 / 720.0;
  sum = sum * s + 1.0 / 24.0;
  sum = sum * s - 0.5;
  return sum * s + 1.0;
}
MUSE_HOST_DEVICE inline double sine_near_zero(double x) {
  const double s = x * x;
  double sum = 1.0 / 6227020800.0;  // 13!
  sum = sum * s - 1.0 / 39916800.0;
  sum = sum * s + 1.0 / 362880.0;
  sum = sum * s - 1.0 / 5040.0;
  sum = sum * s + 1.0 / 120.0;
  sum = sum * s - 1.0 / 6.0;
  return sum * s * x + x;
}

/// Of |angle| < 2^24. The nearest multiple of pi/2 is taken off in two steps: the first part of
/// pi/2 has 28 bits, so that its product with the 24 of the quotient is exact, and so is the
/// difference; the second adds bits beyond f64's own.
MUSE_HOST_DEVICE inline CosSin cos_sin_of(float angle) {
  constexpr double kHalfPiHigh = 0x1.921fb54p+0, kHalfPiLow = 0x1.10b4611a62633p-30;
  constexpr double kRound = 0x1.8p+52;  // a sum with it has no place for fractions
  const double x = static_cast<double>(angle);
  const double quotient = (x * 0.63661977236758134308 + kRound) - kRound;
  const double rest = (x - quotient * kHalfPiHigh) - quotient * kHalfPiLow;
  const int quarter = static_cast<int>(quotient) & 3;
  const double cosine = cosine_near_zero(rest), sine = sine_near_zero(rest);
  const double c = (quarter & 1) != 0 ? sine : cosine;
  const double s = (quarter & 1) != 0 ? cosine : sine;
  return {static_cast<float>(quarter == 1 || quarter == 2 ? -c : c),
          static_cast<float>(quarter >= 2 ? -s : s)};
}

}  // namespace muse::device
