// SPDX-License-Identifier: Apache-2.0
// What muse_selfcheck compares with: data of a shape by its key, and verdicts that tell wrong
// results from right ones.
#include "variants/reference/step.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "variants/numerics.h"

namespace muse::reference {
namespace {

constexpr const char* kShape = "b3_l2_h16x2_d64_ps4_w32_rope10000_kv2_t80_uniform_random_s1";
constexpr int64_t kEnough = int64_t{1} << 28;

class JudgeStep : public ::testing::Test {
 protected:
  JudgeStep() {
    std::string reason;
    auto made = make_step(kShape, kEnough, 1, reason);
    if (!made) throw std::runtime_error(reason);
    step_ = *std::move(made);
    before_ = step_;
    expected_ = expected_step(step_);
    out_.resize(static_cast<size_t>(step_.problem.tokens() * 16 * 64));
    for (size_t row = 0; row < expected_.offsets.size(); ++row) {
      std::transform(expected_.out.begin() + static_cast<int64_t>(row) * 64,
                     expected_.out.begin() + static_cast<int64_t>(row + 1) * 64,
                     out_.begin() + expected_.offsets[row],
                     [](double x) { return f32_to_bf16(static_cast<float>(x)); });
    }
    k_ = expected_.k_rows;
    v_ = expected_.v_rows;
  }
  std::string failure() const {
    return judge_step(step_, expected_, out_.data(), k_.data(), v_.data()).failure;
  }
  Step step_, before_;
  ExpectedStep expected_;
  std::vector<uint16_t> out_;
  std::vector<uint8_t> k_, v_;
};

TEST_F(JudgeStep, TakesTheReferenceItselfRoundedOnce) {
  EXPECT_EQ(failure(), "");
  EXPECT_EQ(expected_.offsets.size(), 3u * 2 * 16) << "so little is computed whole";
}

TEST_F(JudgeStep, OneNanOrOneElementNeverWrittenIsAFailureThatNamesIt) {
  out_[777] = 0xFFFF;
  EXPECT_EQ(failure(), "out: element 777 is no finite number, or never written");
}

TEST_F(JudgeStep, AnOutputOffByFivePercentFails) {
  for (uint16_t& x : out_) x = f32_to_bf16(1.05F * bf16_to_f32(x));
  EXPECT_NE(failure().find("relRMS"), std::string::npos) << failure();
}

TEST_F(JudgeStep, OneHeadInThePlaceOfAnotherFails) {
  std::swap_ranges(out_.begin(), out_.begin() + 64, out_.begin() + 64);
  EXPECT_NE(failure(), "");
}

TEST_F(JudgeStep, TwoCodesOneStepOffPassAndAThirdOrAWiderStepDoesNot) {
  const auto nudge = [&](size_t i, int by) { k_[i] = static_cast<uint8_t>(k_[i] ^ by); };
  std::vector<size_t> even;  // codes whose neighbour in value is the one with the last bit set
  for (size_t i = 0; even.size() < 3; ++i) {
    if ((k_[i] & 1) == 0 && (k_[i] & 0x7E) != 0x7E) even.push_back(i);
  }
  nudge(even[0], 1);
  nudge(even[1], 1);
  EXPECT_EQ(failure(), "");
  nudge(even[2], 1);
  EXPECT_NE(failure().find("k_cache: 3 codes"), std::string::npos) << failure();
  k_ = expected_.k_rows;
  nudge(even[0], 4);
  EXPECT_NE(failure().find("k_cache: element"), std::string::npos) << failure();
  k_ = expected_.k_rows;
  std::fill(v_.begin(), v_.end(), uint8_t{0xFF});
  EXPECT_NE(failure().find("v_cache: element 0 "), std::string::npos) << failure();
}

TEST_F(JudgeStep, TheStepsOwnRowsHoldNanBeforeAndTheReferencesAfter) {
  for (size_t token = 0; token < step_.cache_loc.size(); ++token) {
    const int64_t at = step_.cache_loc[token] * 2 * 64;
    for (int64_t i = 0; i < 2 * 64; ++i) {
      ASSERT_EQ(before_.k_cache[static_cast<size_t>(at + i)], 0xFF);
      ASSERT_EQ(step_.k_cache[static_cast<size_t>(at + i)],
                expected_.k_rows[token * 2 * 64 + static_cast<size_t>(i)]);
    }
  }
}

TEST(MakeStep, RefusesWhatIsNoShapeOrTooLargeWithTheReason) {
  std::string reason;
  EXPECT_FALSE(make_step("b0", kEnough, 1, reason));
  EXPECT_NE(reason, "");
  EXPECT_FALSE(make_step("b128_l1_h16x2_d64_ps1_w0_rope0_kv1_t1000000_uniform_random_s1", kEnough,
                         1, reason));
  EXPECT_NE(reason.find("MiB, more than allowed"), std::string::npos) << reason;
}

TEST(MakeStep, IsTheSameForTheSameSeedAndAnotherForAnother) {
  std::string reason;
  const auto one = make_step(kShape, kEnough, 1, reason),
             again = make_step(kShape, kEnough, 1, reason),
             other = make_step(kShape, kEnough, 2, reason);
  ASSERT_TRUE(one && again && other) << reason;
  EXPECT_EQ(one->qkv, again->qkv);
  EXPECT_EQ(one->v_cache, again->v_cache);
  EXPECT_NE(one->qkv, other->qkv);
}

}  // namespace
}  // namespace muse::reference
