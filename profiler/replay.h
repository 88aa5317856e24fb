// SPDX-License-Identifier: Apache-2.0
// Timing on a GPU: medians of samples, work captured into graphs, and the method of published
// figures.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "profiler/sampler.h"

struct CUgraphExec_st;
struct CUstream_st;

namespace muse::profiler {

/// What a number of samples of one thing say; all zero where every sample was rejected.
struct Timing {
  double median_ns = 0;
  double low_ns = 0, high_ns = 0;  ///< 10 % and 90 % of the samples lie below
  double kernel_ns = 0;            ///< median of the sums over kernels
  int samples = 0, rejected = 0;
  std::string why;  ///< of the last rejection
};

/// Takes `count` samples, after three that are thrown away.
Timing measure(Sampler& sampler, const Work& work, int count);

/// What `work` enqueues on `stream`, captured once and launched at will. Throws DeviceError.
class CapturedGraph {
 public:
  CapturedGraph(CUstream_st* stream, const std::function<void()>& work);
  ~CapturedGraph();
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  void launch();

 private:
  CUstream_st* stream_;
  CUgraphExec_st* graph_ = nullptr;
};

/// As published figures were taken: one graph replayed between two events, a read of 256 MiB before
/// each replay, the median of `count`. Throws DeviceError.
Timing time_as_peers(CUstream_st* stream, const std::function<void()>& work, int count = 20);
/// The same of a graph that is there already: `replay` launches it on the stream.
Timing time_replays_as_peers(CUstream_st* stream, const std::function<void()>& replay,
                             int count = 20);

}  // namespace muse::profiler
