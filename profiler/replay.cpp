// SPDX-License-Identifier: Apache-2.0
// Takes medians of samples, captures work into graphs, replays graphs by the published method.
#include "profiler/replay.h"

#include <cuda_runtime_api.h>

#include "profiler/device_error.h"
#include "profiler/device_kernels.h"
#include "profiler/device_memory.h"
#include "profiler/event_sampler.h"
#include "profiler/statistics.h"

namespace muse::profiler {

Timing measure(Sampler& sampler, const Work& work, int count) {
  constexpr int kWarmUp = 3;
  Timing timing;
  std::vector<double> spans, kernels;
  for (int i = 0; i < kWarmUp + count; ++i) {
    Sample sample = sampler.take(work);
    if (i < kWarmUp) continue;
    if (!sample.rejected.empty()) {
      ++timing.rejected;
      timing.why = std::move(sample.rejected);
      continue;
    }
    spans.push_back(sample.span_ns);
    kernels.push_back(sample.kernel_ns);
  }
  timing.samples = static_cast<int>(spans.size());
  if (spans.empty()) return timing;
  timing.median_ns = median(spans);
  timing.low_ns = quantile(spans, 0.1);
  timing.high_ns = quantile(spans, 0.9);
  timing.kernel_ns = median(kernels);
  return timing;
}

CapturedGraph::CapturedGraph(CUstream_st* stream, const std::function<void()>& work)
    : stream_(stream) {
  // Relaxed: the first launch of a kernel loads its code, which the other modes forbid.
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed),
             "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    // The stream must come out of the capture, or nothing else can be enqueued on it.
    cudaStreamEndCapture(stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  const cudaError_t error = cudaGraphInstantiate(&graph_, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(error, "cudaGraphInstantiate");
}

CapturedGraph::~CapturedGraph() { cudaGraphExecDestroy(graph_); }

void CapturedGraph::launch() { check_cuda(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch"); }

Timing time_as_peers(CUstream_st* stream, const std::function<void()>& work, int count) {
  CapturedGraph graph(stream, work);
  return time_replays_as_peers(
      stream, [&] { graph.launch(); }, count);
}

Timing time_replays_as_peers(CUstream_st* stream, const std::function<void()>& replay, int count) {
  constexpr int64_t kFlushBytes = int64_t{256} << 20;
  const DeviceMemory flushed(kFlushBytes + 16);
  launch_write(stream, flushed.data(), kFlushBytes);
  const std::unique_ptr<Sampler> events = make_event_sampler(stream);
  return measure(*events,
                 {.before =
                      [&] {
                        launch_read(stream, flushed.data(), kFlushBytes,
                                    flushed.as<uint32_t>(kFlushBytes));
                      },
                  .run = replay,
                  .kernels = {}},
                 count);
}

}  // namespace muse::profiler
