// SPDX-License-Identifier: Apache-2.0
// Validation's data sets, and a bounded store of recent ones: a sweep validates many candidates on
// the same few shapes.
#include "tuner/cases.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <list>
#include <mutex>
#include <string>

#include "tuner/arena.h"
#include "variants/numerics.h"
#include "variants/reference/parallel.h"

namespace muse::tuner {
namespace {

constexpr int64_t kPositionShift = 5;
constexpr int64_t kStoreBytes = int64_t{256} << 20;

/// Recently made values by key; the least recently used go first when the bytes exceed the limit.
template <class T>
class Recent {
 public:
  std::shared_ptr<const T> get(const std::string& key, const std::function<T()>& make,
                               const std::function<int64_t(const T&)>& bytes_of) {
    const std::lock_guard lock(mutex_);
    const auto known = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return entry.key == key; });
    if (known != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, known);
      return known->value;
    }
    auto value = std::make_shared<const T>(make());
    const int64_t bytes = bytes_of(*value);
    entries_.push_front({key, value, bytes});
    bytes_ += bytes;
    while (bytes_ > kStoreBytes) {
      bytes_ -= entries_.back().bytes;
      entries_.pop_back();
    }
    return value;
  }

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const T> value;
    int64_t bytes;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;
  int64_t bytes_ = 0;
};

int64_t row_bytes(const Problem& p) { return p.num_kv_heads * p.head_dim; }

int64_t spare_pages(const Problem& p) { return (p.tokens() + p.page_size - 1) / p.page_size + 1; }

std::vector<int32_t> unused_pages(const Inputs& in) {
  std::vector<bool> used(static_cast<size_t>(in.cache_pages));
  for (const int32_t page : in.page_table) {
    if (page >= 0) used[static_cast<size_t>(page)] = true;
  }
  std::vector<int32_t> unused;
  for (size_t page = 0; page < used.size(); ++page) {
    if (!used[page]) unused.push_back(static_cast<int32_t>(page));
  }
  return unused;
}

/// A few elements of the gate columns get the ends of bf16's range, where a sigmoid overflows
/// first.
void plant_extreme_gates(Inputs& in) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr std::array<float, 9> kExtremes{0, -0.0F, 88.5F, -88.5F, 100, -100, 1e38F, kInf, -kInf};
  const Problem& p = in.shape.problem;
  const int64_t gate_column = (p.num_q_heads + 2 * p.num_kv_heads) * p.head_dim;
  for (int64_t n = 0; n < p.tokens(); ++n) {
    for (int64_t h = 0; h < p.num_q_heads; ++h) {
      const int64_t pick = n * p.num_q_heads + h;
      const int64_t column = gate_column + h * p.head_dim + pick % p.head_dim;
      in.qkv[static_cast<size_t>(n * p.qkv_width() + column)] =
          f32_to_bf16(kExtremes[static_cast<size_t>(pick) % kExtremes.size()]);
    }
  }
}

/// Every 97th new value a thousand times larger, and one infinite: beyond 448 in either sign.
void plant_saturating_values(Inputs& in) {
  const Problem& p = in.shape.problem;
  const int64_t value_column = (p.num_q_heads + p.num_kv_heads) * p.head_dim;
  for (int64_t k = 0; k < p.tokens() * row_bytes(p); k += 97) {
    const int64_t n = k / row_bytes(p), column = value_column + k % row_bytes(p);
    uint16_t& x = in.qkv[static_cast<size_t>(n * p.qkv_width() + column)];
    x = f32_to_bf16(bf16_to_f32(x) * (k == 0 ? std::numeric_limits<float>::infinity() : 1000.0F));
  }
}

/// The step's rows lie in the spare pages, last token first; the last spare page stays poison.
void move_cache_loc(Inputs& in, const std::vector<int32_t>& spare) {
  const int64_t page_size = in.shape.problem.page_size;
  const auto tokens = static_cast<int64_t>(in.cache_loc.size());
  for (int64_t n = 0; n < tokens; ++n) {
    const int64_t slot = tokens - 1 - n;
    in.cache_loc[static_cast<size_t>(n)] =
        spare[static_cast<size_t>(slot / page_size)] * page_size + slot % page_size;
  }
}

/// 1 for the rows of the pool that some query attends to.
std::vector<uint8_t> attended_rows(const Inputs& in) {
  const Problem& p = in.shape.problem;
  std::vector<uint8_t> attended(static_cast<size_t>(in.cache_pages * p.page_size));
  reference::parallel_for(p.batch, [&](int64_t b) {  // requests share no row
    for (int64_t j = first_attended(in, b, 0); j < in.cache_seqlens[static_cast<size_t>(b)]; ++j) {
      attended[static_cast<size_t>(in.row(b, j))] = 1;
    }
  });
  return attended;
}

void drop_unattended_pages(Inputs& in) {
  const Problem& p = in.shape.problem;
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t pages = first_attended(in, b, 0) / p.page_size;
    std::fill_n(in.page_table.begin() + b * p.max_pages(), pages, -1);
  }
}

Case build_case(const Shape& shape, uint64_t seed, Fill fill, bool independent) {
  Case data;
  Inputs& in = data.inputs;
  in = make_inputs_without_caches(shape, seed, fill, independent ? kPositionShift : 0,
                                  independent ? 0 : kPositionShift);
  const std::vector<int32_t> spare = unused_pages(in);
  plant_extreme_gates(in);
  if (independent) {
    move_cache_loc(in, spare);
    plant_saturating_values(in);
  }
  drop_unattended_pages(in);
  data.prepared = reference::prepare(shape.problem, in.view());
  data.redirected = in.page_table;
  std::replace(data.redirected.begin(), data.redirected.end(), -1, spare.back());
  return data;
}

CacheImage build_caches(const Case& data) {
  const Inputs& in = data.inputs;
  const Problem& p = in.shape.problem;
  CacheImage image;
  image.bytes = in.cache_pages * p.page_size * row_bytes(p);
  // Not zeroed first: fill_caches touches every byte, on all cores.
  image.k.reset(new uint8_t[static_cast<size_t>(image.bytes)]);
  image.v.reset(new uint8_t[static_cast<size_t>(image.bytes)]);
  fill_caches(in, attended_rows(in), kForeignRowByte, image.k.get(), image.v.get());
  Buffers view = in.view();
  view.k_cache = image.k.get();
  view.v_cache = image.v.get();
  reference::store(p, data.prepared, view);
  return image;
}

int64_t case_bytes(const Case& data) {
  const Inputs& in = data.inputs;
  return static_cast<int64_t>(2 * in.qkv.size() + 4 * in.cos_sin.size() + 8 * in.page_table.size());
}

std::string data_key(const Shape& shape, uint64_t seed, Fill fill) {
  return fmt::format("{} seed {} {}", key(shape), seed, name(fill));
}

uint64_t hash(const StepBytes& bytes) {
  uint64_t hash = XXH3_64bits(bytes.q8.data(), bytes.q8.size());
  hash = XXH3_64bits_withSeed(bytes.k.data(), bytes.k.size(), hash);
  return XXH3_64bits_withSeed(bytes.v.data(), bytes.v.size(), hash);
}

/// A number of the normal input data for element `i`.
float sample(const Inputs& in, int64_t i) {
  const Problem& p = in.shape.problem;
  const int64_t heads = p.num_q_heads * p.head_dim;
  const int64_t n = i / heads % p.tokens();
  return bf16_to_f32(in.qkv[static_cast<size_t>(n * p.qkv_width() + i % heads)]);
}

void feed_partials(Feed& feed, const Inputs& in) {
  const Problem& p = in.shape.problem;
  const int64_t capacity = feed.partials.split_capacity, d = p.head_dim;
  const bool wide = feed.partials.partial_type == PartialType::kF32;
  const int64_t heads = p.tokens() * p.num_q_heads, element = wide ? 4 : 2;
  for (int64_t b = 0; b < p.batch; ++b) {
    feed.n_splits.push_back(
        static_cast<int32_t>(1 + (5 * b + std::max<int64_t>(capacity - 2, 0)) % capacity));
  }
  feed.partial_o.assign(static_cast<size_t>(capacity * heads * d * element), kPoisonByte);
  feed.partial_lse.assign(static_cast<size_t>(capacity * heads),
                          std::numeric_limits<float>::quiet_NaN());
  for (int64_t s = 0; s < capacity; ++s) {
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t n = head / p.num_q_heads, h = head % p.num_q_heads, slot = s * heads + head;
      const int64_t splits = feed.n_splits[static_cast<size_t>(n / p.q_len)];
      if (s >= splits) continue;
      const bool masked = heads > 1 && head == heads - 1;
      const bool empty = masked || (splits > 1 && s == (n + h) % splits);
      // A common offset of 150 in every third head overflows an exp2 without the maximum taken off.
      feed.partial_lse[static_cast<size_t>(slot)] =
          empty ? -std::numeric_limits<float>::infinity()
                : 2 * sample(in, slot * 7 + 1) + (h % 3 == 1 ? 150.0F : 0.0F);
      for (int64_t e = slot * d; e < (slot + 1) * d && !empty; ++e) {
        const float value = sample(in, e + s * 11);
        if (wide) std::memcpy(feed.partial_o.data() + e * 4, &value, 4);
        const uint16_t narrow = f32_to_bf16(value);
        if (!wide) std::memcpy(feed.partial_o.data() + e * 2, &narrow, 2);
      }
    }
  }
}

void feed_o(Feed& feed, const Inputs& in) {
  const Problem& p = in.shape.problem;
  const int64_t heads = p.tokens() * p.num_q_heads;
  for (int64_t e = 0; e < heads * p.head_dim; ++e) {
    const int64_t head = e / p.head_dim;
    const float scale = head == heads / 2 ? 0 : std::ldexp(1.0F, static_cast<int>(head % 13) - 8);
    feed.o.push_back(f32_to_bf16(sample(in, e) * scale));
  }
}

template <class T>
std::vector<T> part(const std::vector<T>& all, int64_t pieces, int64_t index) {
  const auto size = static_cast<int64_t>(all.size()) / pieces;
  return {all.begin() + index * size, all.begin() + (index + 1) * size};
}

/// Of [outer, B, ...]: request b of each outer index.
template <class T>
std::vector<T> part_of_each(const std::vector<T>& all, int64_t outer, int64_t batch, int64_t b) {
  std::vector<T> out;
  if (all.empty()) return out;
  for (int64_t s = 0; s < outer; ++s) {
    const std::vector<T> piece = part(all, outer * batch, s * batch + b);
    out.insert(out.end(), piece.begin(), piece.end());
  }
  return out;
}

}  // namespace

Shape validation_shape(const Shape& shape) {
  const Problem& p = shape.problem;
  const int64_t page_bytes = p.page_size * row_bytes(p);  // in each of the two pools
  Shape small = shape;
  small.lengths.pool_bytes = 1;
  const int64_t needed = pool_pages(small) + spare_pages(p);
  const bool wide = pool_pages(shape) * page_bytes > std::numeric_limits<int32_t>::max();
  const int64_t pages = std::max(needed, wide ? pool_pages(shape) : 0);
  small.lengths.pool_bytes = 2 * pages * page_bytes;
  return small;
}

std::shared_ptr<const Case> make_case(const Shape& shape, uint64_t seed, Fill fill, CaseKind kind) {
  static Recent<Case> recent;
  const bool independent = kind == CaseKind::kIndependent;
  const std::string id = data_key(shape, seed, fill) + (independent ? " independent" : "");
  return recent.get(
      id, [&] { return build_case(shape, seed, fill, independent); }, case_bytes);
}

std::shared_ptr<const CacheImage> make_caches(const Shape& shape, uint64_t seed, Fill fill) {
  static Recent<CacheImage> recent;
  const auto data = make_case(shape, seed, fill, CaseKind::kStored);
  return recent.get(
      data_key(shape, seed, fill), [&] { return build_caches(*data); },
      [](const CacheImage& image) { return 2 * image.bytes; });
}

std::vector<int64_t> poisoned_rows(const Case& data, CaseKind kind) {
  return kind == CaseKind::kStored ? std::vector<int64_t>() : data.inputs.cache_loc;
}

int64_t cache_index(const Case& data, int64_t index) {
  const int64_t width = row_bytes(data.inputs.shape.problem);
  return data.inputs.cache_loc[static_cast<size_t>(index / width)] * width + index % width;
}

Feed make_feed(const Case& data, Stage first, const Handoff& partials) {
  Feed feed;
  feed.partials = partials;
  switch (first) {
    case Stage::kPrepare:
      break;
    case Stage::kAttention:
      feed.q8 = data.prepared.q8;
      break;
    case Stage::kCombine:
      feed_partials(feed, data.inputs);
      break;
    case Stage::kGate:
      feed_o(feed, data.inputs);
      break;
  }
  return feed;
}

Case slice(const Case& data, int64_t b) {
  const Inputs& all = data.inputs;
  const int64_t batch = all.shape.problem.batch;
  Case one = data;
  Inputs& in = one.inputs;
  in.shape.problem.batch = 1;
  in.qkv = part(all.qkv, batch, b);
  in.positions = part(all.positions, batch, b);
  in.cache_loc = part(all.cache_loc, batch, b);
  in.seq_lens = part(all.seq_lens, batch, b);
  in.cache_seqlens = part(all.cache_seqlens, batch, b);
  in.cu_seqlens_q = {0, static_cast<int32_t>(all.shape.problem.q_len)};
  in.page_table = part(all.page_table, batch, b);
  one.redirected = part(data.redirected, batch, b);
  one.prepared = {part(data.prepared.q8, batch, b), part(data.prepared.k8, batch, b),
                  part(data.prepared.v8, batch, b)};
  return one;
}

Feed slice(const Feed& feed, const Problem& problem, int64_t b) {
  const int64_t batch = problem.batch, splits = feed.partials.split_capacity;
  Feed one;
  one.partials = feed.partials;
  one.q8 = part_of_each(feed.q8, 1, batch, b);
  one.partial_o = part_of_each(feed.partial_o, splits, batch, b);
  one.partial_lse = part_of_each(feed.partial_lse, splits, batch, b);
  one.n_splits = part_of_each(feed.n_splits, 1, batch, b);
  one.o = part_of_each(feed.o, 1, batch, b);
  return one;
}

std::shared_ptr<const AttentionTruth> kept_truth(const Case& data, const StepBytes& bytes,
                                                 const std::string& how,
                                                 const std::function<AttentionTruth()>& make) {
  static Recent<AttentionTruth> recent;
  const Inputs& in = data.inputs;
  const std::string id =
      fmt::format("{} {} bytes {:x}", data_key(in.shape, in.seed, in.fill), how, hash(bytes));
  return recent.get(id, make, [](const AttentionTruth& truth) {
    return static_cast<int64_t>(16 * (truth.exact.o.size() + truth.exact.lse.size()));
  });
}

AttentionTruth sampled_truth(const Case& data, const Buffers& in, const uint8_t* q8,
                             int64_t budget) {
  const Problem& problem = data.inputs.shape.problem;
  AttentionTruth truth;
  truth.pairs = reference::sample_pairs(problem, in, budget, data.inputs.seed);
  truth.exact = reference::attention(problem, in, q8, truth.pairs);
  truth.fa3 = reference::attention_fa3(problem, in, q8, truth.pairs);
  return truth;
}

}  // namespace muse::tuner
