// SPDX-License-Identifier: Apache-2.0
// The gather's kernel on the emulator: it reads the rows that attention must read, each once.
#include <gtest/gtest.h>

#include "tests/bench/gather_emulated.h"
#include "tuner/inputs.h"

namespace muse::bench {
namespace {

TEST(Gather, ReadsTheRowsOfItsPiecesOnceAndNoOther) {
  for (const char* text :
       {"b3_l1_h16x2_d64_ps1_w100_rope500000_kv1_t700_outlier30_random_s1_pool0",
        "b2_l1_h16x2_d64_ps16_w0_rope0_kv1_t333_uniform_random_s1_pool0",
        "b1_l1_h16x2_d64_ps64_w2_rope500000_kv1_t129_uniform_reversed_s1_pool0"}) {
    const auto shape = parse_shape(text);
    ASSERT_TRUE(shape) << shape.error();
    const tuner::Inputs inputs = tuner::make_inputs(*shape, 1, tuner::Fill::kNormal);
    const Problem& p = shape->problem;
    const std::vector<TokenRange> ranges =
        attended(contexts(shape->lengths, p.batch, p.q_len), p.q_len, p.window);
    const Buffers view = inputs.view();
    const GatherCaches caches{view.k_cache, view.v_cache, view.page_table, p.max_pages(),
                              p.page_size};
    const uint32_t expected = sum_of_rows(inputs.page_table, caches, inputs.k_cache, ranges) +
                              sum_of_rows(inputs.page_table, caches, inputs.v_cache, ranges);
    for (const GatherGeometry& geometry : gather_geometries()) {
      const auto pieces = cut(ranges, 20 * geometry.waves, rows_at_once(geometry));
      EXPECT_EQ(emulated_sum(geometry, caches, pieces), expected)
          << text << " unroll " << geometry.unroll << " threads " << geometry.threads;
    }
  }
}

}  // namespace
}  // namespace muse::bench
