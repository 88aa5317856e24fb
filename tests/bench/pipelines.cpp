// SPDX-License-Identifier: Apache-2.0
// Chosen pipelines and the base, timed as published figures of whole pipelines are.
#include <benchmark/benchmark.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "db/store.h"
#include "tests/bench/bench.h"
#include "tuner/arena.h"
#include "tuner/backend.h"
#include "tuner/compile.h"
#include "tuner/inputs.h"
#include "variants/registry.h"

#ifdef MUSE_HAS_CUDA
#include "profiler/device_kernels.h"
#include "profiler/device_memory.h"
#include "profiler/replay.h"
#endif

namespace muse::bench {

#ifdef MUSE_HAS_CUDA
namespace {

/// What both benchmarks of a shape share: the device, and the data of the last shape.
class Device {
 public:
  explicit Device(const std::string& cache)
      : backend_(tuner::make_cuda_backend({.device = 0,
                                           .timer = profiler::Timer::kEvents,
                                           .cache = cache,
                                           .toolkit = tuner::CubinCache(cache).newest_toolkit()})) {
  }
  tuner::Backend& backend() { return *backend_; }

  profiler::Timing time(const Chain& chain, const Shape& shape) {
    tuner::Arena& arena = this->arena(shape);
    Handoff partials{.kind = HandoffKind::kO};
    for (const Candidate& candidate : chain) {
      const Handoff left = candidate.variant->produces(shape.problem, candidate.configuration);
      if (left.kind == HandoffKind::kPartials) partials = left;
    }
    std::vector<std::unique_ptr<tuner::Program>> programs;
    std::vector<tuner::Program*> order;
    for (const Candidate& candidate : chain) {
      const Geometry geometry = candidate.variant->geometry(shape.problem, candidate.configuration,
                                                            backend_->device_class());
      programs.push_back(backend_->bind(candidate, shape.problem, arena.buffers(partials, false),
                                        arena.workspace(key(candidate), geometry.workspace)));
      order.push_back(programs.back().get());
    }
    const auto graph = backend_->capture(order, chain.pdl, order.size());
    return profiler::time_replays_as_peers(backend_->stream(), [&] { graph->launch(0); });
  }

 private:
  tuner::Arena& arena(const Shape& shape) {
    if (!arena_ || !(shape == shape_)) {
      arena_.reset();
      arena_ = std::make_unique<tuner::Arena>(*backend_,
                                              tuner::make_inputs(shape, 1, tuner::Fill::kNormal));
      shape_ = shape;
    }
    return *arena_;
  }

  std::unique_ptr<tuner::Backend> backend_;
  std::unique_ptr<tuner::Arena> arena_;
  Shape shape_;
};

/// One iteration that lasts as long as the median; the spread stands beside it.
void report(benchmark::State& state, const profiler::Timing& timing) {
  for (auto _ : state) state.SetIterationTime(timing.median_ns / 1e9);
  state.counters["low_us"] = timing.low_ns / 1000;
  state.counters["high_us"] = timing.high_ns / 1000;
  state.counters["samples"] = timing.samples;
  if (timing.samples == 0) state.SkipWithError(timing.why.c_str());
}

void add(const std::string& name, const std::function<profiler::Timing()>& time,
         const std::string& label = "") {
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) {
                                 report(state, time());
                                 state.SetLabel(label);
                               })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

void add_ceilings(const std::shared_ptr<Device>& device) {
  add("null_kernel", [=] {
    CUstream_st* stream = device->backend().stream();
    return profiler::time_as_peers(stream, [=] { profiler::launch_null(stream); });
  });
  add("read_512MiB", [=] {
    constexpr int64_t kBytes = int64_t{512} << 20;
    const profiler::DeviceMemory data(kBytes + 16);
    CUstream_st* stream = device->backend().stream();
    profiler::launch_write(stream, data.data(), kBytes);
    return profiler::time_as_peers(stream, [&] {
      profiler::launch_read(stream, data.data(), kBytes, data.as<uint32_t>(kBytes));
    });
  });
}

Chain chain_of(const std::string& text) {
  auto chain = Registry::global().parse_chain(text);
  if (!chain) throw std::runtime_error(chain.error());
  return *std::move(chain);
}

}  // namespace

void register_pipelines(const std::string& database, const std::string& cache) {
  const db::Store store = db::Store::open(database, db::Open::kRead);
  const auto run = store.last_run();
  if (!run) throw std::runtime_error(database + ": no run in it");
  const auto device = std::make_shared<Device>(cache);
  add_ceilings(device);
  for (const db::SelectionRow& selection : store.selections(run->id)) {
    if (selection.span != name(kWholeStep)) continue;
    const std::string problem = store.problem(selection.problem_id).key;
    const auto shape = parse_shape(problem);
    if (!shape) throw std::runtime_error(problem + ": " + shape.error());
    const std::string chosen =
        store.candidate(store.trial(selection.trial_id).key.candidate_id).key;
    for (const auto& [kind, text] : {std::pair("base", run->base), {"chosen", chosen}}) {
      const Chain chain = chain_of(text);
      add(
          kind + ("/" + problem), [=] { return device->time(chain, *shape); }, text);
    }
  }
}
#else
void register_pipelines(const std::string&, const std::string&) {
  throw std::runtime_error("--pipelines: this build has no CUDA target");
}
#endif

}  // namespace muse::bench
