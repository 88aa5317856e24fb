// SPDX-License-Identifier: Apache-2.0
// The comparisons alone: each limit from both sides, and NaN, which no limit lets pass.
#include "tuner/gates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tuner/cases.h"
#include "variants/numerics.h"

namespace muse::tuner {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T>
std::span<const uint8_t> raw(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

/// Eight heads of one token; the emulation is off by one percent in turns.
AttentionTruth make_truth(const Problem& p, double scale = 1) {
  AttentionTruth truth;
  for (int64_t h = 0; h < p.num_q_heads; ++h) {
    truth.pairs.push_back({0, h});
    truth.exact.lse.push_back(3);
    for (int64_t d = 0; d < p.head_dim; ++d) {
      const double x = scale * std::sin(0.7 * static_cast<double>(d + 17 * h + 1));
      truth.exact.o.push_back(x);
      truth.fa3.o.push_back(x + 0.01 * scale * (d % 2 ? 1 : -1));
    }
  }
  truth.fa3.lse = truth.exact.lse;
  return truth;
}

const Problem kProblem{.batch = 1, .q_len = 1, .num_q_heads = 8, .num_kv_heads = 1};

Judgement attention(const AttentionTruth& truth, const std::vector<double>& got,
                    Precision precision = Precision::kE4m3) {
  return judge_attention("o", kProblem, precision, truth, got);
}

TEST(GateFailure, NamesGateBufferIndexGotExpectedAndLimit) {
  const GateFailure failure{"o", 1234, 0.5, 0.25, 0.01, "element error"};
  EXPECT_EQ(
      failure.text(Gate::kAttention),
      "gate attention, buffer o, index 1234: got 0.5, expected 0.25, limit 0.01 (element error)");
  EXPECT_EQ((GateFailure{"out", -1, 0.5, 0, 0.03, "relRMS"}).text(Gate::kEndToEnd),
            "gate end_to_end, buffer out: got 0.5, expected 0, limit 0.03 (relRMS)");
}

TEST(JudgeEqual, NamesTheFirstElementThatDiffers) {
  const std::vector<int32_t> expected{1, 2, 3, 4}, got{1, 2, 7, 5};
  const auto failure = judge_equal("seq_lens", Element::kI32, raw(expected), raw(got), "modified");
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->index, 2);
  EXPECT_EQ(failure->got, 7);
  EXPECT_EQ(failure->expected, 3);
  EXPECT_FALSE(judge_equal("seq_lens", Element::kI32, raw(expected), raw(expected), ""));
  EXPECT_FALSE(judge_equal("nothing", Element::kI32, {}, {}, ""));
}

TEST(JudgeWritten, TellsPoisonFromNanAndBothFromNumbers) {
  std::vector<uint16_t> values(1000, f32_to_bf16(0));
  EXPECT_FALSE(judge_written("out", Element::kBf16, raw(values)));
  values[999] = 0x7FC0;
  EXPECT_EQ(judge_written("out", Element::kBf16, raw(values))->what, "NaN");
  EXPECT_EQ(judge_written("out", Element::kBf16, raw(values))->index, 999);
  values[7] = 0xFFFF;
  EXPECT_EQ(judge_written("out", Element::kBf16, raw(values))->what,
            "never written, or a NaN that was read");
  EXPECT_EQ(judge_written("out", Element::kBf16, raw(values))->index, 7);
}

TEST(JudgeWritten, ZerosAtOddRowsAreExpectedValuesAndStillHaveToBeWritten) {
  std::vector<uint16_t> out(256, 0xFFFF);  // poisoned; even rows of 64 written, odd ones to be zero
  for (size_t i = 0; i < out.size(); ++i) {
    if (i / 64 % 2 == 0) out[i] = f32_to_bf16(1);
  }
  EXPECT_EQ(judge_written("out", Element::kBf16, raw(out))->index, 64);
}

TEST(JudgeCodes, AllowsTwoCodesOfOneStepAndNoMore) {
  const std::vector<uint8_t> expected(1000, 0x38);
  std::vector<uint8_t> got = expected;
  got[1] = 0x39;
  got[2] = 0x37;
  EXPECT_FALSE(judge_codes("q8", expected, got).failure);
  EXPECT_EQ(judge_codes("q8", expected, got).metrics.at("mismatches"), 2);
  got[3] = 0x39;
  EXPECT_EQ(judge_codes("q8", expected, got).failure->index, 3);
  got = expected;
  got[5] = 0x3A;
  EXPECT_EQ(judge_codes("q8", expected, got).failure->what, "2 code steps");
}

TEST(JudgeCodes, AllowsTwoInAHundredThousand) {
  const std::vector<uint8_t> expected(500'000, 0x38);
  std::vector<uint8_t> got = expected;
  for (size_t i = 0; i < 10; ++i) got[i * 100] = 0x39;
  EXPECT_FALSE(judge_codes("q8", expected, got).failure);
  got[499'999] = 0x39;
  EXPECT_EQ(judge_codes("q8", expected, got).failure->index, 499'999);
}

TEST(JudgeCodes, NanIsNoNeighbourOfTheLargestAndZerosOfEitherSignAre) {
  EXPECT_EQ(
      judge_codes("v_cache", std::vector<uint8_t>{0x7E}, std::vector<uint8_t>{0x7F}).failure->what,
      "NaN code");
  const Judgement zeros =
      judge_codes("v_cache", std::vector<uint8_t>{0x00}, std::vector<uint8_t>{0x80});
  EXPECT_FALSE(zeros.failure);
  EXPECT_EQ(zeros.metrics.at("mismatches"), 1);
  EXPECT_FALSE(judge_codes("v_cache", std::vector<uint8_t>{0x01}, std::vector<uint8_t>{0x81})
                   .failure->what.empty());
}

TEST(JudgeAttention, AcceptsTheExactAndTheEmulatedResult) {
  const AttentionTruth truth = make_truth(kProblem);
  EXPECT_FALSE(attention(truth, truth.exact.o, Precision::kF32).failure);
  EXPECT_FALSE(attention(truth, truth.fa3.o, Precision::kE4m3).failure);
}

TEST(JudgeAttention, WiderPrecisionsMeetATighterRelrms) {
  const AttentionTruth truth = make_truth(kProblem);
  for (const Precision precision : {Precision::kF32, Precision::kF16, Precision::kBf16}) {
    const Judgement verdict = attention(truth, truth.fa3.o, precision);
    ASSERT_TRUE(verdict.failure);
    EXPECT_EQ(verdict.failure->what, "relRMS");
    EXPECT_EQ(verdict.failure->limit, 4e-3);
  }
}

TEST(JudgeAttention, OneNanOrInfinityFailsAtItsIndex) {
  const AttentionTruth truth = make_truth(kProblem);
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    std::vector<double> got = truth.exact.o;
    got[3 * 64 + 9] = bad;
    const Judgement verdict = attention(truth, got);
    ASSERT_TRUE(verdict.failure);
    EXPECT_EQ(verdict.failure->index, 3 * 64 + 9);
  }
  EXPECT_EQ(attention(truth, std::vector<double>(truth.exact.o.size(), kNan)).failure->index, 0);
}

TEST(JudgeAttention, ASmallElementFailsBesideALargeOne) {
  AttentionTruth truth = make_truth(kProblem);
  for (int d = 0; d < 64; ++d) {  // head 0 holds a million, head 5 stays small
    truth.exact.o[static_cast<size_t>(d)] *= 1e6;
    truth.fa3.o[static_cast<size_t>(d)] = truth.exact.o[static_cast<size_t>(d)];
  }
  std::vector<double> got = truth.exact.o;
  const size_t small = 5 * 64 + 3;
  got[small] += 4 * (2 * 0.01 + 0x1p-7);
  const Judgement verdict = attention(truth, got);
  ASSERT_TRUE(verdict.failure);
  EXPECT_EQ(verdict.failure->index, static_cast<int64_t>(small));
}

TEST(JudgeAttention, AGainOfOneHeadFailsThoughEveryElementIsWithinItsLimit) {
  const AttentionTruth truth = make_truth(kProblem);
  for (const Precision precision : {Precision::kF32, Precision::kE4m3}) {
    std::vector<double> got = truth.exact.o;
    for (size_t d = 0; d < 64; ++d) got[64 + d] *= 1.015;
    const Judgement verdict = attention(truth, got, precision);
    ASSERT_TRUE(verdict.failure);
    EXPECT_EQ(verdict.failure->what, "gain of this head");
    EXPECT_EQ(verdict.failure->index, 64);
  }
}

TEST(JudgeAttention, RoundingToBf16IsNoGainErrorEvenWhereItAllGoesOneWay) {
  AttentionTruth truth = make_truth(kProblem);
  for (size_t i = 0; i < truth.exact.o.size(); ++i) {
    truth.exact.o[i] = truth.fa3.o[i] = (i % 2 ? 1 : -1) * (1 + 0x1p-8 - 0x1p-12);
  }
  std::vector<double> got;
  for (const double o : truth.exact.o) got.push_back(round_to_bf16(static_cast<float>(o)));
  EXPECT_FALSE(attention(truth, got, Precision::kF32).failure);
}

TEST(JudgeAttention, ANanInTheReferenceIsAnErrorOfItsOwn) {
  AttentionTruth truth = make_truth(kProblem);
  std::vector<double> got = truth.exact.o;
  truth.exact.o[10] = got[10] = kNan;
  EXPECT_EQ(attention(truth, got).failure->what, "the reference itself is not finite");
}

TEST(JudgeLse, SeesTheWrongBaseAndAcceptsBothEmpty) {
  AttentionTruth truth = make_truth(kProblem);
  std::vector<double> got = truth.exact.lse;
  truth.exact.lse[2] = got[2] = -kInfinity;
  EXPECT_FALSE(judge_lse("partial_lse", kProblem, truth, got).failure);
  got[1] *= std::log(2.0);
  EXPECT_EQ(judge_lse("partial_lse", kProblem, truth, got).failure->index, 1);
  got[0] = kNan;
  EXPECT_EQ(judge_lse("partial_lse", kProblem, truth, got).failure->index, 0);
}

TEST(JudgeGate, AllowsTwoUlpOfBf16) {
  const std::vector<double> expected{1.0, -0.75, 0.0, 300.0};
  const auto got = [&](float third, float last) {
    return std::vector<uint16_t>{f32_to_bf16(1.0F), f32_to_bf16(-0.75F), f32_to_bf16(third),
                                 f32_to_bf16(last)};
  };
  EXPECT_FALSE(judge_gate("out", expected, got(0, 304)).failure);
  EXPECT_EQ(judge_gate("out", expected, got(0, 306)).failure->index, 3);
  EXPECT_EQ(judge_gate("out", expected, got(1e-30F, 300)).failure->index, 2);
  EXPECT_EQ(judge_gate("out", expected, got(NAN, 300)).failure->index, 2);
  EXPECT_FALSE(judge_gate("out", expected, got(1e-39F, 300)).failure) << "below the normal numbers";
  EXPECT_TRUE(judge_gate("out", {{kNan}}, std::vector<uint16_t>{0x7FC0}).failure);
}

TEST(JudgeCombine, AllowsRoundingToBf16Only) {
  std::vector<double> expected(64, 0.3);
  std::vector<uint16_t> got(64, f32_to_bf16(0.3F));
  EXPECT_FALSE(judge_combine("o", 64, expected, got).failure);
  got[63] = f32_to_bf16(0.303F);
  EXPECT_EQ(judge_combine("o", 64, expected, got).failure->index, 63);
  got[2] = 0x7FC0;
  EXPECT_EQ(judge_combine("o", 64, expected, got).failure->index, 2);
}

TEST(JudgeEndToEnd, LimitsRelrmsAndCosineAndRefusesNan) {
  std::vector<double> expected(1000), got(1000);
  for (size_t i = 0; i < 1000; ++i) expected[i] = std::sin(static_cast<double>(i));
  const auto scaled = [&](double factor) {
    for (size_t i = 0; i < 1000; ++i) got[i] = factor * expected[i];
    return judge_end_to_end("out", expected, got);
  };
  EXPECT_FALSE(scaled(1.029).failure);
  EXPECT_EQ(scaled(1.031).failure->what, "relRMS");
  got[500] = kNan;
  EXPECT_TRUE(judge_end_to_end("out", expected, got).failure);
  EXPECT_TRUE(judge_end_to_end("out", got, expected).failure);
}

/// The yardstick itself, judged as a variant that keeps P in E4M3, on every fill.
TEST(JudgeAttention, TheEmulationAtFa3PrecisionPassesAsACandidate) {
  Shape shape;
  shape.problem = {.batch = 4, .q_len = 2, .rope_theta = 500000};
  shape.lengths.context = 700;
  shape.problem.max_context = 700;
  shape = validation_shape(shape);
  for (const Fill fill : {Fill::kNormal, Fill::kFlat, Fill::kMeanOne}) {
    const auto data = make_case(shape, 1, fill, CaseKind::kStored);
    const auto caches = make_caches(shape, 1, fill);
    Buffers in = data->inputs.view();
    in.k_cache = caches->k.get();
    in.v_cache = caches->v.get();
    const AttentionTruth truth = sampled_truth(*data, in, data->prepared.q8.data(), 4'000'000);
    const Judgement verdict =
        judge_attention("o", shape.problem, Precision::kE4m3, truth, truth.fa3.o);
    EXPECT_FALSE(verdict.failure) << name(fill) << ": " << verdict.failure->text(Gate::kAttention)
                                  << ", worst gain " << verdict.metrics.at("worst_gain");
  }
}

}  // namespace
}  // namespace muse::tuner
