// SPDX-License-Identifier: Apache-2.0
// The gates' comparisons and limits, element by element. A limit is tested as !(error <= limit):
// false for NaN.
#include "tuner/gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "tuner/arena.h"
#include "tuner/gate_pieces.h"
#include "variants/numerics.h"

namespace muse::tuner {
namespace {

constexpr double kMaximumUlp = 2;
constexpr double kSmallestNormal = 0x1p-126;  // of bf16 and f32

template <class T>
T load(std::span<const uint8_t> bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

/// The first failure among pieces in order.
std::optional<GateFailure> first_failure(const std::vector<std::optional<GateFailure>>& pieces) {
  const auto found = std::find_if(pieces.begin(), pieces.end(), [](const auto& f) { return !!f; });
  return found == pieces.end() ? std::nullopt : *found;
}

/// What one element-wise judgement makes of a piece: its largest figure and its first failure.
struct Piece {
  double worst = 0;
  std::optional<GateFailure> failure;
};

/// Up to the first failure, as one core would have judged.
Judgement joined(const char* metric, const std::vector<Piece>& pieces) {
  Judgement verdict;
  double& worst = verdict.metrics[metric];
  for (const Piece& piece : pieces) {
    worst = std::max(worst, piece.worst);
    verdict.failure = piece.failure;
    if (verdict.failure) break;
  }
  return verdict;
}

/// Whether some element of [begin, end) may be NaN or poison: in a loop that the compiler
/// vectorises, since nearly always none is.
bool suspicious(Element element, std::span<const uint8_t> bytes, size_t begin, size_t end) {
  bool found = false;
  const auto scan = [&](auto zero, auto magnitude, auto largest) {
    using Word = decltype(zero);
    for (size_t i = begin; i < end; ++i) {
      Word word;
      std::memcpy(&word, bytes.data() + i * sizeof(Word), sizeof(Word));
      found |= static_cast<Word>(word & magnitude) > largest;
    }
  };
  switch (element) {
    case Element::kBf16:
      scan(uint16_t{}, uint16_t{0x7FFF}, uint16_t{0x7F80});
      return found;
    case Element::kF32:
      scan(uint32_t{}, uint32_t{0x7FFFFFFF}, uint32_t{0x7F800000});
      return found;
    case Element::kE4m3:
    case Element::kByte:
      scan(uint8_t{}, uint8_t{0xFF}, uint8_t{0xFE});
      return found;
    case Element::kI32:
    case Element::kI64:
      return true;
  }
  return true;
}

/// E4M3 codes in the order of their values; both zeros are 0.
int code_rank(uint8_t code) {
  const int magnitude = code & 0x7F;
  return (code & 0x80) ? -magnitude : magnitude;
}

bool is_nan_code(uint8_t code) { return (code & 0x7F) == kE4m3Nan; }

/// Distance of neighbouring bf16 values at `value`.
double bf16_ulp(double value) {
  const double magnitude = std::max(std::abs(value), kSmallestNormal);
  return std::ldexp(1.0, std::ilogb(magnitude) - 7);
}

}  // namespace

std::string_view name(Gate gate) {
  switch (gate) {
    case Gate::kPoison:
      return "poison";
    case Gate::kPrepare:
      return "prepare";
    case Gate::kAttention:
      return "attention";
    case Gate::kGate:
      return "gate";
    case Gate::kEndToEnd:
      return "end_to_end";
  }
  return "";
}

std::string GateFailure::text(Gate gate) const {
  const std::string where = index < 0 ? std::string() : fmt::format(", index {}", index);
  return fmt::format("gate {}, buffer {}{}: got {:.9g}, expected {:.9g}, limit {:.4g} ({})",
                     name(gate), buffer, where, got, expected, limit, what);
}

double element_value(Element element, std::span<const uint8_t> bytes, int64_t index) {
  switch (element) {
    case Element::kBf16:
      return bf16_to_f32(load<uint16_t>(bytes, index));
    case Element::kE4m3:
      return e4m3_to_f32(load<uint8_t>(bytes, index));
    case Element::kF32:
      return load<float>(bytes, index);
    case Element::kI32:
      return load<int32_t>(bytes, index);
    case Element::kI64:
      return static_cast<double>(load<int64_t>(bytes, index));
    case Element::kByte:
      return load<uint8_t>(bytes, index);
  }
  return 0;
}

std::optional<GateFailure> judge_equal(std::string_view buffer, Element element,
                                       std::span<const uint8_t> expected,
                                       std::span<const uint8_t> got, std::string_view what) {
  if (expected.empty() || std::memcmp(expected.data(), got.data(), expected.size()) == 0) {
    return std::nullopt;
  }
  const auto bad = std::mismatch(expected.begin(), expected.end(), got.begin()).first;
  const int64_t index = (bad - expected.begin()) / size_bytes(element);
  return fail(buffer, index, element_value(element, got, index),
              element_value(element, expected, index), 0, std::string(what));
}

std::optional<GateFailure> judge_written(std::string_view buffer, Element element,
                                         std::span<const uint8_t> got) {
  const int64_t size = size_bytes(element);
  const auto count = got.size() / static_cast<size_t>(size);
  const auto judge = [&](int64_t i) -> std::optional<GateFailure> {
    const double value = element_value(element, got, i);
    const bool poisoned = std::all_of(got.begin() + i * size, got.begin() + (i + 1) * size,
                                      [](uint8_t byte) { return byte == kPoisonByte; });
    if (poisoned) return fail(buffer, i, value, 0, 0, "never written, or a NaN that was read");
    if (std::isnan(value) && element != Element::kE4m3) {
      return fail(buffer, i, value, 0, 0, "NaN");
    }
    return std::nullopt;
  };
  return first_failure(in_pieces(count, kPieceElements, [&](size_t begin, size_t end) {
    std::optional<GateFailure> failure;
    if (!suspicious(element, got, begin, end)) return failure;
    for (size_t i = begin; i < end && !failure; ++i) failure = judge(static_cast<int64_t>(i));
    return failure;
  }));
}

Judgement judge_codes(std::string_view buffer, std::span<const uint8_t> expected,
                      std::span<const uint8_t> got) {
  const auto count = static_cast<double>(expected.size());
  const double allowed = std::max(2.0, std::floor(2e-5 * count));
  double mismatches = 0, max_step = 0;
  std::optional<GateFailure> failure;
  int64_t last = -1;
  const bool equal = std::equal(expected.begin(), expected.end(), got.begin());
  for (size_t i = 0; i < expected.size() && !equal && !failure; ++i) {
    if (expected[i] == got[i]) continue;
    ++mismatches;
    last = static_cast<int64_t>(i);
    const int step = std::abs(code_rank(expected[i]) - code_rank(got[i]));
    max_step = std::max(max_step, static_cast<double>(step));
    const double from = e4m3_to_f32(expected[i]), to = e4m3_to_f32(got[i]);
    if (is_nan_code(expected[i]) != is_nan_code(got[i])) {
      failure = fail(buffer, last, to, from, 0, "NaN code");
    } else if (step > 1) {
      failure = fail(buffer, last, to, from, 1, fmt::format("{} code steps", step));
    } else if (mismatches > allowed) {
      failure = fail(buffer, last, to, from, allowed, "too many codes differ");
    }
  }
  return {{{"mismatches", mismatches}, {"max_step", max_step}}, failure};
}

Judgement judge_lse(std::string_view buffer, const Problem& p, const AttentionTruth& truth,
                    std::span<const double> got) {
  Judgement verdict;
  double& worst = verdict.metrics["worst_lse"];
  for (size_t row = 0; row < got.size() && !verdict.failure; ++row) {
    const double ref = truth.exact.lse[row];
    const reference::Pair& pair = truth.pairs[row / static_cast<size_t>(p.q_len)];
    const int64_t index = head_offset(p, pair, static_cast<int64_t>(row) % p.q_len) / p.head_dim;
    const double limit = 2e-2 + 1e-3 * std::abs(ref);
    if (std::isnan(ref)) {
      verdict.failure = fail_reference(buffer, index, got[row], ref);
    } else if (got[row] != ref && !(std::abs(got[row] - ref) <= limit)) {  // equal: both -inf
      verdict.failure =
          fail(buffer, index, got[row], ref, limit, "log-sum-exp over all splits, base 2");
    } else if (got[row] != ref) {
      worst = std::max(worst, std::abs(got[row] - ref));
    }
  }
  return verdict;
}

Judgement judge_combine(std::string_view buffer, int64_t head_dim, std::span<const double> expected,
                        std::span<const uint16_t> got) {
  const auto width = static_cast<size_t>(head_dim);
  const auto judge = [&](size_t begin, size_t end) {
    Piece piece;
    double rms = 0;
    for (size_t i = begin; i < end && !piece.failure; ++i) {
      if (i % width == 0) {
        double ref2 = 0;
        for (const double r : expected.subspan(i, width)) ref2 += r * r;
        rms = std::sqrt(ref2 / static_cast<double>(head_dim));
      }
      // Half an ulp of bf16 is 2^-9 of the value at most; the rest is for an exp2 of 10 bits.
      const double limit = 0x1p-8 * std::abs(expected[i]) + 0x1p-10 * rms;
      const double value = bf16_to_f32(got[i]), error = std::abs(value - expected[i]);
      const auto index = static_cast<int64_t>(i);
      if (!std::isfinite(expected[i])) {
        piece.failure = fail_reference(buffer, index, value, expected[i]);
      } else if (!(error <= limit)) {
        piece.failure = fail(buffer, index, value, expected[i], limit, "element error");
      } else if (limit > 0) {
        piece.worst = std::max(piece.worst, error / limit);
      }
    }
    return piece;
  };
  return joined("worst_element", in_pieces(expected.size(), heads_grain(width), judge));
}

Judgement judge_gate(std::string_view buffer, std::span<const double> expected,
                     std::span<const uint16_t> got) {
  const auto judge = [&](size_t begin, size_t end) {
    Piece piece;
    for (size_t i = begin; i < end && !piece.failure; ++i) {
      const double value = bf16_to_f32(got[i]), error = std::abs(value - expected[i]);
      const auto index = static_cast<int64_t>(i);
      const double ulp = bf16_ulp(expected[i]);
      if (!std::isfinite(expected[i])) {
        piece.failure = fail_reference(buffer, index, value, expected[i]);
      } else if (!(error <= kMaximumUlp * ulp) && !(error <= kSmallestNormal)) {
        piece.failure = fail(buffer, index, value, expected[i], kMaximumUlp * ulp,
                             fmt::format("{:.3g} bf16 ulp", error / ulp));
      } else if (error > kSmallestNormal) {
        piece.worst = std::max(piece.worst, error / ulp);
      }
    }
    return piece;
  };
  return joined("max_ulp", in_pieces(expected.size(), kPieceElements, judge));
}

}  // namespace muse::tuner
