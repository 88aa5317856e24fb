// SPDX-License-Identifier: Apache-2.0
// The parts of the dispatch header that are the same in every table: its types and its lookup.
#pragma once

#include <string_view>

namespace muse::tuner {

inline constexpr std::string_view kDispatchTypes = R"header(
/// What is asked. Every size is positive; window 0 = all keys.
struct Key {
  std::int64_t batch = 1;  ///< requests
  std::int64_t q_len = 1;  ///< query tokens per request (L)
  std::int64_t num_q_heads = 16;
  std::int64_t num_kv_heads = 2;
  std::int64_t head_dim = 64;
  std::int64_t page_size = 1;  ///< cache rows per page
  std::int64_t window = 0;     ///< tokens a query sees, itself included
  bool rope = false;           ///< rope_theta is not 0
  bool scaled = false;         ///< kv_scale is not 1
  std::int64_t context = 1;    ///< tokens with the new ones: mean over the requests, rounded up
};

/// How well a choice fits what was asked.
enum class Match : std::uint8_t {
  kExact,        ///< measured under this key
  kNear,         ///< measured under a neighbouring key; not given by this format
  kOtherDevice,  ///< measured on a neighbouring device class; not given by this format
  kBase,         ///< not measured: the base
  kInvalid       ///< the key is not one (a size of zero or less): the base
};

/// Index into kPipelines.
enum class Pipeline : std::uint16_t {};

/// A measured choice with its evidence.
struct Row {
  Key key;  ///< context is clamped to window + q_len - 1 on windowed layers
  Pipeline pipeline;
  double median_us;  ///< of the choice
  double low_us;     ///< its 95 % interval
  double high_us;
  double base_median_us;  ///< of the base in the same race
  const char* status;     ///< winner, tie(n), inconclusive, degraded
  const char* shape;      ///< as measured
  std::int64_t run;
  const char* date;
};

struct PipelineInfo {
  const char* key;       ///< candidates joined by " + "
  int candidates;        ///< how many
  const int* candidate;  ///< indices into kCandidates, in stage order
};

struct VariantAbi {
  const char* name;
  int abi;
};

struct Device {
  const char* model;
  const char* isa;
  bool host;
  int cc;  ///< compute capability * 10
  int sm_count;
  std::int64_t memory_bytes;
  int driver_version;
};

struct Choice {
  Pipeline pipeline;
  Match match;
  const Row* row;  ///< null without an exact row
};
)header";

inline constexpr std::string_view kDispatchLookup = R"header(
namespace detail {

constexpr bool same_text(const char* a, const char* b) noexcept {
  while (*a != '\0' && *a == *b) {
    ++a;
    ++b;
  }
  return *a == *b;
}

/// -1, 0 or 1.
constexpr int compare(std::int64_t a, std::int64_t b) noexcept {
  return a < b ? -1 : (a > b ? 1 : 0);
}

/// The order of the table: structure first, then batch and context, the axes a near lookup walks.
constexpr int compare(const Key& a, const Key& b) noexcept {
  const std::int64_t left[] = {a.num_q_heads, a.num_kv_heads, a.head_dim,     a.page_size,
                               a.q_len,       a.window,       a.rope ? 1 : 0, a.scaled ? 1 : 0,
                               a.batch,       a.context};
  const std::int64_t right[] = {b.num_q_heads, b.num_kv_heads, b.head_dim,     b.page_size,
                                b.q_len,       b.window,       b.rope ? 1 : 0, b.scaled ? 1 : 0,
                                b.batch,       b.context};
  for (int i = 0; i < 10; ++i) {
    const int order = compare(left[i], right[i]);
    if (order != 0) return order;
  }
  return 0;
}

}  // namespace detail

/// Whether the key can be asked for at all.
constexpr bool valid(const Key& key) noexcept {
  return key.batch > 0 && key.q_len > 0 && key.num_q_heads > 0 && key.num_kv_heads > 0 &&
         key.head_dim > 0 && key.page_size > 0 && key.window >= 0 && key.context > 0;
}

/// The key as rows carry it: no query of a windowed layer sees further back than window + q_len - 1.
constexpr Key normalized(Key key) noexcept {
  if (key.window > 0 && key.context - key.q_len >= key.window)
    key.context = key.window + key.q_len - 1;
  return key;
}

constexpr const PipelineInfo& info(Pipeline pipeline) noexcept {
  return kPipelines[static_cast<std::uint16_t>(pipeline)];
}

/// The pipeline for a key: what was measured under exactly this key, else the base.
constexpr Choice lookup(const Key& asked) noexcept {
  if (!valid(asked)) return Choice{kBase, Match::kInvalid, nullptr};
  const Key key = normalized(asked);
  int first = 0;
  int end = kRowCount;
  while (first < end) {  // the first row that is not less: the chosen one of its key
    const int middle = first + (end - first) / 2;
    if (detail::compare(kRows[middle].key, key) < 0) {
      first = middle + 1;
    } else {
      end = middle;
    }
  }
  if (first < kRowCount && detail::compare(kRows[first].key, key) == 0) {
    return Choice{kRows[first].pipeline, Match::kExact, &kRows[first]};
  }
  return Choice{kBase, Match::kBase, nullptr};
}

#ifdef MUSE_DISPATCH_SOURCE_HASH
static_assert(detail::same_text(kSourceHash, MUSE_DISPATCH_SOURCE_HASH),
              "the dispatch table was tuned for other kernel sources: sweep and emit again");
#endif
)header";

}  // namespace muse::tuner
