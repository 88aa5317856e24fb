// SPDX-License-Identifier: Apache-2.0
// Reference of attention in float64, its emulation at FA3's precision, and which (request, head)
// pairs of a large problem are compared.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "variants/numerics.h"
#include "variants/random.h"
#include "variants/reference/parallel.h"
#include "variants/reference/reference.h"

namespace muse::reference {
namespace {

// Keys per tile of the emulation: sums run inside a tile first, then over tiles, as the kernels'
// do.
constexpr int64_t kTile = 128;
// FA3 scales P by 2^8, so that 448 is used and not 1; the row sum carries the same factor.
constexpr float kPShift = 8;
constexpr int64_t kShortTokens = 64;
constexpr double kMasked = -std::numeric_limits<double>::infinity();

template <class Real>
std::array<Real, 256> decode_table() {
  std::array<Real, 256> table;
  for (int code = 0; code < 256; ++code) table[code] = e4m3_to_f32(static_cast<uint8_t>(code));
  return table;
}

// Attended keys of query i of request b: [low, high), empty where the query is fully masked.
struct Keys {
  int64_t low;
  int64_t high;
  int64_t count() const { return std::max<int64_t>(0, high - low); }
};

Keys attended(const Problem& p, int64_t context, int64_t query) {
  const int64_t own = context - p.q_len + query;
  return {p.windowed() ? std::max<int64_t>(0, own - (p.window - 1)) : 0, own + 1};
}

// Decodes the rows of one (request, kv head) of a cache, which only the attended keys reach.
template <class Real>
class Rows {
 public:
  Rows(const Problem& p, const Buffers& in, const uint8_t* cache, int64_t request, int64_t kv_head)
      : cache_(cache + kv_head * p.head_dim),
        pages_(in.page_table + request * p.max_pages()),
        page_size_(p.page_size),
        stride_(p.num_kv_heads * p.head_dim),
        row_(static_cast<size_t>(p.head_dim)) {}

  const Real* decode(int64_t key) {
    static const std::array<Real, 256> kTable = decode_table<Real>();
    const int64_t row = int64_t{pages_[key / page_size_]} * page_size_ + key % page_size_;
    const uint8_t* codes = cache_ + row * stride_;
    Real* to = row_.data();
    const Real* table = kTable.data();
    for (size_t d = 0; d < row_.size(); ++d) to[d] = table[codes[d]];
    return to;
  }

 private:
  const uint8_t* cache_;
  const int32_t* pages_;
  int64_t page_size_;
  int64_t stride_;
  std::vector<Real> row_;
};

// Eight sums side by side, for the vector unit. head_dim is a multiple of 8. In double the result
// is exact in any order: products are multiples of 2^-18 and their sum stays below 2^28.
template <class Real>
Real dot(const Real* a, const Real* b, int64_t dim) {
  std::array<Real, 8> sums{};
  for (int64_t d = 0; d < dim; d += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) sums[lane] += a[d + lane] * b[d + lane];
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

template <class Real>
void add_scaled(Real weight, const Real* row, int64_t dim, Real* sum) {
  for (int64_t d = 0; d < dim; ++d) sum[d] += weight * row[d];
}

// The queries of one pair, the keys they attend, and their scores times c.
template <class Real>
struct Scored {
  std::vector<Keys> keys;                 // [L]
  std::vector<std::vector<Real>> scores;  // [L][keys]
  Keys all{0, 0};                         // the union, without a hole: each query's keys follow on
};

template <class Real>
Scored<Real> score(const Problem& p, const Buffers& in, const uint8_t* q8, const Pair& pair,
                   Real c) {
  static const std::array<Real, 256> kTable = decode_table<Real>();
  const int64_t dim = p.head_dim;
  std::vector<Real> q(static_cast<size_t>(p.q_len * dim));
  Scored<Real> result;
  for (int64_t i = 0; i < p.q_len; ++i) {
    const int64_t token = pair.request * p.q_len + i;
    const uint8_t* codes = q8 + (token * p.num_q_heads + pair.head) * dim;
    for (int64_t d = 0; d < dim; ++d) q[i * dim + d] = kTable[codes[d]];
    const Keys keys = attended(p, in.cache_seqlens[pair.request], i);
    result.keys.push_back(keys);
    result.scores.emplace_back().reserve(static_cast<size_t>(keys.count()));
    if (keys.count() == 0) continue;
    if (result.all.count() == 0) result.all.low = keys.low;
    result.all.high = keys.high;
  }
  Rows<Real> rows(p, in, in.k_cache, pair.request, pair.head / p.group());
  for (int64_t key = result.all.low; key < result.all.high; ++key) {
    const Real* row = rows.decode(key);
    for (int64_t i = 0; i < p.q_len; ++i) {
      if (key < result.keys[i].low || key >= result.keys[i].high) continue;
      result.scores[i].push_back(c * dot(q.data() + i * dim, row, dim));
    }
  }
  return result;
}

// o [L, D] and lse [L] of one pair.
void attend(const Problem& p, const Buffers& in, const uint8_t* q8, const Pair& pair, double* o,
            double* lse) {
  const int64_t dim = p.head_dim;
  const double c = static_cast<double>(p.softmax_scale()) * *in.k_scale;
  Scored<double> scored = score(p, in, q8, pair, c);
  std::vector<double> sums(static_cast<size_t>(p.q_len), 0.0);
  for (int64_t i = 0; i < p.q_len; ++i) {
    std::vector<double>& scores = scored.scores[i];
    lse[i] = kMasked;
    if (scores.empty()) continue;
    const double largest = *std::max_element(scores.begin(), scores.end());
    for (double& s : scores) sums[i] += s = std::exp(s - largest);
    lse[i] = largest * std::numbers::log2e + std::log2(sums[i]);
  }
  Rows<double> rows(p, in, in.v_cache, pair.request, pair.head / p.group());
  std::fill(o, o + p.q_len * dim, 0.0);
  for (int64_t key = scored.all.low; key < scored.all.high; ++key) {
    const double* row = rows.decode(key);
    for (int64_t i = 0; i < p.q_len; ++i) {
      const Keys keys = scored.keys[i];
      if (key < keys.low || key >= keys.high) continue;
      add_scaled(scored.scores[i][key - keys.low], row, dim, o + i * dim);
    }
  }
  for (int64_t i = 0; i < p.q_len; ++i) {
    if (scored.scores[i].empty()) continue;
    // Divided last: equal scores give the exact mean.
    for (int64_t d = 0; d < dim; ++d) o[i * dim + d] = o[i * dim + d] / sums[i] * *in.v_scale;
  }
}

// One query of the emulation: its unrounded P's become the row sum, their E4M3 codes the weights.
void attend_fa3_query(const Keys& keys, const std::vector<float>& scores, int64_t dim,
                      Rows<float>& rows, float v_scale, double* o, double* lse) {
  const float largest = *std::max_element(scores.begin(), scores.end());
  float sum = 0;
  std::vector<float> total(static_cast<size_t>(dim), 0.0F);
  for (int64_t first = keys.low; first < keys.high; first += kTile) {
    float tile_sum = 0;
    std::vector<float> tile(static_cast<size_t>(dim), 0.0F);
    for (int64_t key = first; key < std::min(first + kTile, keys.high); ++key) {
      const float exponent = (scores[key - keys.low] - largest) * std::numbers::log2e_v<float>;
      const float weight = std::exp2(exponent + kPShift);
      tile_sum += weight;
      add_scaled(round_to_e4m3(weight), rows.decode(key), dim, tile.data());
    }
    sum += tile_sum;
    add_scaled(1.0F, tile.data(), dim, total.data());
  }
  for (int64_t d = 0; d < dim; ++d) o[d] = round_to_bf16(total[d] / sum * v_scale);
  *lse = largest * std::numbers::log2e + std::log2(sum) - kPShift;
}

void attend_fa3(const Problem& p, const Buffers& in, const uint8_t* q8, const Pair& pair, double* o,
                double* lse) {
  const Scored<float> scored = score(p, in, q8, pair, p.softmax_scale() * *in.k_scale);
  Rows<float> rows(p, in, in.v_cache, pair.request, pair.head / p.group());
  for (int64_t i = 0; i < p.q_len; ++i) {
    double* to = o + i * p.head_dim;
    if (scored.scores[i].empty()) {
      std::fill(to, to + p.head_dim, 0.0);
      lse[i] = kMasked;
    } else {
      attend_fa3_query(scored.keys[i], scored.scores[i], p.head_dim, rows, *in.v_scale, to,
                       lse + i);
    }
  }
}

template <class Attend>
Attention for_pairs(const Problem& p, const Buffers& in, const uint8_t* q8,
                    const std::vector<Pair>& pairs, const Attend& attend) {
  const int64_t count = static_cast<int64_t>(pairs.size());
  const int64_t length = p.q_len * p.head_dim;
  Attention result;
  result.o.resize(static_cast<size_t>(count * length));
  result.lse.resize(static_cast<size_t>(count * p.q_len));
  parallel_for(count, [&](int64_t i) {
    attend(p, in, q8, pairs[i], result.o.data() + i * length, result.lse.data() + i * p.q_len);
  });
  return result;
}

}  // namespace

std::vector<Pair> sample_pairs(const Problem& problem, const Buffers& in, int64_t budget,
                               uint64_t seed) {
  std::vector<int64_t> work(static_cast<size_t>(problem.batch), 0);  // of one pair of a request
  int64_t total = 0;
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t i = 0; i < problem.q_len; ++i) {
      work[b] += attended(problem, in.cache_seqlens[b], i).count();
    }
    total += work[b] * problem.num_q_heads;
  }
  std::vector<Pair> sample, others;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const bool taken = total <= budget || in.cache_seqlens[b] <= kShortTokens;
    for (int64_t h = 0; h < problem.num_q_heads; ++h) (taken ? sample : others).push_back({b, h});
  }
  SplitMix64 random(seed);
  for (size_t k = 0; k + 1 < others.size(); ++k) {
    std::swap(others[k], others[k + random.below(static_cast<int64_t>(others.size() - k))]);
  }
  // A pair of the longest request comes first; the rest stays shuffled.
  const auto longest = std::max_element(others.begin(), others.end(), [&](Pair a, Pair b) {
    return in.cache_seqlens[a.request] < in.cache_seqlens[b.request];
  });
  if (longest != others.end()) std::swap(*others.begin(), *longest);
  for (int64_t spent = 0; const Pair& pair : others) {
    if (spent > 0 && spent + work[pair.request] > budget) break;
    spent += work[pair.request];
    sample.push_back(pair);
  }
  std::sort(sample.begin(), sample.end());
  return sample;
}

Attention attention(const Problem& problem, const Buffers& in, const uint8_t* q8,
                    const std::vector<Pair>& pairs) {
  return for_pairs(problem, in, q8, pairs, attend);
}

Attention attention_fa3(const Problem& problem, const Buffers& in, const uint8_t* q8,
                        const std::vector<Pair>& pairs) {
  return for_pairs(problem, in, q8, pairs, attend_fa3);
}

}  // namespace muse::reference
