// SPDX-License-Identifier: Apache-2.0
// Plans of a linked table run what the reference says, to the bit what their candidates make alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/variants/runtime_table.h"
#include "variants/registry.h"

namespace muse::runtime {

const LinkedTable& linked_table() {
  static const SmallTable table;
  return table.linked;
}

namespace {

struct Asked {
  std::string shape;
  int64_t context;
  const char* pipeline;
  const char* match;
};

std::vector<Asked> shapes() {
  return {{uniform_shape(1, kContext), kContext, kPhasedPipeline, "exact"},
          {uniform_shape(8, kContext), kContext, kGatePipeline, "exact"},
          {uniform_shape(3, 600), 600, kPhasedPipeline, "near"},
          {uniform_shape(1, kContext), MUSE_ATTENTION_ANY_CONTEXT, kGatePipeline, "exact"},
          {uniform_shape(2, 96, "l3", "h8x1_d64_ps1", "w40_rope500000_kv1.3"), 96, kBasePipeline,
           "base"},
          {uniform_shape(1, kContext, "l1", "h16x2_d96_ps16"), kContext, kBasePipeline, "base"}};
}

muse_attention_explanation explained(const AttentionPlan& plan) {
  muse_attention_explanation explanation;
  EXPECT_TRUE(plan.explain(explanation)) << muse_attention_last_error();
  return explanation;
}

TEST(Runtime, RunsTheStepAsTheReferenceHasIt) {
  for (const Asked& it : shapes()) {
    Served served(it.shape, it.context);
    const muse_attention_explanation how = explained(served.plan);
    EXPECT_STREQ(how.pipeline, it.pipeline) << it.shape;
    EXPECT_STREQ(how.match, it.match) << it.shape;
    const std::vector<uint8_t> k = served.step.k_cache;
    for (int again = 0; again < 2; ++again) {
      std::fill(served.out.begin(), served.out.end(), uint16_t{0xFFFF});
      served.forget_rows();
      ASSERT_TRUE(served.run()) << muse_attention_last_error();
      EXPECT_EQ(served.failure(), "") << it.shape;
    }
    served.forget_rows();
    EXPECT_EQ(served.step.k_cache, k) << "rows of no token of the step changed: " << it.shape;
  }
}

/// Buffers of their own for what passes between a chain's candidates, one block each.
std::vector<uint16_t> out_of_candidates(Served& served, const char* pipeline) {
  const Chain chain = *Registry::global().parse_chain(pipeline);
  const Problem& problem = served.step.problem;
  const DeviceClass device = host_device_class();
  Handoff partials;
  for (size_t i = 0; i + 1 < chain.size(); ++i) {
    const Handoff passed = chain[i].variant->produces(problem, chain[i].configuration);
    if (passed.kind == HandoffKind::kPartials) partials = passed;
  }
  Buffers buffers = served.step.buffers();
  std::vector<std::unique_ptr<Memory>> blocks;
  const auto block = [&](int64_t bytes) {
    blocks.push_back(std::make_unique<Memory>(static_cast<size_t>(bytes)));
    return blocks.back()->get();
  };
  for (const BufferSpec& spec : buffer_specs(problem, 0, 0, partials)) {
    if (spec.role == BufferRole::kHandoff) set_buffer(buffers, spec.name, block(spec.bytes()));
  }
  buffers.split_capacity = partials.split_capacity;
  buffers.partial_type = partials.partial_type;
  std::vector<uint16_t> out(served.out.size(), 0xFFFF);
  buffers.out = out.data();
  for (const Candidate& candidate : chain) {
    const Variant& variant = *candidate.variant;
    const Geometry geometry = variant.geometry(problem, candidate.configuration, device);
    void* workspace = block(geometry.workspace.bytes);
    for (int launch = 0; launch < static_cast<int>(geometry.launches.size()); ++launch) {
      variant.host_entry(
          variant.bind(problem, candidate.configuration, buffers, workspace, {}, launch), launch);
    }
  }
  return out;
}

TEST(Runtime, GivesBitwiseWhatTheCandidatesMakeOneByOne) {
  for (const Asked& it : shapes()) {
    Served served(it.shape, it.context);
    ASSERT_TRUE(served.run()) << muse_attention_last_error();
    const std::vector<uint8_t> k = served.step.k_cache, v = served.step.v_cache;
    served.forget_rows();
    EXPECT_EQ(served.out, out_of_candidates(served, it.pipeline)) << it.shape;
    EXPECT_EQ(k, served.step.k_cache);
    EXPECT_EQ(v, served.step.v_cache);
  }
}

TEST(Runtime, ServesAnyLengthUpToTheCapacity) {
  Served served(uniform_shape(8, kContext), MUSE_ATTENTION_ANY_CONTEXT);
  for (const int32_t shorter : {0, 1, 100, 511}) {
    Served other(uniform_shape(8, kContext - shorter), kContext - shorter);
    // The same step in a page table as wide as the plan's capacity.
    const int64_t wide = served.step.problem.max_pages(), narrow = other.step.problem.max_pages();
    std::vector<int32_t> table(static_cast<size_t>(8 * wide), -1);
    for (int64_t b = 0; b < 8; ++b) {
      std::copy_n(other.step.page_table.begin() + b * narrow, narrow, table.begin() + b * wide);
    }
    muse_attention_buffers buffers = other.buffers();
    buffers.page_table = table.data();
    ASSERT_TRUE(attention_decode({.plan = &served.plan,
                                  .buffers = buffers,
                                  .workspace = served.workspace->get(),
                                  .workspace_bytes = served.plan.workspace_bytes()}))
        << muse_attention_last_error();
    EXPECT_EQ(other.failure(), "") << shorter;
  }
}

TEST(Runtime, TwoThreadsRunOnePlanInWorkspacesOfTheirOwn) {
  Served first(uniform_shape(2, 300, "l2", "h4x2_d64_ps16"), 300);
  Served second(uniform_shape(2, 300, "l2", "h4x2_d64_ps16"), 300);
  const std::vector<uint16_t> expected = [&] {
    EXPECT_TRUE(first.run());
    return first.out;
  }();
  std::atomic<int> wrong{0};
  const auto runs = [&](Served& data) {
    Memory workspace(first.plan.workspace_bytes());
    const size_t bytes = first.plan.workspace_bytes();
    if (!first.plan.init_workspace(workspace.get(), bytes, nullptr)) ++wrong;
    for (int i = 0; i < 50; ++i) {
      std::fill(data.out.begin(), data.out.end(), uint16_t{0xFFFF});
      const bool ran = static_cast<bool>(attention_decode({.plan = &first.plan,
                                                           .buffers = data.buffers(),
                                                           .workspace = workspace.get(),
                                                           .workspace_bytes = bytes}));
      if (!ran || data.out != expected) ++wrong;
    }
  };
  std::thread other([&] { runs(second); });
  runs(first);
  other.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Runtime, LastErrorBelongsToItsThread) {
  EXPECT_EQ(muse_attention_run(nullptr, nullptr, nullptr, 0, nullptr), MUSE_ATTENTION_INVALID);
  EXPECT_STREQ(muse_attention_last_error(), "muse_attention_run: plan is null");
  std::string there = "none";
  std::thread([&] { there = muse_attention_last_error(); }).join();
  EXPECT_EQ(there, "");
}

TEST(Runtime, MovesAndReplacesPlans) {
  Served served(uniform_shape(1, 64), 64);
  AttentionPlan plan = std::move(served.plan);
  EXPECT_EQ(served.plan.get(), nullptr);
  EXPECT_EQ(served.plan.workspace_bytes(), 0u);
  EXPECT_GE(plan.workspace_bytes(), 256u);
  muse_attention_problem problem = attention_problem();
  problem.batch = 0;
  EXPECT_FALSE(plan.create(problem));
  EXPECT_EQ(plan.get(), nullptr);
}

}  // namespace
}  // namespace muse::runtime
