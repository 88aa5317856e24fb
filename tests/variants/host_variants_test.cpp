// SPDX-License-Identifier: Apache-2.0
// Every registered host variant, in every configuration, against the reference on small shapes; and
// the pieces they share: row kernels of each instruction set, splits, the thread pool.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "variants/host/attend.h"
#include "variants/host/parallel.h"
#include "variants/host/row_kernels.h"
#include "variants/numerics.h"
#include "variants/reference/reference.h"
#include "variants/registry.h"

namespace muse {
namespace {

constexpr uint8_t kNanCode = 0x7F;

/// A small shape with its data; everything that no query attends holds NaN.
struct Case {
  std::string name;
  Problem problem;
  std::vector<int64_t> contexts;  // cache_seqlens
  float key_size = 1;             // flat softmax where small
  float value_mean = 0;
};

DeviceClass test_device(int cpus = 4, bool host = true) {
  DeviceClass device;
  device.host = host;
  device.sm_count = cpus;
  return device;
}

std::vector<Case> cases() {
  const Problem base{.num_q_heads = 16, .num_kv_heads = 2, .page_size = 16};
  std::vector<Case> made;
  const auto add = [&](std::string name, std::vector<int64_t> contexts, auto&&... change) {
    Case c{.name = std::move(name), .problem = base, .contexts = std::move(contexts)};
    (change(c), ...);
    Problem& p = c.problem;
    p.batch = static_cast<int64_t>(c.contexts.size());
    const int64_t longest = *std::max_element(c.contexts.begin(), c.contexts.end());
    p.max_context = (longest + p.page_size - 1) / p.page_size * p.page_size;
    made.push_back(std::move(c));
  };
  const auto flat = [](Case& c) { c.key_size = 0.2F; };
  const auto mean = [](Case& c) { c.key_size = 0.2F, c.value_mean = 1; };
  add("decode", {1, 700, 63, 257}, flat);
  add("decode_peaky_scaled", {300, 65}, [](Case& c) { c.problem.kv_scale = 1.3; });
  add("decode_rope_window", {161, 129, 1}, mean, [](Case& c) {
    c.problem.window = 128;
    c.problem.rope_theta = 500000;
    c.problem.page_size = 1;
  });
  add("verify_rope_window", {8, 200, 135}, flat, [](Case& c) {
    c.problem.q_len = 8;
    c.problem.window = 128;
    c.problem.rope_theta = 500000;
    c.problem.kv_scale = 0.523809493;
    c.problem.page_size = 64;
  });
  add("verify_window_1", {3, 90}, [](Case& c) {
    c.problem.q_len = 3;
    c.problem.window = 1;
  });
  add("verify_window_2", {5, 140}, [](Case& c) {
    c.problem.q_len = 5;
    c.problem.window = 2;
    c.problem.page_size = 1;
  });
  add("one_head_of_kv", {77, 320}, mean, [](Case& c) {
    c.problem.q_len = 2;
    c.problem.num_q_heads = 8;
    c.problem.num_kv_heads = 1;
  });
  add("four_of_sixteen", {260}, flat, [](Case& c) { c.problem.num_kv_heads = 4; });
  add("no_groups", {128, 31}, flat, [](Case& c) {
    c.problem.num_q_heads = 4;
    c.problem.num_kv_heads = 4;
  });
  add("wide_head", {97}, flat, [](Case& c) {
    c.problem.num_q_heads = 6;
    c.problem.head_dim = 128;
  });
  return made;
}

/// The buffers of a case. Positions are shifted against seq_lens, pages lie in random order, unused
/// pages and foreign rows are poison.
class World {
 public:
  explicit World(const Case& c) : problem(c.problem) {
    const Problem& p = problem;
    std::mt19937_64 random(std::hash<std::string>{}(c.name));
    std::normal_distribution<float> normal;
    const auto bf16 = [&](float factor, float mean) {
      return f32_to_bf16(normal(random) * factor + mean);
    };
    k_scale = v_scale = static_cast<float>(p.kv_scale);
    qkv.resize(p.tokens() * p.qkv_width());
    for (uint16_t& x : qkv) x = bf16(1, 0);
    for (int64_t b = 0; b < p.batch; ++b) {
      cache_seqlens.push_back(static_cast<int32_t>(c.contexts[b]));
      seq_lens.push_back(static_cast<int32_t>(c.contexts[b] - p.q_len));
      cu_seqlens_q.push_back(static_cast<int32_t>(b * p.q_len));
    }
    cu_seqlens_q.push_back(static_cast<int32_t>(p.tokens()));
    lay_pages(random);
    const int64_t rows = pages * p.page_size;
    k_cache.assign(rows * row_bytes(), kNanCode);
    v_cache = k_cache;
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t j = first_attended(b); j < cache_seqlens[b]; ++j) {
        for (int64_t d = 0; d < row_bytes(); ++d) {
          k_cache[row(b, j) * row_bytes() + d] = f32_to_e4m3(normal(random) * c.key_size);
          v_cache[row(b, j) * row_bytes() + d] = f32_to_e4m3(normal(random) + c.value_mean);
        }
      }
    }
    const int64_t largest = *std::max_element(positions.begin(), positions.end());
    cos_sin.resize((largest + 1) * p.head_dim);
    for (int64_t i = 0; i < (largest + 1) * p.head_dim; ++i) {
      const int64_t half = p.head_dim / 2;
      const auto j = static_cast<double>(i % half);
      const auto inv_freq =
          static_cast<float>(1 / std::pow(p.rope() ? p.rope_theta : 1, 2 * j / p.head_dim));
      const float angle = static_cast<float>(i / p.head_dim) * inv_freq;
      cos_sin[i] = i % p.head_dim < half ? std::cos(angle) : std::sin(angle);
    }
    q8.assign(p.tokens() * p.num_q_heads * p.head_dim, kNanCode);
    o.assign(q8.size(), 0xFFFF);
    out = o_tap = o;
    q8_tap = q8;
  }

  Buffers view() {
    return {.qkv = qkv.data(),
            .positions = positions.data(),
            .cache_loc = cache_loc.data(),
            .seq_lens = seq_lens.data(),
            .cache_seqlens = cache_seqlens.data(),
            .cu_seqlens_q = cu_seqlens_q.data(),
            .page_table = page_table.data(),
            .k_scale = &k_scale,
            .v_scale = &v_scale,
            .cos_sin = problem.rope() ? cos_sin.data() : nullptr,
            .k_cache = k_cache.data(),
            .v_cache = v_cache.data(),
            .q8 = q8.data(),
            .o = o.data(),
            .out = out.data(),
            .q8_tap = q8_tap.data(),
            .o_tap = o_tap.data()};
  }

  /// Poisoned partials for the hand-off; nothing for another kind.
  Buffers view(const Handoff& handoff) {
    Buffers buffers = view();
    if (handoff.kind != HandoffKind::kPartials) return buffers;
    const int64_t rows = handoff.split_capacity * problem.tokens() * problem.num_q_heads;
    partial_o.assign(rows * problem.head_dim, std::numeric_limits<float>::quiet_NaN());
    lse.assign(rows, std::numeric_limits<float>::quiet_NaN());
    n_splits.assign(problem.batch, -1);
    buffers.partial_o = partial_o.data();
    buffers.partial_lse = lse.data();
    buffers.n_splits = n_splits.data();
    buffers.split_capacity = handoff.split_capacity;
    buffers.partial_type = handoff.partial_type;
    return buffers;
  }

  /// Prepares by the reference: q8 and the cache rows are those of the emulation.
  void prepare() {
    const reference::Prepared prepared = reference::prepare(problem, view());
    reference::store(problem, prepared, view());
    q8 = prepared.q8;
  }

  int64_t row_bytes() const { return problem.num_kv_heads * problem.head_dim; }
  int64_t first_attended(int64_t b) const {
    const int64_t own = seq_lens[b];
    return problem.windowed() ? std::max<int64_t>(0, own - problem.window + 1) : 0;
  }

  Problem problem;
  float k_scale = 1, v_scale = 1;
  std::vector<uint16_t> qkv, o, out, o_tap;
  std::vector<int64_t> positions, cache_loc;
  std::vector<int32_t> seq_lens, cache_seqlens, cu_seqlens_q, page_table, n_splits;
  std::vector<float> cos_sin, partial_o, lse;
  std::vector<uint8_t> k_cache, v_cache, q8, q8_tap;
  int64_t pages = 0;

 private:
  int64_t row(int64_t b, int64_t j) const {
    const int64_t page = page_table[b * problem.max_pages() + j / problem.page_size];
    return page * problem.page_size + j % problem.page_size;
  }

  void lay_pages(std::mt19937_64& random) {
    const Problem& p = problem;
    pages = p.batch * p.max_pages() + 3;
    std::vector<int32_t> order(pages);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    page_table.assign(p.batch * p.max_pages(), -1);
    for (int64_t b = 0; b < p.batch; ++b) {
      const int64_t first = first_attended(b) / p.page_size;
      const int64_t last = (cache_seqlens[b] - 1) / p.page_size;
      for (int64_t page = first; page <= last; ++page) {
        page_table[b * p.max_pages() + page] = order[b * p.max_pages() + page];
      }
      for (int64_t i = 0; i < p.q_len; ++i) {
        positions.push_back(seq_lens[b] + i + 5);
        cache_loc.push_back(row(b, seq_lens[b] + i));
      }
    }
  }
};

void run(const Candidate& candidate, const Problem& problem, const Buffers& buffers) {
  const Variant& variant = *candidate.variant;
  const Geometry geometry = variant.geometry(problem, candidate.configuration, test_device());
  const auto bytes = static_cast<size_t>(geometry.workspace.bytes);
  std::vector<std::byte> memory(bytes + 256, std::byte{0xFF});
  void* workspace = memory.data();
  size_t space = memory.size();
  std::align(256, bytes, workspace, space);
  for (int launch = 0; launch < static_cast<int>(geometry.launches.size()); ++launch) {
    variant.host_entry(
        variant.bind(problem, candidate.configuration, buffers, workspace, {}, launch), launch);
  }
}

Handoff produced(const Candidate& candidate, const Problem& problem) {
  return candidate.variant->produces(problem, candidate.configuration);
}

/// Every legal configuration of every host variant whose span starts at `first` and that supports
/// the problem.
std::vector<Candidate> candidates(Stage first, const Problem& problem) {
  std::vector<Candidate> found;
  for (const Variant* variant : Registry::global().all()) {
    if (variant->target.kind != TargetKind::kHost) continue;
    for (const Configuration& configuration : space(*variant)) {
      const Candidate candidate{variant, configuration};
      if (candidate.span().first != first) continue;
      if (variant->supports(problem, configuration, test_device()).ok()) found.push_back(candidate);
    }
  }
  return found;
}

std::vector<reference::Pair> all_pairs(const Problem& problem) {
  std::vector<reference::Pair> pairs;
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t head = 0; head < problem.num_q_heads; ++head) pairs.push_back({b, head});
  }
  return pairs;
}

/// Reference O [T, Hq, D] of a prepared world.
std::vector<double> expected_o(World& world) {
  const Problem& p = world.problem;
  const std::vector<reference::Pair> pairs = all_pairs(p);
  const reference::Attention attention =
      reference::attention(p, world.view(), world.q8.data(), pairs);
  std::vector<double> o(world.o.size());
  for (size_t k = 0; k < pairs.size(); ++k) {
    for (int64_t i = 0; i < p.q_len; ++i) {
      const int64_t token = pairs[k].request * p.q_len + i;
      std::copy_n(attention.o.begin() + (static_cast<int64_t>(k) * p.q_len + i) * p.head_dim,
                  p.head_dim, o.begin() + (token * p.num_q_heads + pairs[k].head) * p.head_dim);
    }
  }
  return o;
}

std::vector<double> widened(const std::vector<uint16_t>& bf16) {
  std::vector<double> wide(bf16.size());
  std::transform(bf16.begin(), bf16.end(), wide.begin(), [](uint16_t x) { return bf16_to_f32(x); });
  return wide;
}

double relative_rms(const std::vector<double>& got, const std::vector<double>& expected) {
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(error / size);
}

/// Distance in bf16 steps; +0 and -0 are one value.
int64_t bf16_steps(uint16_t a, uint16_t b) {
  const auto ordered = [](uint16_t x) {
    return (x & 0x8000) != 0 ? -static_cast<int64_t>(x & 0x7FFF) : static_cast<int64_t>(x);
  };
  return std::abs(ordered(a) - ordered(b));
}

int64_t worst_step(const std::vector<uint16_t>& got, const std::vector<double>& expected) {
  int64_t worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst, bf16_steps(got[i], f32_to_bf16(static_cast<float>(expected[i]))));
  }
  return worst;
}

/// Differing codes are few and one step apart.
void expect_codes(const std::vector<uint8_t>& got, const std::vector<uint8_t>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  int64_t mismatches = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    ++mismatches;
    EXPECT_LE(std::abs(int{got[i]} - int{expected[i]}), 1) << "index " << i;
  }
  EXPECT_LE(mismatches, std::max<int64_t>(2, static_cast<int64_t>(2e-5 * got.size())));
}

TEST(HostVariants, EveryStageHasAScalarAndASimdOne) {
  std::set<std::string> names;
  for (const Variant* variant : Registry::global().all()) names.insert(variant->name);
  for (const char* name :
       {"attention/scalar", "attention/simd", "combine/scalar", "combine/simd", "fused/phased",
        "gate/scalar", "gate/simd", "prepare/scalar", "prepare/simd"}) {
    EXPECT_EQ(names.count(name), 1U) << name;
  }
}

TEST(HostVariants, RefuseWithAReasonWhatTheyCannotDo) {
  Problem problem{.max_context = 64};
  const DeviceClass small = test_device(1);
  const DeviceClass cuda = test_device(132, false);
  Problem odd = problem;
  odd.head_dim = 321;
  for (const Variant* variant : Registry::global().all()) {
    if (variant->target.kind != TargetKind::kHost) continue;
    for (const Configuration& configuration : space(*variant)) {
      EXPECT_TRUE(variant->supports(problem, configuration, test_device()).ok());
      EXPECT_NE(variant->supports(odd, configuration, test_device()).reason, "");
      EXPECT_NE(variant->supports(problem, configuration, cuda).reason, "");
      const auto threads = configuration.find("threads");
      const bool many = threads != configuration.end() && threads->second > 1;
      EXPECT_EQ(variant->supports(problem, configuration, small).ok(), !many);
      EXPECT_FALSE(variant->consumes(problem, configuration, {.kind = HandoffKind::kOut}).ok());
    }
  }
}

TEST(HostVariants, PrepareGivesTheBytesOfTheEmulation) {
  for (const Case& c : cases()) {
    const World fresh(c);
    World expected = fresh;
    expected.prepare();
    for (const Candidate& candidate : candidates(Stage::kPrepare, c.problem)) {
      SCOPED_TRACE(c.name + " " + key(candidate));
      World world = fresh;
      run(candidate, c.problem, world.view(produced(candidate, c.problem)));
      const bool fused = candidate.span().last != Stage::kPrepare;
      expect_codes(fused ? world.q8_tap : world.q8, expected.q8);
      expect_codes(world.k_cache, expected.k_cache);
      expect_codes(world.v_cache, expected.v_cache);
      // What is not its own stays as it was.
      EXPECT_EQ(fused ? world.q8 : world.q8_tap, fresh.q8);
    }
  }
}

TEST(HostVariants, AttentionMatchesFloat64) {
  for (const Case& c : cases()) {
    World world(c);
    world.prepare();
    const std::vector<double> expected = expected_o(world);
    for (const Candidate& candidate : candidates(Stage::kAttention, c.problem)) {
      SCOPED_TRACE(c.name + " " + key(candidate));
      const Handoff handoff = produced(candidate, c.problem);
      std::fill(world.o.begin(), world.o.end(), 0xFFFF);
      const Buffers buffers = world.view(handoff);
      run(candidate, c.problem, buffers);
      std::vector<double> got;
      if (handoff.kind == HandoffKind::kPartials) {
        for (const int32_t n : world.n_splits) ASSERT_TRUE(1 <= n && n <= handoff.split_capacity);
        got = reference::combine(c.problem, buffers);
      } else {
        got = widened(world.o);
      }
      EXPECT_LE(relative_rms(got, expected), 3e-3);
    }
  }
}

TEST(HostVariants, LongRequestsUseAllSplits) {
  const Case c = cases().front();
  World world(c);
  world.prepare();
  for (const Candidate& candidate : candidates(Stage::kAttention, c.problem)) {
    const Handoff handoff = produced(candidate, c.problem);
    if (handoff.kind != HandoffKind::kPartials) continue;
    run(candidate, c.problem, world.view(handoff));
    EXPECT_EQ(world.n_splits[0], 1) << key(candidate);
    EXPECT_EQ(world.n_splits[1], handoff.split_capacity) << key(candidate);
  }
}

/// Random partials; splits that must not be read hold NaN.
Buffers random_partials(World& world, const Handoff& handoff) {
  const Problem& p = world.problem;
  Buffers buffers = world.view(handoff);
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  for (int64_t b = 0; b < p.batch; ++b) {
    world.n_splits[b] = static_cast<int32_t>(1 + b % handoff.split_capacity);
  }
  const int64_t per_split = p.tokens() * p.num_q_heads;
  for (int64_t row = 0; row < handoff.split_capacity * per_split; ++row) {
    const int64_t split = row / per_split;
    const int64_t b = row % per_split / p.num_q_heads / p.q_len;
    if (split >= world.n_splits[b]) continue;
    if (split + 1 == world.n_splits[b] && row % 5 == 0) {  // a query without keys in this split
      world.lse[row] = -std::numeric_limits<float>::infinity();
      continue;
    }
    world.lse[row] = normal(random) * 3;
    for (int64_t d = row * p.head_dim; d < (row + 1) * p.head_dim; ++d) {
      if (handoff.partial_type == PartialType::kF32) {
        world.partial_o[d] = normal(random);
      } else {
        static_cast<uint16_t*>(buffers.partial_o)[d] = f32_to_bf16(normal(random));
      }
    }
  }
  return buffers;
}

TEST(HostVariants, CombineReadsItsSplitsAndNothingElse) {
  for (const Case& c : cases()) {
    for (const PartialType type : {PartialType::kF32, PartialType::kBf16}) {
      const Handoff handoff{
          .kind = HandoffKind::kPartials, .partial_type = type, .split_capacity = 3};
      World world(c);
      const Buffers buffers = random_partials(world, handoff);
      const std::vector<double> expected = reference::combine(c.problem, buffers);
      for (const Candidate& candidate : candidates(Stage::kCombine, c.problem)) {
        SCOPED_TRACE(c.name + " " + key(candidate));
        ASSERT_TRUE(candidate.variant->consumes(c.problem, candidate.configuration, handoff).ok());
        std::fill(world.o.begin(), world.o.end(), 0xFFFF);
        run(candidate, c.problem, buffers);
        EXPECT_LE(relative_rms(widened(world.o), expected), 2e-3);
      }
    }
  }
}

TEST(HostVariants, GateIsWithinTwoStepsOfFloat64) {
  for (const Case& c : cases()) {
    World world(c);
    std::mt19937_64 random(4);
    std::normal_distribution<float> normal;
    for (uint16_t& x : world.o) x = f32_to_bf16(normal(random));
    // Every bf16 number of a gate: sizes from subnormal to infinite.
    const int64_t gates = c.problem.num_q_heads * c.problem.head_dim;
    for (int64_t token = 0; token < c.problem.tokens(); ++token) {
      for (int64_t d = 0; d < gates; ++d) {
        auto& g = world.qkv[(token + 1) * c.problem.qkv_width() - gates + d];
        g = static_cast<uint16_t>(random());
        if (std::isnan(bf16_to_f32(g))) g = 0x7F80;
      }
    }
    std::fill_n(world.o.begin(), c.problem.head_dim, 0);
    const std::vector<double> expected = reference::gate(c.problem, world.view(), world.o.data());
    for (const Candidate& candidate : candidates(Stage::kGate, c.problem)) {
      SCOPED_TRACE(c.name + " " + key(candidate));
      std::fill(world.out.begin(), world.out.end(), 0xFFFF);
      run(candidate, c.problem, world.view());
      EXPECT_LE(worst_step(world.out, expected), 2);
    }
  }
}

TEST(HostVariants, FusedOnesAreRightAtEveryTapAndWithoutTaps) {
  for (const Case& c : cases()) {
    const World fresh(c);
    World expected = fresh;
    expected.prepare();
    const std::vector<double> o = expected_o(expected);
    for (const Candidate& candidate : candidates(Stage::kPrepare, c.problem)) {
      if (candidate.span().last == Stage::kPrepare) continue;
      SCOPED_TRACE(c.name + " " + key(candidate));
      World world = fresh;
      run(candidate, c.problem, world.view());
      EXPECT_LE(relative_rms(widened(world.o_tap), o), 3e-3);
      if (candidate.span().covers(Stage::kGate)) {
        EXPECT_LE(
            worst_step(world.out, reference::gate(c.problem, world.view(), world.o_tap.data())), 2);
        EXPECT_EQ(world.o, fresh.o);
      } else {
        EXPECT_EQ(world.o, world.o_tap);
        EXPECT_EQ(world.out, fresh.out);
      }
      World timed = fresh;
      Buffers buffers = timed.view();
      buffers.q8_tap = nullptr;
      buffers.o_tap = nullptr;
      run(candidate, c.problem, buffers);
      EXPECT_EQ(timed.out, world.out);
      EXPECT_EQ(timed.o, world.o);
    }
  }
}

/// Bits of everything a candidate can write.
struct Written {
  std::vector<uint16_t> o, out;
  std::vector<uint8_t> q8, k_cache, v_cache;
  std::vector<uint32_t> partial_o, lse;
  std::vector<int32_t> n_splits;
  bool operator==(const Written&) const = default;
};

std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> made(values.size());
  std::transform(values.begin(), values.end(), made.begin(), f32_bits);
  return made;
}

/// fresh: the case before the step; prepared: after prepare.
Written written_by(const Candidate& candidate, const World& fresh, const World& prepared) {
  const Stage first = candidate.span().first;
  World world = first == Stage::kPrepare ? fresh : prepared;
  if (first == Stage::kGate) world.o.assign(world.o.size(), 0x3F80);
  const Handoff partials{.kind = HandoffKind::kPartials, .split_capacity = 3};
  const Buffers buffers = first == Stage::kCombine ? random_partials(world, partials)
                                                   : world.view(produced(candidate, world.problem));
  run(candidate, world.problem, buffers);
  return {world.o,         world.out,     world.q8,
          world.k_cache,   world.v_cache, bits(world.partial_o),
          bits(world.lse), world.n_splits};
}

TEST(HostVariants, GiveTheSameBitsInEveryRunOnAnyNumberOfThreads) {
  for (const Case& c : cases()) {
    const World fresh(c);
    World prepared(c);
    prepared.prepare();
    std::map<std::string, Written> alone;  // by the key with one thread
    for (const Stage first : {Stage::kPrepare, Stage::kAttention, Stage::kCombine, Stage::kGate}) {
      for (const Candidate& candidate : candidates(first, c.problem)) {
        SCOPED_TRACE(c.name + " " + key(candidate));
        Candidate single = candidate;
        if (single.configuration.count("threads") != 0) single.configuration["threads"] = 1;
        const auto [expected, added] = alone.try_emplace(key(single));
        if (added) expected->second = written_by(single, fresh, prepared);
        EXPECT_TRUE(written_by(candidate, fresh, prepared) == expected->second);
      }
    }
  }
}

class RowKernelsOf : public testing::TestWithParam<host::Isa> {
 protected:
  const host::RowKernels& kernels = host::row_kernels(GetParam());
};

TEST_P(RowKernelsOf, DecodeEveryCodeExactly) {
  constexpr int64_t kDim = 64;
  std::vector<uint8_t> codes(256);
  std::iota(codes.begin(), codes.end(), 0);
  std::vector<int64_t> offsets(host::kKeyBlock);
  for (int64_t key = 0; key < host::kKeyBlock; ++key) offsets[key] = key % 4 * kDim;
  std::vector<float> rows(host::kKeyBlock * kDim);
  std::vector<float> columns(rows.size());
  kernels.decode_rows(codes.data(), offsets.data(), offsets.data(), host::kKeyBlock, kDim,
                      rows.data());
  kernels.decode_keys(codes.data(), offsets.data(), offsets.data(), host::kKeyBlock, kDim,
                      columns.data());
  for (int64_t key = 0; key < host::kKeyBlock; ++key) {
    for (int64_t d = 0; d < kDim; ++d) {
      const float expected = e4m3_to_f32(codes[offsets[key] + d]);
      for (const float got : {rows[key * kDim + d], columns[d * host::kKeyBlock + key]}) {
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(got));
        } else {
          EXPECT_EQ(f32_bits(got), f32_bits(expected)) << "code " << offsets[key] + d;
        }
      }
    }
  }
}

TEST_P(RowKernelsOf, QuantiseEveryBf16AsTheConversionDoes) {
  std::vector<uint16_t> x(65536);
  std::iota(x.begin(), x.end(), 0);
  for (const float scale : {1.0F, 1.3F, 0.523809493F}) {
    std::vector<uint8_t> got(x.size());
    kernels.quantise(x.data(), scale, static_cast<int64_t>(x.size()), got.data());
    for (const uint16_t bits : x) {
      ASSERT_EQ(got[bits], f32_to_e4m3(round_to_bf16(bf16_to_f32(bits) / scale))) << bits;
    }
  }
}

TEST_P(RowKernelsOf, RoundToBf16AsTheConversionDoes) {
  std::vector<float> x;
  for (uint32_t high = 0; high < 65536; ++high) {
    for (const uint32_t low : {0x0U, 0x7FFFU, 0x8000U, 0x8001U}) {
      x.push_back(f32_from_bits((high << 16) | low));
    }
  }
  std::vector<uint16_t> got(x.size());
  kernels.scale_to_bf16(x.data(), 1.0F, static_cast<int64_t>(x.size()), got.data());
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(bf16_to_f32(got[i])));
    } else {
      ASSERT_EQ(got[i], f32_to_bf16(x[i])) << i;
    }
  }
}

TEST_P(RowKernelsOf, AttendAsFloat64DoesForAnyTile) {
  for (const Case& c : cases()) {
    World world(c);
    world.prepare();
    const std::vector<double> expected = expected_o(world);
    const Problem& p = c.problem;
    const auto in = host::attention_inputs(p, world.view(), world.q8.data());
    for (const int64_t tile : {32, 128}) {
      SCOPED_TRACE(c.name + " " + std::to_string(tile));
      const int64_t rows = p.q_len * p.group();
      std::vector<std::byte> memory(host::AttendScratch::bytes(rows, p.head_dim, tile));
      host::AttendScratch scratch(memory.data(), rows, p.head_dim, tile);
      std::vector<double> got(expected.size());
      for (int64_t b = 0; b < p.batch; ++b) {
        for (int64_t g = 0; g < p.num_kv_heads; ++g) {
          host::attend(kernels, in, b, g, host::attended(in, b), tile, scratch);
          for (int64_t row = 0; row < rows; ++row) {
            const float factor = host::output_factor(scratch.states[row], world.v_scale);
            const int64_t token = b * p.q_len + row / p.group();
            const int64_t head = g * p.group() + row % p.group();
            for (int64_t d = 0; d < p.head_dim; ++d) {
              got[(token * p.num_q_heads + head) * p.head_dim + d] =
                  scratch.acc[row * p.head_dim + d] * factor;
            }
          }
        }
      }
      EXPECT_LE(relative_rms(got, expected), 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Available, RowKernelsOf, testing::ValuesIn(host::available_isas()),
                         [](const auto& info) { return std::string(host::name(info.param)); });

TEST(Splits, CoverEveryKeyOnceAndAreNeverEmpty) {
  for (const int64_t capacity : {1, 2, 3, 4, 8}) {
    for (int64_t keys = 1; keys < 700; ++keys) {
      const host::KeyRange all{17, 17 + keys};
      const host::Splits splits = host::splits_of(all, capacity);
      ASSERT_TRUE(1 <= splits.count && splits.count <= capacity);
      int64_t next = all.begin;
      for (int64_t split = 0; split < splits.count; ++split) {
        const host::KeyRange piece = host::split_range(all, splits, split);
        ASSERT_EQ(piece.begin, next);
        ASSERT_GT(piece.size(), 0);
        next = piece.end;
      }
      ASSERT_EQ(next, all.end);
    }
  }
}

TEST(ParallelFor, RunsEveryItemOnceAndShowsItsWritesToTheCaller) {
  for (int round = 0; round < 2000; ++round) {
    const int threads = 1 + round % 4;
    const int64_t items = round % 23;
    std::vector<int> runs(items);
    std::atomic<bool> worker_in_range{true};
    host::parallel_for(threads, items, [&](int worker, int64_t item) {
      ++runs[item];
      if (worker < 0 || worker >= threads) worker_in_range = false;
    });
    EXPECT_TRUE(worker_in_range);
    EXPECT_EQ(std::count(runs.begin(), runs.end(), 1), items);
  }
}

}  // namespace
}  // namespace muse
