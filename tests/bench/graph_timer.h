// SPDX-License-Identifier: Apache-2.0
// Chains of candidates on a GPU, timed as published figures are: one graph, events, a read of 256
// MiB before each replay, the median of 20.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "profiler/replay.h"
#include "tuner/arena.h"
#include "tuner/backend.h"
#include "variants/lengths.h"

namespace muse::bench {

/// The device, and the data of the last shape.
class GraphTimer {
 public:
  /// Cubins come from `cache`. Throws tuner::TargetError where there is no GPU.
  explicit GraphTimer(const std::string& cache);

  tuner::Backend& backend() { return *backend_; }
  /// Throws tuner::TrialError where a candidate has no cubin or does not run.
  profiler::Timing time(const Chain& chain, const Shape& shape);
  /// Runs the chain once, so that what its stages hand on is there.
  void run(const Chain& chain, const Shape& shape);
  profiler::Timing time(const std::function<void()>& work);
  profiler::Timing null_kernel();
  profiler::Timing read_512mib();
  tuner::Arena& arena(const Shape& shape);

 private:
  /// Hands the chain's graph to `use`.
  void with_graph(const Chain& chain, const Shape& shape,
                  const std::function<void(tuner::Program&)>& use);

  std::unique_ptr<tuner::Backend> backend_;
  std::unique_ptr<tuner::Arena> arena_;
  Shape shape_;
};

}  // namespace muse::bench
