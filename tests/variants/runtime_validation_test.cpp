// SPDX-License-Identifier: Apache-2.0
// A step by the C interface, by the C++ header and as a sweep validates it: the same bytes.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/variants/runtime_table.h"
#include "tuner/chain_run.h"
#include "variants/registry.h"

namespace muse::runtime {

const LinkedTable& linked_table() {
  static const SmallTable table;
  return table.linked;
}

namespace {

using tuner::CaseKind;
using tuner::Fill;

/// What a step writes.
struct Written {
  std::vector<uint16_t> out;
  std::vector<uint8_t> k, v;  ///< its rows of the caches, in the order of its tokens
  bool operator==(const Written&) const = default;
};

/// One case of a validation, with memory of this program's own for callers of the library.
class ValidatedCase {
 public:
  ValidatedCase(const std::string& shape, Fill fill)
      : bench_(*backend_, parse_shape(shape).value(), 1),
        stand_(bench_.stand(fill, CaseKind::kServed)) {}

  const Problem& problem() const { return bench_.shape().problem; }

  Written by_validation(const Chain& chain, bool taps) {
    Handoff partials{.kind = HandoffKind::kO};
    for (const Candidate& candidate : chain) {
      const Handoff left = candidate.variant->produces(problem(), candidate.configuration);
      if (left.kind == HandoffKind::kPartials) partials = left;
    }
    bench_.release_extras();
    const auto feed = bench_.feed(*stand_, Stage::kPrepare, partials);
    tuner::ChainRun run(bench_, bench_.arena(), chain, *stand_, CaseKind::kServed, *feed, partials);
    run.run(false, taps, [](int, int) {});
    EXPECT_FALSE(run.disturbed());  // reads the step's rows, too
    EXPECT_FALSE(run.unwritten(taps));
    return {run.read<uint16_t>("out"), run.step_k(), run.step_v()};
  }

  /// `call` runs a step on these buffers.
  template <class Call>
  Written by_caller(const Call& call) {
    const tuner::Inputs& in = stand_->data->inputs;
    const tuner::CacheImage& caches = *stand_->caches->host;
    std::vector<uint8_t> k(caches.k.get(), caches.k.get() + caches.bytes);
    std::vector<uint8_t> v(caches.v.get(), caches.v.get() + caches.bytes);
    each_row([&](size_t at, size_t bytes) {
      std::memset(&k[at], 0xFF, bytes);
      std::memset(&v[at], 0xFF, bytes);
    });
    Written written;
    written.out.assign(
        static_cast<size_t>(problem().tokens() * problem().num_q_heads * problem().head_dim),
        0xFFFF);
    const Buffers view = in.view();
    call(muse_attention_buffers{.struct_bytes = sizeof(muse_attention_buffers),
                                .qkv = view.qkv,
                                .positions = view.positions,
                                .cache_loc = view.cache_loc,
                                .seq_lens = view.seq_lens,
                                .cache_seqlens = view.cache_seqlens,
                                .cu_seqlens_q = view.cu_seqlens_q,
                                .page_table = view.page_table,
                                .k_scale = view.k_scale,
                                .v_scale = view.v_scale,
                                .cos_sin = view.cos_sin,
                                .k_cache = k.data(),
                                .v_cache = v.data(),
                                .out = written.out.data()});
    each_row([&](size_t at, size_t bytes) {
      written.k.insert(written.k.end(), &k[at], &k[at] + bytes);
      written.v.insert(written.v.end(), &v[at], &v[at] + bytes);
    });
    return written;
  }

 private:
  /// Place and size of each of the step's rows in a cache, bytes.
  template <class Body>
  void each_row(const Body& body) const {
    const auto bytes = static_cast<size_t>(problem().num_kv_heads * problem().head_dim);
    for (const int64_t row : stand_->data->inputs.cache_loc) {
      body(static_cast<size_t>(row) * bytes, bytes);
    }
  }

  std::unique_ptr<tuner::Backend> backend_ = tuner::make_host_backend();
  tuner::ValidationBench bench_;
  std::shared_ptr<tuner::Stand> stand_;
};

/// By functions of muse_attention.h alone.
void run_by_c(const Problem& of, int64_t context, const muse_attention_buffers& buffers) {
  const muse_attention_problem problem = problem_of(of);
  muse_attention_plan* plan = nullptr;
  ASSERT_EQ(muse_attention_plan_create(&problem, context, MUSE_ATTENTION_CURRENT_DEVICE, &plan),
            MUSE_ATTENTION_OK)
      << muse_attention_last_error();
  const size_t bytes = muse_attention_workspace_bytes(plan);
  const Memory workspace(bytes);
  EXPECT_EQ(muse_attention_workspace_init(plan, workspace.get(), bytes, nullptr),
            MUSE_ATTENTION_OK);
  EXPECT_EQ(muse_attention_run(plan, &buffers, workspace.get(), bytes, nullptr), MUSE_ATTENTION_OK)
      << muse_attention_last_error();
  muse_attention_plan_destroy(plan);
}

/// By the classes of muse_attention.hpp; gives the pipeline that ran.
std::string run_by_cpp(const Problem& of, int64_t context, const muse_attention_buffers& buffers) {
  AttentionPlan plan;
  EXPECT_TRUE(plan.create(problem_of(of), context)) << muse_attention_last_error();
  const Memory workspace(plan.workspace_bytes());
  EXPECT_TRUE(plan.init_workspace(workspace.get(), plan.workspace_bytes(), nullptr));
  EXPECT_TRUE(attention_decode({.plan = &plan,
                                .buffers = buffers,
                                .workspace = workspace.get(),
                                .workspace_bytes = plan.workspace_bytes()}))
      << muse_attention_last_error();
  muse_attention_explanation how;
  EXPECT_TRUE(plan.explain(how));
  return how.pipeline;
}

TEST(RuntimeValidation, CallersOfCAndOfCppGetBitwiseWhatASweepValidates) {
  struct Asked {
    std::string shape;
    int64_t context;
    const char* pipeline;
  };
  const Asked all[] = {
      {uniform_shape(1, kContext), kContext, kPhasedPipeline},
      {uniform_shape(8, kContext), kContext, kGatePipeline},
      {uniform_shape(1, kContext), MUSE_ATTENTION_ANY_CONTEXT, kGatePipeline},
      {uniform_shape(3, 600), 600, kPhasedPipeline},
      {uniform_shape(2, 96, "l3", "h8x1_d64_ps1", "w40_rope500000_kv1.3"), 96, kBasePipeline},
      {uniform_shape(1, kContext, "l1", "h16x2_d96_ps16"), kContext, kBasePipeline}};
  for (const Asked& it : all) {
    const Chain chain = Registry::global().parse_chain(it.pipeline).value();
    for (const Fill fill : {Fill::kNormal, Fill::kMeanOne}) {
      SCOPED_TRACE(it.shape + ", " + std::string(name(fill)));
      ValidatedCase data(it.shape, fill);
      const Written by_c = data.by_caller([&](const muse_attention_buffers& buffers) {
        run_by_c(data.problem(), it.context, buffers);
      });
      const Written by_cpp = data.by_caller([&](const muse_attention_buffers& buffers) {
        EXPECT_EQ(run_by_cpp(data.problem(), it.context, buffers), it.pipeline);
      });
      EXPECT_TRUE(by_c == by_cpp);
      const Written untapped = data.by_validation(chain, false);
      EXPECT_EQ(by_c.out, untapped.out);
      EXPECT_EQ(by_c.k, untapped.k);
      EXPECT_EQ(by_c.v, untapped.v);
      EXPECT_TRUE(by_c == data.by_validation(chain, tuner::sight(chain).taps));
    }
  }
}

}  // namespace
}  // namespace muse::runtime
