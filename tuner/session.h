// SPDX-License-Identifier: Apache-2.0
// What the worker keeps between requests: the last shape's data, its candidates bound; and how it
// runs a round or a validation on it.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tuner/backend.h"
#include "tuner/protocol.h"
#include "tuner/timed_shape.h"
#include "tuner/validation_bench.h"
#include "tuner/watched_backend.h"
#include "variants/registry.h"

namespace muse::tuner {

class Session {
 public:
  /// The three must outlive it.
  Session(Backend& backend, Publisher& publisher, const Registry& registry);
  ~Session();

  /// Never throws for what a candidate does in this process.
  Reply validate(const ValidateRequest& request);
  /// Fewer than asked for where they take longer than a quarter of a second.
  Reply rounds(const RoundRequest& request);
  Reply revalidate(const RevalidateRequest& request);
  /// The default base of the target on a tiny shape.
  Reply canary();

 private:
  using Order = std::vector<int>;
  struct Turn {
    int entrant;  ///< index in the request
    const BoundChain* bound;
  };
  using Turns = std::vector<Turn>;  ///< a round

  TimedShape& shaped(const Shape& shape, uint64_t seed, bool rotating);
  /// Bound and warm, or with the fault that it has. Without `wait` what makes it warm is enqueued.
  BoundChain& ready(TimedShape& shaped, const EntrantText& entrant, int index, size_t placement,
                    bool wait);
  /// Runs the feeder to its end, and says that it was the feeder where that fails.
  void feed(const BoundChain& bound, int index);
  void warm_up(BoundChain& bound, int index, bool wait);
  profiler::Work work(const BoundChain& bound, int index, bool cold);
  RoundReply::One take(const RoundRequest& request, const BoundChain& bound, int index,
                       double& device_ns);
  size_t batch_rounds(size_t turns) const;
  RoundReply one_by_one(const RoundRequest& request, std::span<const Turns> asked);
  RoundReply back_to_back(const RoundRequest& request, std::span<const Turns> asked);
  /// What the device is given as one piece.
  struct Batch {
    size_t rounds = 0;
    profiler::ClockReading clock;  ///< while it ran
  };
  std::vector<Batch> run_batches(const RoundRequest& request, std::span<const Turns> asked);
  void start(const RoundRequest& request, std::span<const Turns> batch);
  ValidationReport judge(const Chain& chain, const Shape& shape, const ValidateOptions& options);
  ValidationReport judge_on(ValidationBench& bench, const Chain& chain,
                            const ValidateOptions& options);
  /// Made for the shape where that at hand serves another.
  ValidationBench& bench(const Shape& shape, uint64_t seed);

  std::unique_ptr<Backend> backend_;  ///< watched
  Publisher& publisher_;
  const Registry& registry_;
  std::unique_ptr<TimedShape> shaped_;
  std::unique_ptr<ValidationBench> bench_;
  std::vector<EntrantText> last_entrants_;
  std::chrono::nanoseconds turn_time_{0};  ///< of the last rounds, wall; 0 = none yet
};

}  // namespace muse::tuner
