// SPDX-License-Identifier: Apache-2.0
// Binds chains, captures them and times the replays.
#include "tests/bench/graph_timer.h"

#include <vector>

#include "profiler/device_kernels.h"
#include "profiler/device_memory.h"
#include "tuner/compile.h"
#include "tuner/timed_data.h"

namespace muse::bench {

GraphTimer::GraphTimer(const std::string& cache)
    : backend_(tuner::make_cuda_backend({.device = 0,
                                         .timer = profiler::Timer::kEvents,
                                         .cache = cache,
                                         .toolkit = tuner::CubinCache(cache).newest_toolkit()})) {}

tuner::Arena& GraphTimer::arena(const Shape& shape) {
  if (!arena_ || !(shape == shape_)) {
    arena_.reset();  // two at once need not fit
    arena_ = tuner::make_timed_arena(*backend_, shape, 1);
    shape_ = shape;
  }
  return *arena_;
}

void GraphTimer::with_graph(const Chain& chain, const Shape& shape,
                            const std::function<void(tuner::Program&)>& use) {
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
  use(*graph);
  backend_->synchronize();
}

profiler::Timing GraphTimer::time(const Chain& chain, const Shape& shape) {
  profiler::Timing timing;
  with_graph(chain, shape, [&](tuner::Program& graph) {
    timing = profiler::time_replays_as_peers(backend_->stream(), [&] { graph.launch(0); });
  });
  return timing;
}

void GraphTimer::run(const Chain& chain, const Shape& shape) {
  with_graph(chain, shape, [](tuner::Program& graph) { graph.launch(0); });
}

profiler::Timing GraphTimer::time(const std::function<void()>& work) {
  return profiler::time_as_peers(backend_->stream(), work);
}

profiler::Timing GraphTimer::null_kernel() {
  return time([this] { profiler::launch_null(backend_->stream()); });
}

profiler::Timing GraphTimer::read_512mib() {
  constexpr int64_t kBytes = int64_t{512} << 20;
  const profiler::DeviceMemory data(kBytes + 16);
  profiler::launch_write(backend_->stream(), data.data(), kBytes);
  return time([&] {
    profiler::launch_read(backend_->stream(), data.data(), kBytes, data.as<uint32_t>(kBytes));
  });
}

}  // namespace muse::bench
