// SPDX-License-Identifier: Apache-2.0
// The data side of a shape: how long each request is and how its pages lie in the pool; and the
// canonical key of a shape (problem with lengths), both ways.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "variants/problem.h"

namespace muse {

/// How physical pages follow logical ones. Stride-B is what a server's decode leaves behind: page p
/// of request b is p * B + b; requests too short to have a page p are passed over, without a hole.
enum class PageOrder { kContiguous, kReversed, kRandom, kStrideB };

/// How the requests' contexts (cache_seqlens = seq_lens + L) are made.
enum class Profile {
  kUniform,    ///< every request `context`
  kLognormal,  ///< mean `context`, `sigma` of the underlying normal, seeded; at least q_len
  kOutlier,    ///< request 0 has `context`, all others `rest`
  kList,       ///< `list`, one per request
};

inline constexpr int64_t kDefaultPoolBytes = int64_t{1} << 30;

struct Lengths {
  Profile profile = Profile::kUniform;
  int64_t context = 0;             ///< tokens; kList: the largest of `list`
  double sigma = 0;                ///< kLognormal only
  int64_t rest = 0;                ///< kOutlier only
  std::vector<int64_t> list = {};  ///< kList only, one context per request
  PageOrder page_order = PageOrder::kRandom;
  uint64_t seed = 1;
  /// Least size of the K and V pools together; grows where the lengths need more.
  int64_t pool_bytes = kDefaultPoolBytes;

  bool operator==(const Lengths&) const = default;
};

/// What one trial measures: a problem and its lengths.
struct Shape {
  Problem problem;
  Lengths lengths;

  bool operator==(const Shape&) const = default;
};

std::string_view name(PageOrder order);  ///< contiguous, reversed, random, stride_b
std::string_view name(Profile profile);  ///< uniform, lognormal, outlier, list

/// cache_seqlens, [B] tokens, each at least q_len. Depends on lengths, batch and q_len alone.
std::vector<int64_t> contexts(const Lengths& lengths, int64_t batch, int64_t q_len);

/// The capacity a shape has unless it says otherwise: its largest context, rounded up to whole
/// pages.
int64_t default_max_context(const Shape& shape);

/// Pages in each of the two pools: as many as pool_bytes asks for or the lengths need.
int64_t pool_pages(const Shape& shape);

/// page_table, int32 [B, max_pages] row major: the physical page of each logical page that holds
/// one of the request's tokens (new ones included), -1 elsewhere. No page is used twice.
std::vector<int32_t> page_table(const Shape& shape);

/// The reason why the shape is not one (a zero, heads that do not divide, a context above the
/// capacity or below q_len, ...), naming the field; empty if it is valid.
std::string check(const Shape& shape);

/// The same without max_context, for a shape whose capacity is still to be derived.
std::string check_all_but_capacity(const Shape& shape);

/// The reason why no shape has this problem (a size out of range, heads that do not divide, a
/// capacity below q_len, buffers that no memory holds), naming the field; empty if one can.
std::string check(const Problem& problem);

/// Canonical key of a valid shape, e.g.
/// b8_l1_h16x2_d64_ps1_w2048_rope500000_kv1_t4096_uniform_random_s1; then _qk _sm _pool _cap where
/// they differ from the default. Profiles: uniform, lognormal<sigma>, outlier<rest>,
/// list<c0.c1...>.
std::string key(const Shape& shape);

/// Inverse of key(); the error names the part that is wrong. parse_shape(key(s)) == s for valid s.
tl::expected<Shape, std::string> parse_shape(std::string_view text);

}  // namespace muse
