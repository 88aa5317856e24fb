// SPDX-License-Identifier: Apache-2.0
// Plans for whatever 64-bit integers may be asked: a status, and a plan only where the chosen
// candidates take the problem.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "tests/variants/runtime_table.h"
#include "variants/lengths.h"
#include "variants/registry.h"

namespace muse::runtime {

const LinkedTable& linked_table() {
  static const SmallTable table;
  return table.linked;
}

namespace {

constexpr int kQueries = 100000;

/// Numbers of every size, of either sign; often those at the edges, and small ones that are legal.
class Numbers {
 public:
  int64_t any() {
    switch (random_() % 8) {
      case 0:
        return static_cast<int64_t>(random_());
      case 1:
        return static_cast<int64_t>(random_() >> (random_() % 64));
      case 2:
        return -static_cast<int64_t>(random_() % 3);
      case 3:
        return std::numeric_limits<int64_t>::max() - static_cast<int64_t>(random_() % 3);
      case 4:
        return std::numeric_limits<int64_t>::min() + static_cast<int64_t>(random_() % 3);
      default:
        return int64_t{1} << (random_() % 32);
    }
  }
  int64_t legal(int most_bits) { return int64_t{1} << (random_() % (most_bits + 1)); }
  bool one_in(uint64_t n) { return random_() % n == 0; }

 private:
  std::mt19937_64 random_{1};
};

/// Mostly legal, with here and there a field that may be anything: every check is met, and what
/// lies behind them.
muse_attention_problem some_problem(Numbers& numbers) {
  muse_attention_problem problem = attention_problem();
  const auto set = [&](int64_t& field, int most_bits) {
    field = numbers.one_in(24) ? numbers.any() : numbers.legal(most_bits);
  };
  set(problem.batch, 16);
  set(problem.q_len, 6);
  set(problem.num_kv_heads, 4);
  set(problem.head_dim, 10);
  set(problem.page_size, 10);
  set(problem.max_pages, 18);
  problem.num_q_heads = numbers.one_in(24) ? numbers.any() : 16;
  problem.window = numbers.one_in(2) ? 0 : numbers.legal(12);
  if (numbers.one_in(24)) problem.window = numbers.any();
  problem.rope_theta = numbers.one_in(2) ? 0 : 500000;
  problem.scaled = numbers.one_in(2) ? 1 : 0;
  return problem;
}

Problem as_problem(const muse_attention_problem& asked) {
  return {.batch = asked.batch,
          .q_len = asked.q_len,
          .num_q_heads = asked.num_q_heads,
          .num_kv_heads = asked.num_kv_heads,
          .head_dim = asked.head_dim,
          .page_size = asked.page_size,
          .window = asked.window,
          .rope_theta = asked.rope_theta,
          .kv_scale = asked.scaled != 0 ? 2.0 : 1.0,
          .max_context = asked.max_pages * asked.page_size};
}

bool takes(const char* pipeline, const Problem& problem) {
  const Chain chain = *Registry::global().parse_chain(pipeline);
  const DeviceClass device = host_device_class();
  for (const Candidate& candidate : chain) {
    if (!candidate.variant->supports(problem, candidate.configuration, device).ok()) return false;
  }
  return joins(problem, chain).ok();
}

TEST(RuntimeProperty, AnyNumbersGiveAStatusAndPlansOnlyWhatIsSupported) {
  Numbers numbers;
  int made = 0, unsupported = 0;
  for (int i = 0; i < kQueries; ++i) {
    const muse_attention_problem asked = some_problem(numbers);
    const int64_t context = numbers.one_in(2) ? 0 : numbers.any();
    const int device = numbers.one_in(2) ? 0 : static_cast<int>(numbers.any());
    AttentionPlan plan;
    const Status status = plan.create(asked, context, device);
    switch (status.code) {
      case MUSE_ATTENTION_OK: {
        muse_attention_explanation how;
        ASSERT_TRUE(plan.explain(how));
        if (made++ % 16 == 0) {
          ASSERT_EQ(check(as_problem(asked)), "");
          ASSERT_TRUE(takes(how.pipeline, as_problem(asked))) << how.pipeline;
        }
        ASSERT_GE(plan.workspace_bytes(), 256u);
        break;
      }
      case MUSE_ATTENTION_UNSUPPORTED:
        if (unsupported++ % 16 == 0) {
          ASSERT_FALSE(takes(kBasePipeline, as_problem(asked)));
        }
        break;
      default:
        ASSERT_EQ(status.code, MUSE_ATTENTION_INVALID) << muse_attention_last_error();
    }
  }
  EXPECT_GT(made, kQueries / 20);
  EXPECT_GT(unsupported, kQueries / 100);
  EXPECT_LT(made + unsupported, kQueries * 19 / 20);
}

}  // namespace
}  // namespace muse::runtime
