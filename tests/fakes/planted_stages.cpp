// SPDX-License-Identifier: Apache-2.0
// Every stage as a plain loop; a fault is one deviating line.
#include "tests/fakes/planted_stages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "variants/numerics.h"

namespace muse::fakes {
namespace {

constexpr float kEpsilon = 1e-5F;

// ---- prepare

float rounded(float x, bool skip) { return skip ? x : round_to_bf16(x); }

void normalise(const Step& step, const uint16_t* x, float* y) {
  const int64_t d = step.problem.head_dim;
  float sum = 0;
  for (int64_t j = 0; j < d; ++j) sum += bf16_to_f32(x[j]) * bf16_to_f32(x[j]);
  const float r = 1 / std::sqrt(sum / static_cast<float>(d) + kEpsilon);
  for (int64_t j = 0; j < d; ++j) {
    y[j] = rounded(bf16_to_f32(x[j]) * r, step.fault == Fault::kNoRoundingAfterNorm);
  }
}

void rotate(const Step& step, int64_t n, float* y) {
  const Problem& p = step.problem;
  const bool derived = step.fault == Fault::kPositionsFromSeqLens;
  const int64_t pos =
      derived ? step.buffers.seq_lens[n / p.q_len] + n % p.q_len : step.buffers.positions[n];
  const float* table = step.buffers.cos_sin + pos * p.head_dim;
  const int64_t half = p.head_dim / 2;
  for (int64_t j = 0; j < half; ++j) {
    const bool halves = step.fault == Fault::kWrongInterleave;
    float& even = y[halves ? j : 2 * j];
    float& odd = y[halves ? j + half : 2 * j + 1];
    const float c = table[j], s = table[half + j], a = even, b = odd;
    even = rounded(a * c - b * s, step.fault == Fault::kNoRoundingAfterRope);
    odd = rounded(b * c + a * s, step.fault == Fault::kNoRoundingAfterRope);
  }
}

uint8_t quantise(const Step& step, float x) {
  const bool nan = step.fault == Fault::kSaturationToNan && std::abs(x) > 464;
  return nan ? kE4m3Nan : f32_to_e4m3(x);
}

void store(const Step& step, const float* x, float scale, uint8_t* to) {
  const Problem& p = step.problem;
  for (int64_t j = 0; j < p.head_dim; ++j) {
    const float quotient = step.fault == Fault::kReciprocal ? x[j] * (1 / scale) : x[j] / scale;
    to[j] = quantise(
        step, p.scaled() ? rounded(quotient, step.fault == Fault::kNoRoundingBeforeStore) : x[j]);
  }
}

int64_t page_row(const Step& step, int64_t b, int64_t j) {
  const Problem& p = step.problem;
  const int64_t page = step.buffers.page_table[b * p.max_pages() + j / p.page_size];
  return page * p.page_size + j % p.page_size;
}

void prepare_token(const Step& step, int64_t n, uint8_t* q8) {
  const Problem& p = step.problem;
  const Buffers& in = step.buffers;
  const int64_t d = p.head_dim, b = n / p.q_len;
  const uint16_t* x = in.qkv + n * p.qkv_width();
  std::vector<float> y(static_cast<size_t>(d));
  const bool derived = step.fault == Fault::kCacheLocFromPageTable;
  const int64_t row = derived ? page_row(step, b, in.seq_lens[b] + n % p.q_len) : in.cache_loc[n];
  for (int64_t h = 0; h < p.num_q_heads + p.num_kv_heads; ++h) {
    normalise(step, x + h * d, y.data());
    if (p.rope()) rotate(step, n, y.data());
    const int64_t g = h - p.num_q_heads;
    if (g >= 0) store(step, y.data(), *in.k_scale, in.k_cache + (row * p.num_kv_heads + g) * d);
    for (int64_t j = 0; j < d && g < 0; ++j) {
      q8[(n * p.num_q_heads + h) * d + j] = f32_to_e4m3(y[static_cast<size_t>(j)]);
    }
  }
  for (int64_t g = 0; g < p.num_kv_heads; ++g) {
    const uint16_t* v = x + (p.num_q_heads + p.num_kv_heads + g) * d;
    std::transform(v, v + d, y.begin(), bf16_to_f32);
    store(step, y.data(), *in.v_scale, in.v_cache + (row * p.num_kv_heads + g) * d);
  }
}

}  // namespace

void prepare(const Step& step, uint8_t* q8) {
  const Buffers& in = step.buffers;
  const int64_t tokens = step.problem.tokens();
  for (int64_t n = 0; n < tokens; ++n) prepare_token(step, n, q8);
  if (step.fault == Fault::kForeignRowClobbered) {
    int64_t row = 0;
    while (std::count(in.cache_loc, in.cache_loc + tokens, row) > 0) ++row;
    in.v_cache[row * step.problem.num_kv_heads * step.problem.head_dim] = 0;
  }
}

namespace {
// ---- attention

/// Running sums of one (token, head, split).
struct Softmax {
  std::vector<double> o;
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  void add(double score, double weight, const uint8_t* v) {
    const double top = std::max(largest, score);
    const double keep = std::exp(largest - top), p = weight * std::exp(score - top);
    for (size_t d = 0; d < o.size(); ++d) o[d] = o[d] * keep + p * e4m3_to_f32(v[d]);
    sum = sum * keep + p;
    largest = top;
  }
};

struct Query {
  int64_t token, request, head, kv_head, first, own;
};

Query query(const Step& step, int64_t n, int64_t h) {
  const Problem& p = step.problem;
  Query q{n, n / p.q_len, h, h / p.group(), 0, 0};
  if (step.fault == Fault::kWrongKvHead) q.kv_head = h % p.num_kv_heads;
  q.own = step.buffers.cache_seqlens[q.request] - p.q_len + n % p.q_len;
  int64_t window = p.window;
  if (step.fault == Fault::kWindowTooWide) ++window;
  if (step.fault == Fault::kWindowTooNarrow) --window;
  if (p.windowed()) q.first = std::max<int64_t>(0, q.own - (window - 1));
  return q;
}

void attend_split(const Step& step, const Query& q, const uint8_t* q8, int64_t split) {
  const Problem& p = step.problem;
  const Buffers& in = step.buffers;
  const int64_t d = p.head_dim, chunk = (q.own + 1 - q.first + kSplits - 1) / kSplits;
  const int64_t begin = q.first + split * chunk, end = std::min(q.own + 1, begin + chunk);
  const double c = p.softmax_scale() * *in.k_scale;
  Softmax softmax{std::vector<double>(static_cast<size_t>(d))};
  const auto add = [&](int64_t j, double weight) {
    const int64_t at = (page_row(step, q.request, j) * p.num_kv_heads + q.kv_head) * d;
    const uint8_t* x = q8 + (q.token * p.num_q_heads + q.head) * d;
    double dot = 0;
    for (int64_t k = 0; k < d && weight > 0; ++k) {
      dot += double{e4m3_to_f32(x[k])} * e4m3_to_f32(in.k_cache[at + k]);
    }
    softmax.add(weight > 0 ? c * dot : softmax.largest, weight, in.v_cache + at);
  };
  for (int64_t j = begin; j < end; ++j) add(j, 1);
  const bool left_of_window = split == 0 && q.first > 0;
  if (step.fault == Fault::kTokenTwice && end == q.own + 1 && begin < end) add(q.own, 1);
  if (step.fault == Fault::kPageMinusOneDereferenced && left_of_window) add(q.first - 1, 0);
  if (step.fault == Fault::kRowLeftOfWindowTimesZero && q.first % p.page_size > 0 && split == 0) {
    add(q.first - 1, 0);
  }
  const bool later = q.own + 1 < in.cache_seqlens[q.request];
  if (step.fault == Fault::kLaterTokenTimesZero && later && split == 0) add(q.own + 1, 0);
  const int64_t slot = (split * p.tokens() + q.token) * p.num_q_heads + q.head;
  in.partial_lse[slot] = -std::numeric_limits<float>::infinity();
  if (begin >= end) return;
  const double lse = softmax.largest + std::log(softmax.sum);
  in.partial_lse[slot] =
      static_cast<float>(step.fault == Fault::kLseBase ? lse : lse / std::log(2.0));
  const float v_scale = step.fault == Fault::kMissingVScale ? 1 : *in.v_scale;
  for (int64_t k = 0; k < d; ++k) {
    const double o = softmax.o[static_cast<size_t>(k)] / softmax.sum * v_scale;
    static_cast<float*>(in.partial_o)[slot * d + k] = static_cast<float>(o);
  }
}

/// Short requests take fewer splits, so that some partials stay unwritten and unread.
int64_t splits_of(const Step& step, int64_t b) {
  return std::min<int64_t>(kSplits, step.buffers.cache_seqlens[b]);
}

}  // namespace

void attend(const Step& step, const uint8_t* q8) {
  const Problem& p = step.problem;
  for (int64_t b = 0; b < p.batch; ++b) {
    step.buffers.n_splits[b] = static_cast<int32_t>(splits_of(step, b));
  }
  for (int64_t n = 0; n < p.tokens(); ++n) {
    for (int64_t h = 0; h < p.num_q_heads; ++h) {
      for (int64_t s = 0; s < splits_of(step, n / p.q_len); ++s) {
        attend_split(step, query(step, n, h), q8, s);
      }
    }
  }
}

namespace {
// ---- combine

double partial(const Buffers& in, int64_t index) {
  return in.partial_type == PartialType::kF32
             ? static_cast<const float*>(in.partial_o)[index]
             : bf16_to_f32(static_cast<const uint16_t*>(in.partial_o)[index]);
}

void combine_head(const Step& step, int64_t head, int64_t splits, uint16_t* o) {
  const Problem& p = step.problem;
  const Buffers& in = step.buffers;
  const int64_t heads = p.tokens() * p.num_q_heads, d = p.head_dim;
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  float largest = kEmpty;
  for (int64_t s = 0; s < splits; ++s) {
    largest = std::max(largest, in.partial_lse[s * heads + head]);
  }
  std::vector<double> sum(static_cast<size_t>(d));
  double weights = 0;
  for (int64_t s = 0; s < splits && largest > kEmpty; ++s) {
    const float lse = in.partial_lse[s * heads + head];
    if (lse == kEmpty && step.fault != Fault::kEmptySplitRead) continue;
    const double weight = std::exp2(lse - largest);
    weights += weight;
    for (int64_t k = 0; k < d; ++k) {
      sum[static_cast<size_t>(k)] += weight * partial(in, (s * heads + head) * d + k);
    }
  }
  for (int64_t k = 0; k < d; ++k) {
    const double value = weights == 0 ? 0 : sum[static_cast<size_t>(k)] / weights;
    o[head * d + k] = f32_to_bf16(static_cast<float>(value));
  }
}

/// Moves the smallest element of the first head by a quarter of the head's size: nothing to relRMS,
/// cosine or gain.
void move_smallest(const Problem& p, uint16_t* o) {
  double sum2 = 0;
  int64_t smallest = 0;
  for (int64_t k = 0; k < p.head_dim; ++k) {
    const float x = bf16_to_f32(o[k]);
    sum2 += x * x;
    if (std::abs(x) < std::abs(bf16_to_f32(o[smallest]))) smallest = k;
  }
  const double rms = std::sqrt(sum2 / static_cast<double>(p.head_dim));
  o[smallest] = f32_to_bf16(static_cast<float>(bf16_to_f32(o[smallest]) + rms / 4));
}

}  // namespace

void combine(const Step& step, uint16_t* o) {
  const Problem& p = step.problem;
  for (int64_t head = 0; head < p.tokens() * p.num_q_heads; ++head) {
    int64_t splits = step.buffers.n_splits[head / p.num_q_heads / p.q_len];
    if (step.fault == Fault::kLostSplit && splits > 1) --splits;
    if (step.fault == Fault::kLateSplitsLost) splits = std::min(splits, int64_t{16});
    combine_head(step, head, splits, o);
  }
  if (step.fault == Fault::kSmallElement) {
    move_smallest(p, o + (p.tokens() - 1) * p.num_q_heads * p.head_dim);
  }
}

namespace {
// ---- gate

void gate_head(const Step& step, int64_t n, int64_t h, const uint16_t* o) {
  const Problem& p = step.problem;
  const int64_t d = p.head_dim, at = (n * p.num_q_heads + h) * d;
  const uint16_t* g =
      step.buffers.qkv + n * p.qkv_width() + (p.num_q_heads + 2 * p.num_kv_heads + h) * d;
  float sum = 0;
  for (int64_t k = 0; k < d; ++k) sum += bf16_to_f32(o[at + k]) * bf16_to_f32(o[at + k]);
  const float r = 1 / std::sqrt(sum / static_cast<float>(d) + kEpsilon);
  for (int64_t k = 0; k < d; ++k) {
    const float sigmoid = 1 / (1 + std::exp(-bf16_to_f32(g[k])));
    step.buffers.out[at + k] = f32_to_bf16(bf16_to_f32(o[at + k]) * r * sigmoid);
  }
}

}  // namespace

void gate(const Step& step, const uint16_t* o) {
  constexpr uint16_t kNan = 0x7FC0, kInfinity = 0x7F80;
  const Problem& p = step.problem;
  uint16_t* out = step.buffers.out;
  const int64_t count = p.tokens() * p.num_q_heads * p.head_dim;
  if (step.fault == Fault::kStaleOutput) return;
  for (int64_t head = 0; head < p.tokens() * p.num_q_heads; ++head) {
    if (step.fault == Fault::kHalfWritten && head % 2 == 1) continue;
    gate_head(step, head / p.num_q_heads, head % p.num_q_heads, o);
  }
  static int runs = 0;
  if (step.fault == Fault::kNan) out[count / 2] = kNan;
  if (step.fault == Fault::kAllNan) std::fill_n(out, count, kNan);
  if (step.fault == Fault::kInfinite) out[count / 2] = kInfinity;
  if (step.fault == Fault::kLastElement) out[count - 1] = f32_to_bf16(3);
  if (step.fault == Fault::kDrifts) out[1] ^= static_cast<uint16_t>(++runs & 1);
  if (step.fault == Fault::kReadsTheBatch && p.batch > 1) out[count - 2] ^= 1;
}

}  // namespace muse::fakes
