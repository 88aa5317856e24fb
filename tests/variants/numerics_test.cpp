// SPDX-License-Identifier: Apache-2.0
// bf16 and E4M3 conversions, cosines and sines against slow models that share no code with them.
#include "variants/numerics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "variants/device/angles.cuh"
#include "variants/device/prepare_contract.h"
#include "variants/random.h"

namespace muse {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The definition: bias 7, subnormals below 2^-6, no infinity.
double e4m3_value(int code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

// The nearest finite code of the same sign by search, ties to the even code.
int nearest_e4m3(double value) {
  const int sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return 0x7F | sign;
  const double magnitude = std::min(std::fabs(value), 1e6);  // so that infinities have a distance
  int best = 0;
  for (int code = 1; code < 0x7F; ++code) {
    const double gain =
        std::fabs(magnitude - e4m3_value(best)) - std::fabs(magnitude - e4m3_value(code));
    if (gain > 0 || (gain == 0 && code % 2 == 0)) best = code;
  }
  return best | sign;
}

TEST(E4m3, DecodesAll256Codes) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_f32(static_cast<uint8_t>(code));
    const double expected = e4m3_value(code);
    EXPECT_EQ(std::isnan(value), std::isnan(expected)) << code;
    EXPECT_EQ(std::signbit(value), (code & 0x80) != 0) << code;
    if (std::isnan(expected)) continue;
    EXPECT_EQ(value, expected) << code;
  }
}

TEST(E4m3, EncodesAllBf16Inputs) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_f32(static_cast<uint16_t>(bits));
    ASSERT_EQ(f32_to_e4m3(value), nearest_e4m3(value)) << std::hex << bits << " = " << value;
  }
}

TEST(E4m3, RoundsF32AroundEveryMidpoint) {
  for (int code = 0; code < 0x7E; ++code) {
    const float middle = static_cast<float>((e4m3_value(code) + e4m3_value(code + 1)) / 2);
    for (float sign : {1.0F, -1.0F}) {
      const int sign_bit = sign < 0 ? 0x80 : 0;
      const int even = code % 2 == 0 ? code : code + 1;
      EXPECT_EQ(f32_to_e4m3(sign * middle), even | sign_bit) << code;
      EXPECT_EQ(f32_to_e4m3(sign * std::nextafter(middle, 0.0F)), code | sign_bit) << code;
      EXPECT_EQ(f32_to_e4m3(sign * std::nextafter(middle, kInfinity)), (code + 1) | sign_bit);
    }
  }
}

TEST(E4m3, Saturates) {
  for (float value : {448.0F, 448.1F, 464.0F, 465.0F, 1e30F, kInfinity}) {
    EXPECT_EQ(f32_to_e4m3(value), 0x7E) << value;
    EXPECT_EQ(f32_to_e4m3(-value), 0xFE) << value;
  }
}

TEST(E4m3, FlushesHalfTheSmallestToZeroAndKeepsTheSign) {
  EXPECT_EQ(f32_to_e4m3(0x1p-10F), 0x00);
  EXPECT_EQ(f32_to_e4m3(-0x1p-10F), 0x80);
  EXPECT_EQ(f32_to_e4m3(std::nextafter(0x1p-10F, 1.0F)), 0x01);
  EXPECT_EQ(f32_to_e4m3(3 * 0x1p-10F), 0x02);  // the tie between 1 and 2 units
  EXPECT_EQ(f32_to_e4m3(-0.0F), 0x80);
  EXPECT_EQ(f32_to_e4m3(std::numeric_limits<float>::denorm_min()), 0x00);
}

TEST(E4m3, KeepsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(f32_to_e4m3(nan) & 0x7F, 0x7F);
  EXPECT_EQ(f32_to_e4m3(f32_from_bits(0xFF800001U)), 0xFF);
  EXPECT_TRUE(std::isnan(round_to_e4m3(nan)));
}

TEST(Bf16, RoundTripsAll65536Inputs) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_f32(static_cast<uint16_t>(bits));
    const int back = f32_to_bf16(value);
    if (std::isnan(value)) {
      ASSERT_EQ(back, bits | 0x40) << bits;  // quiet, the same sign and payload
    } else {
      ASSERT_EQ(back, bits) << bits;
    }
  }
}

TEST(Bf16, RoundsToNearestEven) {
  SplitMix64 random(7);
  for (int i = 0; i < 1000000; ++i) {
    // Every fourth a tie.
    uint32_t bits = static_cast<uint32_t>(random.next());
    if (i % 4 == 0) bits = (bits & 0xFFFF0000U) | 0x8000U;
    const float value = f32_from_bits(bits);
    if (!std::isfinite(value)) continue;
    const uint16_t below = static_cast<uint16_t>(bits >> 16);  // in magnitude
    const uint16_t above = static_cast<uint16_t>(below + 1);
    const double low = bf16_to_f32(below);
    // One step beyond the largest finite number the step stays that of its binade.
    const double high = std::isfinite(bf16_to_f32(above))
                            ? bf16_to_f32(above)
                            : low + std::copysign(std::ldexp(1, 127 - 7), low);
    const double to_low = std::fabs(value - low);
    const double to_high = std::fabs(high - value);
    const bool up = to_low > to_high || (to_low == to_high && below % 2 == 1);
    ASSERT_EQ(f32_to_bf16(value), up ? above : below) << std::hex << bits;
  }
}

TEST(Bf16, NanNeverBecomesInfinity) {
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(f32_from_bits(0x7F800001U)))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(f32_from_bits(0xFFFFFFFFU)))));
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
}

// Positions whose cosines or sines differ from the f64 functions' of the f32 angle, as the RoPE
// table has them.
int64_t table_mismatches(double theta, int64_t first, int64_t last) {
  int64_t mismatches = 0;
  for (int64_t pair = 0; pair < 32; ++pair) {
    const float inv_freq = device::inverse_frequency(theta, 64, pair);
    for (int64_t position = first; position <= last; ++position) {
      const float angle = static_cast<float>(position) * inv_freq;
      const device::CosSin found = device::cos_sin_of(angle);
      const double wide = angle;
      if (f32_bits(found.cosine) != f32_bits(static_cast<float>(std::cos(wide))) ||
          f32_bits(found.sine) != f32_bits(static_cast<float>(std::sin(wide)))) {
        ++mismatches;
      }
    }
  }
  return mismatches;
}

TEST(Angles, GiveTheBitsOfTheRopeTable) {
  constexpr int64_t kCapacity = int64_t{1} << 21;
  EXPECT_EQ(table_mismatches(500000, 0, 40000), 0);
  EXPECT_EQ(table_mismatches(10000, 131072 - 5000, 131072 + 5000), 0);
  EXPECT_EQ(table_mismatches(500000, kCapacity - 20000, kCapacity + 20000), 0);
  EXPECT_EQ(table_mismatches(500000, 8 * kCapacity - 5000, 8 * kCapacity - 1), 0);
}

TEST(Angles, KeepSignAndZero) {
  EXPECT_EQ(f32_bits(device::cos_sin_of(0).sine), 0U);
  EXPECT_EQ(device::cos_sin_of(0).cosine, 1);
  EXPECT_EQ(device::cos_sin_of(-2).sine, -device::cos_sin_of(2).sine);
  EXPECT_EQ(device::cos_sin_of(-2).cosine, device::cos_sin_of(2).cosine);
}

}  // namespace
}  // namespace muse
