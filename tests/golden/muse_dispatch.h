// SPDX-License-Identifier: Apache-2.0
// Generated: which pipeline of kernels serves which shape, with the evidence. Do not edit.
// C++17, no allocation, no dependency. Define MUSE_DISPATCH_SOURCE_HASH to your build's hash of
// the kernel sources to refuse a stale table at compile time.
#ifndef MUSE_DISPATCH_H_
#define MUSE_DISPATCH_H_

#include <cstdint>

namespace muse {
namespace dispatch {

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

// Where the table comes from.
inline constexpr int kFormat = 1;
inline constexpr const char* kGenerator = "muse-tune 0.0.0";
inline constexpr const char* kRegime = "cold";
inline constexpr const char* kTimer = "host";
inline constexpr const char* kDriver = "6.1.0";
inline constexpr const char* kToolkit = "none";
inline constexpr const char* kSourceHash = "0123456789abcdef0123456789abcdef";
inline constexpr Device kDevice = {"Fictional CPU \"8\" \\ two", "avx2", true, 0, 8, 68719476736, 0};

inline constexpr int kCandidateCount = 9;
inline constexpr const char* kCandidates[] = {
    "attention/scalar",
    "attention/vector:splits=4,tile_kv=64",
    "combine/scalar",
    "combine/vector",
    "fused/vector:tile_kv=128",
    "gate/scalar",
    "gate/vector",
    "prepare/scalar",
    "prepare/vector",
};

namespace detail {
inline constexpr int kPipeline0[] = {7, 0, 2, 5};
inline constexpr int kPipeline1[] = {4};
inline constexpr int kPipeline2[] = {8, 1, 3, 6};
}  // namespace detail

// The base is number 0.
inline constexpr int kPipelineCount = 3;
inline constexpr PipelineInfo kPipelines[] = {
    {"prepare/scalar + attention/scalar + combine/scalar + gate/scalar", 4, detail::kPipeline0},
    {"fused/vector:tile_kv=128", 1, detail::kPipeline1},
    {"prepare/vector + attention/vector:splits=4,tile_kv=64 + combine/vector + gate/vector", 4, detail::kPipeline2},
};
inline constexpr Pipeline kBase{0};

// Ordered by key. Where shapes share a key the chosen one stands first (larger context as
// measured, then uniform lengths, then shape name); the others are evidence.
inline constexpr int kRowCount = 7;
inline constexpr Row kRows[] = {
    {{1, 1, 16, 2, 64, 1, 0, false, false, 4096}, Pipeline{2}, 12.345, 12.300, 12.400, 24.690, "tie(2)", "b1_l1_h16x2_d64_ps1_w0_rope0_kv1_t4096_uniform_random_s1", 3, "2030-01-02T03:04:05Z"},
    {{4, 1, 16, 2, 64, 1, 0, false, false, 2001}, Pipeline{1}, 12.345, 12.300, 12.400, 24.690, "tie(2)", "b4_l1_h16x2_d64_ps1_w0_rope0_kv1_t8000_outlier1_random_s1", 3, "2030-01-02T03:04:05Z"},
    {{8, 1, 16, 2, 64, 1, 0, false, false, 4096}, Pipeline{1}, 12.345, 12.300, 12.400, 24.690, "tie(2)", "b8_l1_h16x2_d64_ps1_w0_rope0_kv1_t4096_uniform_random_s1", 3, "2030-01-02T03:04:05Z"},
    {{1, 1, 16, 2, 64, 1, 2048, true, false, 2048}, Pipeline{1}, 2.222, 2.177, 2.277, 4.444, "tie(2)", "b1_l1_h16x2_d64_ps1_w2048_rope500000_kv1_t32768_uniform_random_s1", 3, "2030-01-02T03:04:05Z"},
    {{1, 1, 16, 2, 64, 1, 2048, true, false, 2048}, Pipeline{2}, 1.111, 1.066, 1.166, 2.222, "tie(2)", "b1_l1_h16x2_d64_ps1_w2048_rope500000_kv1_t4096_uniform_random_s1", 3, "2030-01-02T03:04:05Z"},
    {{1, 8, 16, 2, 64, 1, 2048, true, false, 1024}, Pipeline{0}, 12.345, 12.300, 12.400, 24.690, "tie(2)", "b1_l8_h16x2_d64_ps1_w2048_rope500000_kv1_t1024_uniform_random_s1", 3, "2030-01-02T03:04:05Z"},
    {{1, 8, 16, 2, 64, 1, 2048, true, false, 2055}, Pipeline{1}, 12.345, 12.300, 12.400, 24.690, "tie(2)", "b1_l8_h16x2_d64_ps1_w2048_rope500000_kv1_t4096_uniform_random_s1", 3, "2030-01-02T03:04:05Z"},
};

// Argument layouts the table relies on.
inline constexpr int kVariantCount = 3;
inline constexpr VariantAbi kVariants[] = {
    {"attention/vector", 1},
    {"fused/vector", 2},
    {"prepare/scalar", 1},
};

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

}  // namespace dispatch
}  // namespace muse

#endif  // MUSE_DISPATCH_H_
