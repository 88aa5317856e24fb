// SPDX-License-Identifier: Apache-2.0
// Kernels compiled ahead of time beside those of a sweep: the same pipelines on the same data, each
// as one graph, in turns, timed as published figures are.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/bench/bench.h"

#if defined(MUSE_HAS_CUDA)
#include "tests/bench/graph_timer.h"
#include "tests/device/aot/gpu_table.h"
#include "tests/fakes/asked.h"
#include "variants/lengths.h"
#endif

namespace muse::bench {

#if defined(MUSE_HAS_CUDA)
namespace {

constexpr int64_t kContext = 32768;

/// A run through the C interface as a graph.
class RunGraph {
 public:
  RunGraph(const AttentionPlan& plan, const muse_attention_buffers& buffers, void* workspace,
           cudaStream_t stream) {
    aot::require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const muse_attention_status status =
        muse_attention_run(plan.get(), &buffers, workspace, plan.workspace_bytes(), stream);
    aot::require(cudaStreamEndCapture(stream, &graph_));
    aot::require(Status{status});
    aot::require(cudaGraphInstantiate(&exec_, graph_, 0));
  }
  ~RunGraph() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  RunGraph(const RunGraph&) = delete;
  RunGraph& operator=(const RunGraph&) = delete;
  cudaGraphExec_t get() const { return exec_; }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

muse_attention_buffers buffers_of(const Buffers& b) {
  return {.struct_bytes = sizeof(muse_attention_buffers),
          .qkv = b.qkv,
          .positions = b.positions,
          .cache_loc = b.cache_loc,
          .seq_lens = b.seq_lens,
          .cache_seqlens = b.cache_seqlens,
          .cu_seqlens_q = b.cu_seqlens_q,
          .page_table = b.page_table,
          .k_scale = b.k_scale,
          .v_scale = b.v_scale,
          .cos_sin = b.cos_sin,
          .k_cache = b.k_cache,
          .v_cache = b.v_cache,
          .out = b.out};
}

/// Bytes that a step writes.
struct Piece {
  std::string buffer;  ///< BufferSpec name
  int64_t offset, bytes;
};

/// `out`, and the step's rows of both caches.
std::vector<Piece> written_by_a_step(const tuner::Arena& arena, const Problem& problem) {
  std::vector<Piece> pieces{{"out", 0, arena.area("out").bytes}};
  const std::vector<uint8_t> bytes = arena.download("cache_loc");
  std::vector<int64_t> rows(bytes.size() / sizeof(int64_t));
  std::memcpy(rows.data(), bytes.data(), rows.size() * sizeof(int64_t));
  const int64_t row_bytes = problem.num_kv_heads * problem.head_dim;
  for (const char* cache : {"k_cache", "v_cache"}) {
    for (const int64_t row : rows) pieces.push_back({cache, row * row_bytes, row_bytes});
  }
  return pieces;
}

/// What `run` leaves in the pieces, which are poison before.
template <class Run>
std::vector<std::vector<uint8_t>> outputs(tuner::Backend& backend, const tuner::Arena& arena,
                                          const std::vector<Piece>& pieces, const Run& run) {
  for (const Piece& piece : pieces) {
    auto* buffer = static_cast<uint8_t*>(arena.area(piece.buffer).address);
    backend.fill(buffer + piece.offset, tuner::kPoisonByte, piece.bytes);
  }
  backend.synchronize();
  run();
  backend.synchronize();
  std::vector<std::vector<uint8_t>> all;
  for (const Piece& piece : pieces) {
    all.emplace_back(static_cast<size_t>(piece.bytes));
    arena.download(piece.buffer, piece.offset, all.back().data(), piece.bytes);
  }
  return all;
}

/// Throws where kernels compiled ahead give other bytes than the sweep's.
void require_equal(const std::vector<Piece>& pieces, const std::vector<std::vector<uint8_t>>& jit,
                   const std::vector<std::vector<uint8_t>>& ahead) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (jit[i] == ahead[i]) continue;
    const auto at = std::mismatch(jit[i].begin(), jit[i].end(), ahead[i].begin()).first;
    throw std::runtime_error("not what the sweep's kernels give: " + pieces[i].buffer +
                             " differs at byte " +
                             std::to_string(pieces[i].offset + (at - jit[i].begin())));
  }
}

/// The time is that of the kernels compiled ahead; `jit_us` and `ratio` (ahead over JIT) beside it.
void beside_jit(benchmark::State& state, const std::string& cache, size_t number) try {
  GraphTimer timer(cache);
  cudaStream_t stream = timer.backend().stream();
  const Shape shape = parse_shape(fakes::uniform_shape(int64_t{1} << number, kContext)).value();
  const Chain chain =
      Registry::global().parse_chain(aot::GpuTable::shared().keys()[number]).value();
  AttentionPlan plan;
  aot::require(plan.create(fakes::problem_of(shape.problem)));
  muse_attention_explanation how;
  aot::require(plan.explain(how));
  if (how.pipeline != key(chain)) {
    throw std::runtime_error(std::string("the plan is another pipeline's: ") + how.pipeline);
  }
  const aot::Block workspace(plan.workspace_bytes());
  aot::require(plan.init_workspace(workspace.as<void>(), plan.workspace_bytes(), stream));
  const RunGraph ahead(plan,
                       buffers_of(timer.arena(shape).buffers({.kind = HandoffKind::kO}, false)),
                       workspace.as<void>(), stream);
  const std::vector<Piece> pieces = written_by_a_step(timer.arena(shape), shape.problem);
  require_equal(
      pieces,
      outputs(timer.backend(), timer.arena(shape), pieces, [&] { timer.run(chain, shape); }),
      outputs(timer.backend(), timer.arena(shape), pieces,
              [&] { aot::require(cudaGraphLaunch(ahead.get(), stream)); }));
  std::vector<double> ratios;
  double jit_us = 0;
  for (auto _ : state) {
    jit_us = timer.time(chain, shape).median_ns / 1e3;
    const double ahead_us = profiler::time_replays_as_peers(
                                stream, [&] { aot::require(cudaGraphLaunch(ahead.get(), stream)); })
                                .median_ns /
                            1e3;
    ratios.push_back(ahead_us / jit_us);
    state.SetIterationTime(ahead_us * 1e-6);
  }
  std::sort(ratios.begin(), ratios.end());
  state.counters["jit_us"] = jit_us;
  state.counters["ratio"] = ratios[ratios.size() / 2];
} catch (const std::exception& error) {
  state.SkipWithError(error.what());
}

}  // namespace

void register_aot(const std::string& cache) {
  const auto device = cuda_device_class(0);
  if (!device || device->cc != 90) throw std::runtime_error("--aot needs a Hopper GPU");
  const std::vector<std::string>& keys = aot::GpuTable::shared().keys();
  for (size_t i = 0; i < keys.size(); ++i) {
    benchmark::RegisterBenchmark(
        ("aot/" + keys[i]).c_str(),
        [cache, i](benchmark::State& state) { beside_jit(state, cache, i); })
        ->UseManualTime()
        ->Iterations(9)
        ->Unit(benchmark::kMicrosecond);
  }
}

#else
void register_aot(const std::string&) {
  throw std::runtime_error("--aot: built without the CUDA target");
}
#endif

}  // namespace muse::bench
