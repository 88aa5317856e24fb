// SPDX-License-Identifier: Apache-2.0
// What CUDA variants say about themselves, without a GPU: refusals with their reasons, launches
// over the whole space, argument blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "variants/combine/gated.cuh"
#include "variants/device/contract.h"
#include "variants/device/epilogue_contract.h"
#include "variants/prepare/fused.cuh"
#include "variants/prepare/separate.cuh"
#include "variants/registry.h"

namespace muse {
namespace {

DeviceClass gpu(int cc = 90) {
  DeviceClass device;
  device.model = "test";
  device.host = false;
  device.cc = cc;
  device.sm_count = 132;
  device.memory_bytes = int64_t{128} << 30;
  device.l2_bytes = int64_t{60} << 20;
  device.smem_per_block_bytes = 227 << 10;
  return device;
}

Problem serving() { return {.batch = 8, .q_len = 2, .rope_theta = 500000, .max_context = 4096}; }

std::vector<const Variant*> cuda_variants() {
  std::vector<const Variant*> found;
  for (const Variant* variant : Registry::global().all()) {
    if (variant->target.kind == TargetKind::kCuda) found.push_back(variant);
  }
  return found;
}

const Variant& variant(const char* name) { return *Registry::global().find(name); }

Geometry geometry_of(const Variant& v, const Problem& problem) {
  return v.geometry(problem, default_configuration(v), gpu());
}

std::string refusal(const DeviceClass& device, const std::function<void(Problem&)>& change) {
  Problem problem = serving();
  change(problem);
  return device::check_cuda(problem, device).reason;
}

TEST(CudaVariants, RefuseWhatTheyCannotRunWithTheReason) {
  const auto same = [](Problem&) {};
  EXPECT_EQ(refusal(gpu(), same), "");
  EXPECT_EQ(refusal(gpu(80), same), "");
  EXPECT_EQ(refusal(host_device_class(), same), "runs on a CUDA device only");
  EXPECT_EQ(refusal(gpu(75), same), "compute capability 7.5: runs from 8.0 on");
  EXPECT_EQ(refusal(gpu(), [](Problem& p) { p.head_dim = 128; }), "head_dim 128: only 64");
  EXPECT_EQ(refusal(gpu(), [](Problem& p) { p.num_q_heads = 5; }),
            "num_q_heads 5 is no multiple of num_kv_heads 2");
  EXPECT_EQ(refusal(gpu(), [](Problem& p) { p.batch = int64_t{1} << 26; }),
            "134217728 tokens of 36 heads: more rows than 32 bits count");
}

TEST(CudaVariants, RefuseTheHostAndOlderDevices) {
  for (const Variant* v : cuda_variants()) {
    SCOPED_TRACE(v->name);
    const Configuration configuration = default_configuration(*v);
    EXPECT_FALSE(v->supports(serving(), configuration, host_device_class()).ok());
    EXPECT_FALSE(v->supports(serving(), configuration, gpu(75)).ok());
  }
}

TEST(CudaVariants, FindPagesOfPowersOfTwoOnly) {
  for (const int64_t size : {1, 4, 16, 64}) {
    EXPECT_TRUE(device::check_page_size({.page_size = size}).ok()) << size;
  }
  EXPECT_EQ(device::check_page_size({.page_size = 48}).reason, "page_size 48: only powers of two");
  EXPECT_FALSE(device::check_page_size({.page_size = 0}).ok());
}

TEST(CudaVariants, TakeTheHeadsOfEveryServedModel) {
  for (const auto& [q_heads, kv_heads] : {std::pair{16, 2}, {8, 1}, {16, 4}, {4, 4}}) {
    const auto change = [q = q_heads, kv = kv_heads](Problem& p) {
      p.num_q_heads = q;
      p.num_kv_heads = kv;
    };
    EXPECT_EQ(refusal(gpu(), change), "");
  }
}

TEST(CudaVariants, LaunchWholeWarpsOfTheirOwnEntriesInEveryConfiguration) {
  for (const Variant* v : cuda_variants()) {
    for (const Configuration& configuration : space(*v)) {
      SCOPED_TRACE(key({v, configuration}));
      if (!v->supports(serving(), configuration, gpu()).ok()) continue;
      const Geometry geometry = v->geometry(serving(), configuration, gpu());
      ASSERT_FALSE(geometry.launches.empty());
      for (const Launch& launch : geometry.launches) {
        EXPECT_EQ(std::ranges::count(v->entries, launch.entry), 1) << launch.entry;
        const int64_t threads = launch.block.x * launch.block.y * launch.block.z;
        EXPECT_TRUE(threads % 32 == 0 && threads > 0 && threads <= 1024) << threads;
        EXPECT_GT(launch.grid.x * launch.grid.y * launch.grid.z, 0);
        EXPECT_LE(launch.smem_bytes, gpu().smem_per_block_bytes);
      }
    }
  }
}

TEST(CudaVariants, GiveEachRowItsLanes) {
  // 16 tokens; eight lanes to a row and 128 threads make 16 rows a block.
  EXPECT_EQ(geometry_of(variant("prepare/fused"), serving()).launches[0].grid.x, 20);
  EXPECT_EQ(geometry_of(variant("gate/separate"), serving()).launches[0].grid.x, 16);
  const Launch ragged = device::row_launch("entry", 5, 32, 128);
  EXPECT_EQ(ragged.grid.x, 2);
  EXPECT_EQ(ragged.block.x, 128);
  EXPECT_TRUE(ragged.pdl);

  const Geometry separate = geometry_of(variant("prepare/separate"), serving());
  ASSERT_EQ(separate.launches.size(), 3U);
  EXPECT_EQ(separate.launches[0].entry, "norm_rope");
  EXPECT_EQ(separate.launches[1].entry, "store");
  EXPECT_EQ(separate.launches[2].entry, "quantise");
  EXPECT_EQ(separate.workspace.bytes, 16 * 18 * 64 * 2);
}

TEST(CudaVariants, AttentionSpansWhatItsEpilogueMerges) {
  const Variant& mma = variant("attention/mma");
  const auto with = [&](int64_t splits, int64_t cluster, int64_t ticket, int64_t gate) {
    Configuration c = default_configuration(mma);
    c["splits"] = splits;
    c["cluster"] = cluster;
    c["ticket"] = ticket;
    c["gate"] = gate;
    return c;
  };
  const auto span = [&](const Configuration& c) { return std::string(name(mma.span(c))); };
  const auto capacity = [&](const Configuration& c) {
    return mma.produces(serving(), c).split_capacity;
  };
  EXPECT_EQ(span(with(16, 1, 0, 0)), "attention");
  EXPECT_EQ(capacity(with(16, 1, 0, 0)), 16);
  EXPECT_EQ(span(with(16, 4, 0, 0)), "attention");
  EXPECT_EQ(capacity(with(16, 4, 0, 0)), 4);
  EXPECT_EQ(span(with(16, 16, 0, 0)), "attention..combine");
  EXPECT_EQ(mma.produces(serving(), with(16, 16, 0, 0)).kind, HandoffKind::kO);
  EXPECT_EQ(span(with(16, 1, 1, 1)), "attention..gate");
  EXPECT_EQ(mma.produces(serving(), with(16, 1, 1, 1)).kind, HandoffKind::kOut);
  EXPECT_NE(check(mma, with(16, 16, 1, 0)), "");  // nothing left for tickets
  EXPECT_NE(check(mma, with(16, 4, 0, 1)), "");   // no O for the gate
  EXPECT_NE(check(mma, with(4, 16, 0, 0)), "");   // no whole cluster

  const Geometry clusters = mma.geometry(serving(), with(64, 16, 1, 1), gpu());
  EXPECT_EQ(clusters.launches[0].cluster.x, 16);
  EXPECT_EQ(clusters.launches[0].grid.x, 64);
  // 8 groups of 32 rows in 4 parts: 64 dims, maximum and sum each; 16 tickets for a group.
  EXPECT_EQ(clusters.workspace.bytes, 4 * (8 * 4 * 32 * (64 + 2) + 8 * 16));
  EXPECT_TRUE(clusters.workspace.zeroed_once);
  EXPECT_EQ(mma.geometry(serving(), with(16, 16, 0, 1), gpu()).workspace.bytes, 0);
  EXPECT_EQ(mma.supports(serving(), with(16, 16, 0, 0), gpu(89)).reason,
            "cluster 16: compute capability 8.9 has none");
}

TEST(CudaVariants, DealSplitsToAsManyCtasAsTheChipHolds) {
  const Variant& dealt = variant("attention/register_dealt");
  const auto ctas = [&](int64_t batch, int64_t q_len, int64_t waves) {
    Configuration c = default_configuration(dealt);
    c["waves"] = waves;
    const Problem problem{.batch = batch, .q_len = q_len, .max_context = 4096};
    EXPECT_EQ(dealt.supports(problem, c, gpu()).reason, "");
    return dealt.geometry(problem, c, gpu()).launches[0].grid.x;
  };
  EXPECT_EQ(ctas(128, 1, 1), 396);  // 132 SMs hold three CTAs of four warps each
  EXPECT_EQ(ctas(128, 1, 2), 792);
  EXPECT_EQ(ctas(128, 2, 1), 264);    // two where rows of two tokens take their registers
  EXPECT_EQ(ctas(1, 1, 1), 128);      // no more than splits
  EXPECT_EQ(ctas(1000, 1, 1), 1000);  // no fewer than requests

  const auto refusal = [&](const Problem& problem) {
    return dealt.supports(problem, default_configuration(dealt), gpu()).reason;
  };
  EXPECT_EQ(refusal({.batch = 1025, .max_context = 4096}),
            "batch 1025: every CTA looks at the lengths of 1024 at most");
  EXPECT_EQ(refusal({.batch = 1000, .max_context = int64_t{1} << 28}),
            "batch 1000 and max_context 268435456: more units of 16 keys than 1073741824");
  EXPECT_EQ(refusal({.batch = 1000, .window = 2048, .max_context = int64_t{1} << 28}), "");
  EXPECT_FALSE(dealt.declared.batch_invariant);
}

TEST(CudaVariants, HaveAsManySplitsAsFillTheChipWhereAskedTo) {
  const Variant& step = variant("fused/one_launch");
  Configuration c = default_configuration(step);
  const auto with = [&](int64_t cluster, int64_t warps, int64_t warps_per_sm, int64_t fill) {
    c["cluster"] = cluster;
    c["warps"] = warps;
    c["warps_per_sm"] = warps_per_sm;
    c["fill"] = fill;
    c["splits"] = 64;
    c["depth"] = 2;
    c["ticket"] = 1;
    EXPECT_EQ(check(step, c), "");
  };
  const auto splits = [&](int64_t batch, int64_t q_len = 1) {
    const Problem problem{.batch = batch, .q_len = q_len, .max_context = 4096};
    return step.geometry(problem, c, gpu()).launches[0].grid.x;
  };
  with(1, 12, 12, 1);        // 132 SMs hold 132 CTAs
  EXPECT_EQ(splits(1), 64);  // no more than there is room for
  EXPECT_EQ(splits(12), 11);
  EXPECT_EQ(splits(128), 1);
  EXPECT_EQ(splits(1000), 1);
  EXPECT_FALSE(is_batch_invariant({&step, c}));
  with(8, 4, 8, 2);  // two CTAs on an SM, 30 clusters
  EXPECT_EQ(splits(3), 64);
  EXPECT_EQ(splits(4), 56);
  EXPECT_EQ(splits(5), 48);
  EXPECT_EQ(splits(200), 8);
  with(1, 4, 12, 1);
  EXPECT_EQ(splits(8), 49);
  EXPECT_EQ(splits(8, 2), 33);  // two tokens leave an SM eight warps
  with(1, 12, 12, 0);
  EXPECT_EQ(splits(128), 64);
  EXPECT_TRUE(is_batch_invariant({&step, c}));
}

TEST(CudaVariants, LeaveRoomForWhatClustersLoseOfAChip) {
  const auto room = [](int64_t cluster, int64_t ctas_per_sm) {
    return device::clusters_on_chip(gpu(), cluster, ctas_per_sm);
  };
  EXPECT_EQ(room(1, 1), 132);
  EXPECT_EQ(room(1, 2), 264);
  EXPECT_EQ(room(8, 1), 15);
  EXPECT_EQ(room(16, 1), 7);
  EXPECT_EQ(room(8, 2), 30);
  DeviceClass small = gpu();
  small.sm_count = 16;
  EXPECT_EQ(device::clusters_on_chip(small, 16, 1), 1);
  small.sm_count = 4;
  EXPECT_EQ(device::clusters_on_chip(small, 16, 1), 1);
}

TEST(CudaVariants, FillTheChipWithClustersThatItHoldsAtOnce) {
  const Variant& step = variant("fused/one_launch");
  Configuration c = default_configuration(step);
  for (const auto& [tunable, value] : Configuration{{"splits", 64},
                                                    {"fill", 2},
                                                    {"ticket", 1},
                                                    {"depth", 2},
                                                    {"warps", 8},
                                                    {"warps_per_sm", 8}}) {
    c[tunable] = value;
  }
  // Of a request, at batches 1 to 16: with 15 or 7 at once, 64 CTAs at most, one cluster at least.
  const std::vector<std::pair<int64_t, std::vector<int64_t>>> expected = {
      {8, {8, 7, 5, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
      {16, {4, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}};
  for (const auto& [cluster, clusters] : expected) {
    c["cluster"] = cluster;
    ASSERT_EQ(check(step, c), "");
    const int64_t room = device::clusters_on_chip(gpu(), cluster, 1);
    for (int64_t batch = 1; batch <= 16; ++batch) {
      SCOPED_TRACE("cluster " + std::to_string(cluster) + ", batch " + std::to_string(batch));
      const Problem problem{.batch = batch, .max_context = 16384};
      ASSERT_EQ(step.supports(problem, c, gpu()).reason, "");
      const Launch launch = step.geometry(problem, c, gpu()).launches[0];
      EXPECT_EQ(launch.cluster.x, cluster);
      ASSERT_EQ(launch.grid.x % cluster, 0);
      const int64_t of_request = launch.grid.x / cluster;
      EXPECT_EQ(of_request, clusters[static_cast<size_t>(batch - 1)]);
      EXPECT_TRUE(of_request == 1 || of_request * batch <= room) << of_request << " of " << room;
    }
  }
}

TEST(CudaVariants, FillTheChipByTheCtasThatTheirLaunchBoundsAllow) {
  const auto splits = [](const char* name, int64_t batch, int64_t q_len,
                         const Configuration& values) {
    const Variant& v = variant(name);
    Configuration c = default_configuration(v);
    for (const auto& [tunable, value] : values) c[tunable] = value;
    EXPECT_EQ(check(v, c), "") << name;
    const Problem problem{.batch = batch, .q_len = q_len, .max_context = 65536};
    return v.geometry(problem, c, gpu()).launches[0].grid.x;
  };
  const Configuration eight{{"splits", 64}, {"partial_bf16", 1}, {"fill", 2}};
  EXPECT_EQ(splits("attention/async_ring", 16, 8, eight), 8);
  Configuration four = eight;  // two CTAs of four computing warps on an SM
  for (const auto& [tunable, value] :
       Configuration{{"warps", 4}, {"tile_kv", 64}, {"step", 16}, {"depth", 4}}) {
    four[tunable] = value;
  }
  EXPECT_EQ(splits("attention/async_ring", 16, 8, four), 16);
  const Configuration clusters{{"splits", 64}, {"fill", 1},  {"cluster", 8},
                               {"ticket", 1},  {"warps", 8}, {"gate", 1}};
  EXPECT_EQ(splits("attention/mma", 4, 8, clusters), 24);
  EXPECT_EQ(splits("attention/mma", 4, 2, clusters), 56);  // fewer rows, twice the CTAs
  const Configuration direct{{"splits", 64}, {"fill", 1}, {"ticket", 1}, {"gate", 1}};
  Configuration c = default_configuration(variant("attention/register_direct"));
  for (const auto& [tunable, value] : direct) c[tunable] = value;
  EXPECT_EQ(variant("attention/register_direct")
                .supports({.batch = 1, .max_context = (int64_t{1} << 28) + 1}, c, gpu())
                .reason,
            "max_context 268435457 and splits that fill the chip: at most 268435456");
  EXPECT_EQ(splits("attention/register_direct", 16, 1, direct), 16);
  EXPECT_EQ(splits("attention/register_direct", 16, 2, direct), 8);
}

TEST(CudaVariants, CombineUpTo256Splits) {
  for (const char* name : {"combine/separate", "combine/gated", "combine/dealt"}) {
    const auto reason = [&](const Handoff& handoff) {
      const Variant& v = variant(name);
      return v.consumes(serving(), default_configuration(v), handoff).reason;
    };
    const auto partials = [](PartialType type, int64_t splits) {
      return Handoff{HandoffKind::kPartials, type, splits};
    };
    EXPECT_EQ(reason(partials(PartialType::kF32, 256)), "");
    EXPECT_EQ(reason(partials(PartialType::kBf16, 2)), "");
    EXPECT_EQ(reason(partials(PartialType::kF32, 257)), "takes at most 256 splits, not 257");
    EXPECT_EQ(reason({.kind = HandoffKind::kO}), "takes partials, not o");
  }
}

TEST(CudaVariants, BindWhatTheProblemSays) {
  std::vector<float> cos_sin(64);
  std::vector<uint16_t> workspace(8), tap(8);
  Buffers buffers;
  buffers.cos_sin = cos_sin.data();
  buffers.o_tap = tap.data();
  buffers.partial_type = PartialType::kBf16;
  const auto bound = [&](const char* name, const Problem& problem) {
    const Variant& v = variant(name);
    return v.bind(problem, default_configuration(v), buffers, workspace.data(), {}, 0);
  };
  Problem problem = serving();
  problem.kv_scale = 1.3;
  const Arguments rotating = bound("prepare/fused", problem);
  ASSERT_EQ(rotating.size(), sizeof(prepare_fused::Args));
  EXPECT_EQ(rotating.as<prepare_fused::Args>().prepare.cos_sin, cos_sin.data());
  EXPECT_EQ(rotating.as<prepare_fused::Args>().prepare.tokens, 16);
  EXPECT_TRUE(rotating.as<prepare_fused::Args>().prepare.scaled);

  problem.kv_scale = 1;
  problem.rope_theta = 0;
  const Arguments plain = bound("prepare/separate", problem);
  ASSERT_EQ(plain.size(), sizeof(prepare_separate::Args));
  EXPECT_EQ(plain.as<prepare_separate::Args>().prepare.cos_sin, nullptr);
  EXPECT_EQ(plain.as<prepare_separate::Args>().z, workspace.data());
  EXPECT_FALSE(plain.as<prepare_separate::Args>().prepare.scaled);

  const Arguments gated = bound("combine/gated", problem);
  ASSERT_EQ(gated.size(), sizeof(combine_gated::Args));
  EXPECT_EQ(gated.as<combine_gated::Args>().o_tap, tap.data());
  EXPECT_EQ(gated.as<combine_gated::Args>().in.q_len, 2);
  EXPECT_TRUE(gated.as<combine_gated::Args>().in.bf16_partials);
}

}  // namespace
}  // namespace muse
