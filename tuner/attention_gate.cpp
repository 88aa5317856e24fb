// SPDX-License-Identifier: Apache-2.0
// Figures of whole heads and tensors: relRMS, cosine and gain. A limit is tested as !(error <=
// limit): false for NaN.
#include <cmath>

#include "tuner/gate_pieces.h"
#include "tuner/gates.h"
#include "variants/numerics.h"

namespace muse::tuner {
namespace {

constexpr double kMinimumCosine = 0.998;
constexpr double kEndToEndRelrms = 3e-2;

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
