// SPDX-License-Identifier: Apache-2.0
// The comparisons behind the five gates: pure functions from expected and got to a verdict. Every
// test is written so that NaN fails it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/inputs.h"
#include "variants/reference/reference.h"
#include "variants/variant.h"

namespace muse::tuner {

enum class Gate : uint8_t { kPoison, kPrepare, kAttention, kGate, kEndToEnd };
std::string_view name(Gate gate);  ///< poison, prepare, attention, gate, end_to_end

struct GateFailure {
  std::string buffer;
  int64_t index = -1;  ///< element in the buffer, -1 = a figure of the whole tensor
  double got = 0, expected = 0, limit = 0;
  std::string
      what;  ///< e.g. "never written, or a NaN that was read", "relRMS", "guard band broken"
  /// "gate attention, buffer o, index 1234: got 0.5, expected 0.25, limit 0.01 (element error)"
  std::string text(Gate gate) const;
};

struct GateResult {
  Gate gate = Gate::kPoison;
  Fill fill = Fill::kNormal;
  bool passed = false;
  std::map<std::string, double> metrics;  ///< relrms, worst_cosine, mismatches, max_ulp, ...
  std::optional<GateFailure> failure;
};

struct Judgement {
  std::map<std::string, double> metrics;
  std::optional<GateFailure> failure;
};

/// Element `index` of raw bytes as a number.
double element_value(Element element, std::span<const uint8_t> bytes, int64_t index);

/// Poison: the first element whose bits differ.
std::optional<GateFailure> judge_equal(std::string_view buffer, Element element,
                                       std::span<const uint8_t> expected,
                                       std::span<const uint8_t> got, std::string_view what);

/// Poison: no element still holds the poison, none is NaN. E4M3: only the poison itself; other NaN
/// codes are a matter of the prepare gate.
std::optional<GateFailure> judge_written(std::string_view buffer, Element element,
                                         std::span<const uint8_t> got);

/// Prepare: at most max(2, 2e-5 * count) codes differ, each by one step; a NaN code only where one
/// is expected. Metrics: mismatches, max_step.
Judgement judge_codes(std::string_view buffer, std::span<const uint8_t> expected,
                      std::span<const uint8_t> got);

/// Float64 attention of some pairs and the emulation at FA3's precision of the same.
struct AttentionTruth {
  std::vector<reference::Pair> pairs;
  reference::Attention exact, fa3;
};

/// Attention: `got` is o of the pairs, [pairs, L, D]. Metrics: relrms, relrms_fa3, worst_element
/// (error over limit), worst_cosine, worst_gain. Limits: element 2 * largest error of the emulation
/// in that (token, head) + 2^-8 * rms + 2^-8 * |ref|; cosine 0.998 and gain 2e-3 +
/// relRMS(emulation)^2 of each (token, head), the gain's widened by what rounding the exact result
/// to bf16 does to it; relRMS 4e-3. For P in E4M3 relRMS is 1.5 * the emulation's + 2.5e-3, and 1.5
/// * the emulation's worst gain error is added to the gain's limit.
Judgement judge_attention(std::string_view buffer, const Problem& problem, Precision precision,
                          const AttentionTruth& truth, std::span<const double> got);

/// Attention: the log-sum-exp over all splits, base 2, of the pairs, [pairs, L]. Metric: worst_lse.
Judgement judge_lse(std::string_view buffer, const Problem& problem, const AttentionTruth& truth,
                    std::span<const double> got);

/// Combine fed with given partials: O, bf16 [T, Hq, D], is their exact combination but for
/// roundings of f32 and bf16. Metric: worst_element (error over limit).
Judgement judge_combine(std::string_view buffer, int64_t head_dim, std::span<const double> expected,
                        std::span<const uint16_t> got);

/// Gate: at most two bf16 ulp of the expected value; what lies below the normal numbers may be
/// flushed. Metric: max_ulp.
Judgement judge_gate(std::string_view buffer, std::span<const double> expected,
                     std::span<const uint16_t> got);

/// End to end over the given elements: relRMS <= 3e-2, cosine >= 0.998. Metrics: relrms, cosine.
Judgement judge_end_to_end(std::string_view buffer, std::span<const double> expected,
                           std::span<const double> got);

/// Index in a [T, Hq, D] buffer of the first element of query i of a pair.
int64_t head_offset(const Problem& problem, const reference::Pair& pair, int64_t i);

}  // namespace muse::tuner
