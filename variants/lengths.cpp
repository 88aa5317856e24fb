// SPDX-License-Identifier: Apache-2.0
// Contexts, page tables and the validity of a shape.
#include "variants/lengths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "variants/buffers.h"
#include "variants/random.h"

namespace muse {
namespace {

constexpr int64_t kMaxBatch = 65536;
constexpr int64_t kMaxQLen = 64;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxPageSize = 1024;
constexpr int64_t kMaxContext = int64_t{1} << 27;
constexpr int64_t kMaxPages = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxBytes = int64_t{1} << 40;
constexpr double kMaxRopeTheta = 1e12;
constexpr double kMinScale = 1e-9;
constexpr double kMaxScale = 1e9;
constexpr double kMaxSigma = 4;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool is_power_of_two(int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

// K and V rows of one page, in bytes.
int64_t page_bytes(const Problem& problem) {
  return 2 * problem.page_size * problem.num_kv_heads * problem.head_dim;
}

int64_t needed_pages(const Shape& shape) {
  int64_t pages = 0;
  for (int64_t tokens : contexts(shape.lengths, shape.problem.batch, shape.problem.q_len)) {
    pages += ceil_div(tokens, shape.problem.page_size);
  }
  return pages;
}

// Mean `context` of a log-normal distribution: mu = ln(mean) - sigma^2 / 2. Normal numbers by Box
// and Muller's transform. Request b has the same length in every batch that is larger than b.
std::vector<int64_t> lognormal_contexts(const Lengths& lengths, int64_t batch, int64_t q_len) {
  const double mu =
      std::log(static_cast<double>(lengths.context)) - lengths.sigma * lengths.sigma / 2;
  SplitMix64 random(lengths.seed);
  std::vector<int64_t> result;
  for (int64_t b = 0; b < batch; ++b) {
    const double radius = std::sqrt(-2 * std::log(random.unit()));
    const double normal = radius * std::cos(2 * std::numbers::pi * random.unit());
    const double tokens = std::round(std::exp(mu + lengths.sigma * normal));
    result.push_back(static_cast<int64_t>(
        std::clamp(tokens, static_cast<double>(q_len), static_cast<double>(kMaxContext))));
  }
  return result;
}

std::string range_error(std::string_view field, int64_t value, int64_t low, int64_t high) {
  if (low <= value && value <= high) return {};
  return fmt::format("{} is {}; allowed: {} to {}", field, value, low, high);
}

// Negated so that NaN fails.
std::string scale_error(std::string_view field, double value) {
  if (value >= kMinScale && value <= kMaxScale) return {};
  return fmt::format("{} is {}; allowed: {} to {}", field, value, kMinScale, kMaxScale);
}

std::string first_error(std::initializer_list<std::string> errors) {
  for (const std::string& error : errors) {
    if (!error.empty()) return error;
  }
  return {};
}

std::string check_structure(const Problem& p) {
  std::string error = first_error(
      {range_error("batch", p.batch, 1, kMaxBatch), range_error("q_len", p.q_len, 1, kMaxQLen),
       range_error("num_q_heads", p.num_q_heads, 1, kMaxHeads),
       range_error("num_kv_heads", p.num_kv_heads, 1, kMaxHeads),
       range_error("head_dim", p.head_dim, 8, kMaxHeadDim),
       range_error("page_size", p.page_size, 1, kMaxPageSize),
       range_error("window", p.window, 0, kMaxContext),
       scale_error("qk_scale_factor", p.qk_scale_factor), scale_error("sm_scale", p.sm_scale),
       scale_error("kv_scale", p.kv_scale)});
  if (!error.empty()) return error;
  if (p.num_q_heads % p.num_kv_heads != 0) {
    return fmt::format("num_kv_heads is {}; allowed: a divisor of num_q_heads, {}", p.num_kv_heads,
                       p.num_q_heads);
  }
  if (p.head_dim % 8 != 0) {
    return fmt::format("head_dim is {}; allowed: a multiple of 8", p.head_dim);
  }
  if (!is_power_of_two(p.page_size)) {
    return fmt::format("page_size is {}; allowed: a power of two up to {}", p.page_size,
                       kMaxPageSize);
  }
  if (p.rope_theta != 0 && !(p.rope_theta > 1 && p.rope_theta <= kMaxRopeTheta)) {
    return fmt::format("rope_theta is {}; allowed: 0 (no RoPE) or above 1 up to {}", p.rope_theta,
                       kMaxRopeTheta);
  }
  return {};
}

// A field that its profile does not use would not be in the key: it must have its default.
std::string check_unused(const Lengths& l) {
  if (l.profile != Profile::kLognormal && l.sigma != 0) {
    return fmt::format("sigma is {}; allowed with profile {}: 0", l.sigma, name(l.profile));
  }
  if (l.profile != Profile::kOutlier && l.rest != 0) {
    return fmt::format("rest is {}; allowed with profile {}: 0", l.rest, name(l.profile));
  }
  if (l.profile != Profile::kList && !l.list.empty()) {
    return fmt::format("list has {} contexts; allowed with profile {}: none", l.list.size(),
                       name(l.profile));
  }
  return {};
}

std::string check_list(const Lengths& l, const Problem& p) {
  if (static_cast<int64_t>(l.list.size()) != p.batch) {
    return fmt::format("list has {} contexts; allowed: one per request, {}", l.list.size(),
                       p.batch);
  }
  for (int64_t tokens : l.list) {
    std::string error = range_error("list", tokens, p.q_len, kMaxContext);
    if (!error.empty()) return error;
  }
  const int64_t largest = *std::max_element(l.list.begin(), l.list.end());
  if (l.context == largest) return {};
  return fmt::format("context is {}; allowed with profile list: its largest, {}", l.context,
                     largest);
}

std::string check_lengths(const Lengths& l, const Problem& p) {
  std::string error =
      first_error({range_error("context", l.context, p.q_len, kMaxContext),
                   range_error("pool_bytes", l.pool_bytes, 0, kMaxBytes), check_unused(l)});
  if (!error.empty()) return error;
  switch (l.profile) {
    case Profile::kUniform:
      return {};
    case Profile::kLognormal:
      if (l.sigma > 0 && l.sigma <= kMaxSigma) return {};
      return fmt::format("sigma is {}; allowed: above 0 up to {}", l.sigma, kMaxSigma);
    case Profile::kOutlier:
      return range_error("rest", l.rest, p.q_len, kMaxContext);
    case Profile::kList:
      return check_list(l, p);
  }
  return "profile is unknown";
}

// What the buffers take in memory. Each factor is bounded above, so nothing here overflows.
std::string check_bytes(const Problem& problem, int64_t pages) {
  int64_t bytes = 0;
  for (const BufferSpec& spec : buffer_specs(problem, pages, 0, Handoff{})) {
    bytes += spec.bytes();
  }
  if (bytes <= kMaxBytes) return {};
  return fmt::format("the buffers take {} bytes; allowed: up to {}", bytes, kMaxBytes);
}

std::string check_size(const Shape& shape) {
  const int64_t pages = pool_pages(shape);
  if (pages > kMaxPages) {
    return fmt::format("pool_bytes and context give {} pages; allowed: up to {}", pages, kMaxPages);
  }
  return check_bytes(shape.problem, pages);
}

std::string check_capacity(const Problem& problem, int64_t least) {
  std::string error = range_error("max_context", problem.max_context, least, kMaxContext);
  if (!error.empty()) return error;
  if (problem.max_context % problem.page_size != 0) {
    return fmt::format("max_context is {}; allowed: a multiple of page_size, {}",
                       problem.max_context, problem.page_size);
  }
  return {};
}

// The physical pages of a pool in the order in which logical pages take them.
class PageSource {
 public:
  PageSource(PageOrder order, int64_t pool, uint64_t seed)
      : order_(order), pool_(pool), random_(seed) {
    if (order_ == PageOrder::kRandom) {
      shuffled_.resize(static_cast<size_t>(pool_));
      std::iota(shuffled_.begin(), shuffled_.end(), 0);
    }
  }

  int32_t next() {
    const int64_t k = taken_++;
    switch (order_) {
      case PageOrder::kContiguous:
      case PageOrder::kStrideB:
        return static_cast<int32_t>(k);
      case PageOrder::kReversed:
        return static_cast<int32_t>(pool_ - 1 - k);
      case PageOrder::kRandom:  // Fisher and Yates, as far as pages are taken
        std::swap(shuffled_[k], shuffled_[k + random_.below(pool_ - k)]);
        return shuffled_[k];
    }
    return -1;
  }

 private:
  PageOrder order_;
  int64_t pool_;
  SplitMix64 random_;
  int64_t taken_ = 0;
  std::vector<int32_t> shuffled_;
};

}  // namespace

std::string_view name(PageOrder order) {
  switch (order) {
    case PageOrder::kContiguous:
      return "contiguous";
    case PageOrder::kReversed:
      return "reversed";
    case PageOrder::kRandom:
      return "random";
    case PageOrder::kStrideB:
      return "stride_b";
  }
  return "?";
}

std::string_view name(Profile profile) {
  switch (profile) {
    case Profile::kUniform:
      return "uniform";
    case Profile::kLognormal:
      return "lognormal";
    case Profile::kOutlier:
      return "outlier";
    case Profile::kList:
      return "list";
  }
  return "?";
}

std::vector<int64_t> contexts(const Lengths& lengths, int64_t batch, int64_t q_len) {
  switch (lengths.profile) {
    case Profile::kUniform:
      return std::vector<int64_t>(static_cast<size_t>(batch), lengths.context);
    case Profile::kLognormal:
      return lognormal_contexts(lengths, batch, q_len);
    case Profile::kOutlier: {
      std::vector<int64_t> result(static_cast<size_t>(batch), lengths.rest);
      result.front() = lengths.context;
      return result;
    }
    case Profile::kList:
      return lengths.list;
  }
  return {};
}

int64_t default_max_context(const Shape& shape) {
  const Problem& p = shape.problem;
  const std::vector<int64_t> all = contexts(shape.lengths, p.batch, p.q_len);
  return ceil_div(*std::max_element(all.begin(), all.end()), p.page_size) * p.page_size;
}

int64_t pool_pages(const Shape& shape) {
  return std::max(shape.lengths.pool_bytes / page_bytes(shape.problem), needed_pages(shape));
}

std::vector<int32_t> page_table(const Shape& shape) {
  const Problem& p = shape.problem;
  const int64_t width = p.max_pages();
  std::vector<int32_t> table(static_cast<size_t>(p.batch * width), -1);
  std::vector<int64_t> pages = contexts(shape.lengths, p.batch, p.q_len);
  for (int64_t& count : pages) count = ceil_div(count, p.page_size);
  PageSource source(shape.lengths.page_order, pool_pages(shape), shape.lengths.seed);
  if (shape.lengths.page_order == PageOrder::kStrideB) {
    for (int64_t page = 0; page < width; ++page) {
      for (int64_t b = 0; b < p.batch; ++b) {
        if (page < pages[b]) table[b * width + page] = source.next();
      }
    }
    return table;
  }
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t page = 0; page < pages[b]; ++page) table[b * width + page] = source.next();
  }
  return table;
}

std::string check_all_but_capacity(const Shape& shape) {
  std::string error = check_structure(shape.problem);
  if (error.empty()) error = check_lengths(shape.lengths, shape.problem);
  return error;
}

std::string check(const Shape& shape) {
  std::string error = check_all_but_capacity(shape);
  if (error.empty()) error = check_capacity(shape.problem, default_max_context(shape));
  if (error.empty()) error = check_size(shape);
  return error;
}

std::string check(const Problem& problem) {
  std::string error = check_structure(problem);
  if (error.empty()) error = check_capacity(problem, problem.q_len);
  if (error.empty()) error = check_bytes(problem, 0);
  return error;
}

}  // namespace muse
