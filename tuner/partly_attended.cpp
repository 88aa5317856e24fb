// SPDX-License-Identifier: Apache-2.0
// Which values become NaN, who has to show it, and the verdict.
#include "tuner/partly_attended.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace muse::tuner {
namespace {

/// The key of query `i` itself, the last one that it attends.
int64_t own_key(const Inputs& in, int64_t b, int64_t i) {
  return in.cache_seqlens[static_cast<size_t>(b)] - in.shape.problem.q_len + i;
}

double rms(std::span<const double> head) {
  double sum = 0;
  for (const double x : head) sum += std::isnan(x) ? 0 : x * x;
  return std::sqrt(sum / static_cast<double>(head.size()));
}

}  // namespace

int64_t nan_dims(const Problem& problem) { return problem.head_dim / 2 - 3; }

std::vector<NanValues> partly_attended(const Inputs& in) {
  const Problem& p = in.shape.problem;
  std::vector<NanValues> values;
  if (p.q_len == 1) return values;
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t left = first_attended(in, b, 0), last = own_key(in, b, p.q_len - 1);
    const bool left_behind = first_attended(in, b, 1) > left;
    for (int64_t g = 0; g < p.num_kv_heads; ++g) {
      values.push_back({b, g, left_behind && (b + g) % 2 == 1 ? left : last});
    }
  }
  return values;
}

std::vector<double> with_nan(const Inputs& in, const std::vector<NanValues>& values,
                             bool whole_heads, std::vector<double> result) {
  const Problem& p = in.shape.problem;
  const int64_t dims = whole_heads ? p.head_dim : nan_dims(p);
  for (const NanValues& v : values) {
    for (int64_t i = 0; i < p.q_len; ++i) {
      const bool attended =
          first_attended(in, v.request, i) <= v.key && v.key <= own_key(in, v.request, i);
      if (!attended) continue;
      for (int64_t h = v.kv_head * p.group(); h < (v.kv_head + 1) * p.group(); ++h) {
        std::fill_n(result.begin() + head_offset(p, {v.request, h}, i), dims,
                    std::numeric_limits<double>::quiet_NaN());
      }
    }
  }
  return result;
}

std::optional<GateFailure> judge_with_nan(std::string_view buffer, int64_t head_dim,
                                          std::span<const double> expected,
                                          std::span<const double> got) {
  const auto dims = static_cast<size_t>(head_dim);
  for (size_t head = 0; head < expected.size(); head += dims) {
    const double size = rms(expected.subspan(head, dims));
    for (size_t e = head; e < head + dims; ++e) {
      const double limit = std::ldexp(size, -6) + std::ldexp(std::abs(expected[e]), -7);
      const bool right =
          std::isnan(expected[e]) ? std::isnan(got[e]) : std::abs(got[e] - expected[e]) <= limit;
      if (right) continue;
      return GateFailure{.buffer = std::string(buffer),
                         .index = static_cast<int64_t>(e),
                         .got = got[e],
                         .expected = expected[e],
                         .limit = std::isnan(expected[e]) ? 0 : limit,
                         .what = std::isnan(expected[e])
                                     ? "a NaN among the values of an attended key is lost"
                                     : "changed by a NaN among the values of a key that this query "
                                       "does not attend"};
    }
  }
  return std::nullopt;
}

}  // namespace muse::tuner
