// SPDX-License-Identifier: Apache-2.0
// The five gates' comparisons and limits. A limit is tested as !(error <= limit): false for NaN.
#include "tuner/gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "tuner/arena.h"
#include "variants/numerics.h"
#include "variants/reference/parallel.h"

namespace muse::tuner {
namespace {

constexpr double kMinimumCosine = 0.998;
constexpr double kEndToEndRelrms = 3e-2;
constexpr double kMaximumUlp = 2;
constexpr double kSmallestNormal = 0x1p-126;  // of bf16 and f32

template <class T>
T load(std::span<const uint8_t> bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

GateFailure fail(std::string_view buffer, int64_t index, double got, double expected, double limit,
                 std::string what) {
  return {std::string(buffer), index, got, expected, limit, std::move(what)};
}

GateFailure fail_reference(std::string_view buffer, int64_t index, double got, double expected) {
  return fail(buffer, index, got, expected, 0, "the reference itself is not finite");
}

/// Elements that one core judges at a time; with no more than those, no thread is started.
constexpr size_t kPieceElements = size_t{1} << 16;

/// part(begin, end) of pieces of 0..count on all cores, in the order of the pieces, which begin at
/// multiples of `grain` whatever the number of cores.
template <class Part>
auto in_pieces(size_t count, size_t grain, const Part& part) {
  const size_t pieces = (count + grain - 1) / grain;
  std::vector<decltype(part(size_t{}, size_t{}))> results(pieces);
  reference::parallel_for(static_cast<int64_t>(pieces), [&](int64_t i) {
    const size_t begin = static_cast<size_t>(i) * grain;
    results[static_cast<size_t>(i)] = part(begin, std::min(count, begin + grain));
  });
  return results;
}

/// The same in whole heads.
size_t heads_grain(size_t width) { return std::max<size_t>(1, kPieceElements / width) * width; }

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

/// Sums that relRMS, cosine and gain are made of.
struct Moments {
  double error2 = 0, ref2 = 0, got2 = 0, dot = 0;
  void add(double got, double ref) {
    error2 += (got - ref) * (got - ref);
    ref2 += ref * ref;
    got2 += got * got;
    dot += got * ref;
  }
  void add(const Moments& other) {
    error2 += other.error2;
    ref2 += other.ref2;
    got2 += other.got2;
    dot += other.dot;
  }
  double relrms() const { return ref2 > 0 ? std::sqrt(error2 / ref2) : std::sqrt(error2); }
  double cosine() const { return dot / std::sqrt(ref2 * got2); }
  double gain() const { return dot / ref2; }
};

Moments moments(std::span<const double> got, std::span<const double> ref) {
  Moments m;
  for (size_t i = 0; i < ref.size(); ++i) m.add(got[i], ref[i]);
  return m;
}

/// Of a whole tensor.
Moments tensor_moments(std::span<const double> got, std::span<const double> ref) {
  Moments all;
  for (const Moments& m : in_pieces(ref.size(), kPieceElements, [&](size_t begin, size_t end) {
         return moments(got.subspan(begin, end - begin), ref.subspan(begin, end - begin));
       })) {
    all.add(m);
  }
  return all;
}

double largest_error(std::span<const double> got, std::span<const double> ref) {
  double largest = 0;
  for (size_t i = 0; i < ref.size(); ++i) largest = std::max(largest, std::abs(got[i] - ref[i]));
  return largest;
}

/// The further from what is wanted, so that one number stands for all (token, head).
void keep_largest(double& worst, double value) {
  if (!(value <= worst)) worst = value;
}

/// Largest |gain - 1| over the heads. P in E4M3 shifts a head's gain by up to 6e-3 where few keys
/// carry the weight, more than the plain limit of 2e-3 allows to the emulation itself.
double worst_gain_error(std::span<const double> got, std::span<const double> ref, size_t width) {
  double worst = 0;
  for (const double piece :
       in_pieces(ref.size(), heads_grain(width), [&](size_t begin, size_t end) {
         double largest = 0;
         for (; begin < end; begin += width) {
           const Moments head = moments(got.subspan(begin, width), ref.subspan(begin, width));
           if (head.ref2 > 0) keep_largest(largest, std::abs(head.gain() - 1));
         }
         return largest;
       })) {
    keep_largest(worst, piece);
  }
  return worst;
}

/// |gain - 1| that rounding the exact result to bf16 causes. Elements of few different magnitudes,
/// as with a single attended key, round the same way: up to 2^-8 where random ones average out.
double rounding_gain_error(std::span<const double> ref) {
  Moments rounded;
  for (const double r : ref) rounded.add(round_to_bf16(static_cast<float>(r)), r);
  return std::abs(rounded.gain() - 1);
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

/// One (token, head) of the attention gate.
struct Head {
  int64_t offset;  ///< of its first element in the buffer
  std::span<const double> got, ref, fa3;
};

std::optional<GateFailure> judge_elements(std::string_view buffer, const Head& head,
                                          double& worst) {
  double ref2 = 0;
  for (const double r : head.ref) ref2 += r * r;
  const double rms = std::sqrt(ref2 / static_cast<double>(head.ref.size()));
  const double floor = 2 * largest_error(head.fa3, head.ref) + 0x1p-8 * rms;
  for (size_t d = 0; d < head.ref.size(); ++d) {
    const double ref = head.ref[d], got = head.got[d];
    const int64_t index = head.offset + static_cast<int64_t>(d);
    if (!std::isfinite(ref) || !std::isfinite(floor)) {
      return fail_reference(buffer, index, got, ref);
    }
    const double limit = floor + 0x1p-8 * std::abs(ref);
    const double error = std::abs(got - ref);
    if (!(error <= limit)) return fail(buffer, index, got, ref, limit, "element error");
    if (limit > 0) worst = std::max(worst, error / limit);
  }
  return std::nullopt;
}

/// Figures of several heads, up to the first that fails.
struct HeadFigures {
  Moments moments;
  double worst_element = 0, worst_cosine = 1, worst_gain = 0;
  std::optional<GateFailure> failure;
  void add(const HeadFigures& later) {
    moments.add(later.moments);
    worst_element = std::max(worst_element, later.worst_element);
    worst_cosine = std::min(worst_cosine, later.worst_cosine);
    keep_largest(worst_gain, later.worst_gain);
    failure = later.failure;
  }
};

void judge_head(std::string_view buffer, const Head& head, double gain_limit,
                HeadFigures& figures) {
  figures.failure = judge_elements(buffer, head, figures.worst_element);
  const Moments m = moments(head.got, head.ref);
  figures.moments.add(m);
  if (figures.failure || m.ref2 == 0) return;  // a zero head was judged exactly, by element
  figures.worst_cosine = std::min(figures.worst_cosine, m.cosine());
  keep_largest(figures.worst_gain, std::abs(m.gain() - 1));
  if (!(m.cosine() >= kMinimumCosine)) {
    figures.failure =
        fail(buffer, head.offset, m.cosine(), 1, kMinimumCosine, "cosine of this head");
  } else if (const double limit = gain_limit + rounding_gain_error(head.ref);
             !(std::abs(m.gain() - 1) <= limit)) {
    figures.failure = fail(buffer, head.offset, m.gain(), 1, limit, "gain of this head");
  }
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

int64_t head_offset(const Problem& p, const reference::Pair& pair, int64_t i) {
  return ((pair.request * p.q_len + i) * p.num_q_heads + pair.head) * p.head_dim;
}

Judgement judge_attention(std::string_view buffer, const Problem& p, Precision precision,
                          const AttentionTruth& truth, std::span<const double> got) {
  const auto width = static_cast<size_t>(p.head_dim);
  const std::span<const double> exact(truth.exact.o), fa3(truth.fa3.o);
  const double relrms_fa3 = tensor_moments(fa3, exact).relrms();
  const double gain_limit =
      2e-3 + relrms_fa3 * relrms_fa3 +
      (precision == Precision::kE4m3 ? 1.5 * worst_gain_error(fa3, exact, width) : 0);
  HeadFigures all;
  for (const HeadFigures& piece :
       in_pieces(exact.size(), heads_grain(width), [&](size_t begin, size_t end) {
         HeadFigures figures;
         for (; begin < end && !figures.failure; begin += width) {
           const auto row = static_cast<int64_t>(begin / width);
           const reference::Pair& pair = truth.pairs[static_cast<size_t>(row / p.q_len)];
           judge_head(buffer,
                      {head_offset(p, pair, row % p.q_len), got.subspan(begin, width),
                       exact.subspan(begin, width), fa3.subspan(begin, width)},
                      gain_limit, figures);
         }
         return figures;
       })) {
    all.add(piece);
    if (all.failure) break;
  }
  const double limit = precision == Precision::kE4m3 ? 1.5 * relrms_fa3 + 2.5e-3 : 4e-3;
  if (!all.failure && !(all.moments.relrms() <= limit)) {
    all.failure = fail(buffer, -1, all.moments.relrms(), 0, limit, "relRMS");
  }
  return {{{"relrms", all.moments.relrms()},
           {"relrms_fa3", relrms_fa3},
           {"worst_element", all.worst_element},
           {"worst_cosine", all.worst_cosine},
           {"worst_gain", all.worst_gain}},
          all.failure};
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

Judgement judge_end_to_end(std::string_view buffer, std::span<const double> expected,
                           std::span<const double> got) {
  const Moments m = tensor_moments(got, expected);
  const double cosine = m.ref2 == 0 && m.got2 == 0 ? 1 : m.cosine();
  Judgement verdict{{{"relrms", m.relrms()}, {"cosine", cosine}}, std::nullopt};
  if (!std::isfinite(m.ref2)) {
    verdict.failure = fail_reference(buffer, -1, m.got2, m.ref2);
  } else if (!(m.relrms() <= kEndToEndRelrms)) {
    verdict.failure = fail(buffer, -1, m.relrms(), 0, kEndToEndRelrms, "relRMS");
  } else if (!(cosine >= kMinimumCosine)) {
    verdict.failure = fail(buffer, -1, cosine, 1, kMinimumCosine, "cosine");
  }
  return verdict;
}

}  // namespace muse::tuner
