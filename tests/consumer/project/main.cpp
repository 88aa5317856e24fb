// SPDX-License-Identifier: Apache-2.0
// muse::attention_decode() against the float64 reference, on shapes named as arguments.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <muse_attention.hpp>
#include <vector>

#include "variants/reference/step.h"

namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

bool fail(const char* what, const char* why) {
  std::fprintf(stderr, "%s: %s\n", what, why);
  return false;
}

muse_attention_problem problem_of(const muse::Problem& p) {
  muse_attention_problem problem = muse::attention_problem();
  problem.batch = p.batch;
  problem.q_len = p.q_len;
  problem.max_pages = p.max_pages();
  problem.window = p.window;
  problem.rope_theta = p.rope_theta;
  return problem;
}

muse::DecodeArgs arguments(muse::reference::Step& step, std::vector<uint16_t>& out) {
  muse::DecodeArgs args;
  const muse::Buffers in = step.buffers();
  args.buffers.qkv = in.qkv;
  args.buffers.positions = in.positions;
  args.buffers.cache_loc = in.cache_loc;
  args.buffers.seq_lens = in.seq_lens;
  args.buffers.cache_seqlens = in.cache_seqlens;
  args.buffers.cu_seqlens_q = in.cu_seqlens_q;
  args.buffers.page_table = in.page_table;
  args.buffers.k_scale = in.k_scale;
  args.buffers.v_scale = in.v_scale;
  args.buffers.cos_sin = in.cos_sin;
  args.buffers.k_cache = in.k_cache;
  args.buffers.v_cache = in.v_cache;
  args.buffers.out = out.data();
  return args;
}

std::vector<uint8_t> rows_of(const muse::reference::Step& step, const std::vector<uint8_t>& cache) {
  const int64_t width = step.problem.num_kv_heads * step.problem.head_dim;
  std::vector<uint8_t> rows;
  for (const int64_t row : step.cache_loc) {
    rows.insert(rows.end(), cache.begin() + row * width, cache.begin() + (row + 1) * width);
  }
  return rows;
}

bool right(const char* shape) {
  std::string reason;
  auto step = muse::reference::make_step(shape, int64_t{1} << 28, 7, reason);
  if (!step) return fail(shape, reason.c_str());
  muse::reference::Step copy = *step;
  const muse::reference::ExpectedStep expected = expected_step(copy);

  muse::AttentionPlan plan;
  if (const auto status = plan.create(problem_of(step->problem), step->mean_context); !status) {
    return fail("plan", status.message());
  }
  muse_attention_explanation why = {};
  if (!plan.explain(why)) return fail("explain", muse_attention_last_error());
  std::printf("%s: match=%s pipeline=%s\n", shape, why.match, why.pipeline);

  const size_t bytes = (plan.workspace_bytes() + 255) / 256 * 256;
  const std::unique_ptr<void, Free> workspace(std::aligned_alloc(256, bytes));
  if (const auto status = plan.init_workspace(workspace.get(), bytes, nullptr); !status) {
    return fail("workspace", status.message());
  }
  std::vector<uint16_t> out(static_cast<size_t>(step->problem.tokens() * step->problem.num_q_heads *
                                                step->problem.head_dim),
                            0xFFFF);
  muse::DecodeArgs args = arguments(*step, out);
  args.plan = &plan;
  args.workspace = workspace.get();
  args.workspace_bytes = bytes;
  if (const auto status = muse::attention_decode(args); !status) {
    return fail("attention_decode", status.message());
  }
  const auto verdict = judge_step(*step, expected, out.data(), rows_of(*step, step->k_cache).data(),
                                  rows_of(*step, step->v_cache).data());
  std::printf("relRMS %g, cosine %g\n", verdict.rel_rms, verdict.cosine);
  return verdict.failure.empty() || fail(shape, verdict.failure.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  bool good = argc > 1;
  for (int i = 1; i < argc; ++i) good &= right(argv[i]);
  return good ? 0 : 1;
}
