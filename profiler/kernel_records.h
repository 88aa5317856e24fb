// SPDX-License-Identifier: Apache-2.0
// From the records of what a GPU ran to a sample. Pure: knows no tracing library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "profiler/sampler.h"

namespace muse::profiler {

/// What a memset or a copy is called among kernels.
inline constexpr const char* kMemsetName = "[memset]";
inline constexpr const char* kMemcpyName = "[memcpy]";

/// One thing that the device ran.
struct KernelRecord {
  std::string name;          ///< mangled symbol, kMemsetName or kMemcpyName
  uint64_t start_ns = 0;     ///< 0: no timestamp was taken
  uint64_t end_ns = 0;       ///< the same
  uint32_t correlation = 0;  ///< of the call that launched it; all nodes of a graph share one
  uint64_t node = 0;         ///< of the graph; 0 outside of graphs
  int64_t grid = 0;          ///< of the launch; tells launches without a node apart
  bool operator==(const KernelRecord&) const = default;
};

/// A call that launched work, and the region of its thread that it was made in.
struct TracedLaunch {
  uint32_t correlation = 0;
  uint64_t region = 0;
};

/// All that was recorded around some samples. What lies in no region was launched elsewhere.
struct Trace {
  std::vector<KernelRecord> records;
  std::vector<TracedLaunch> launches;
  size_t dropped = 0;  ///< records lost for want of room
};

/// Records by the region they were launched in. Points into the traces, and takes time in
/// proportion to them, however many regions there are.
class TraceIndex {
 public:
  struct Region {
    std::vector<const KernelRecord*> records;
    size_t launches = 0;
    size_t silent = 0;  ///< launches that left no record
  };

  TraceIndex() = default;
  explicit TraceIndex(const Trace& trace) { add(trace); }
  /// What was recorded since the last trace, whose launches must be known: a record of a launch
  /// that comes later is taken for none.
  void add(const Trace& trace);
  /// Empty where nothing was launched in it.
  const Region& operator[](uint64_t region) const;
  size_t dropped() const { return dropped_; }

 private:
  struct Launch {
    Region* region;
    bool silent = true;
  };
  std::unordered_map<uint64_t, Region> regions_;   ///< each stays where it is
  std::unordered_map<uint32_t, Launch> launches_;  ///< by correlation
  size_t dropped_ = 0;
};

/// Where one sample was launched and what it has to consist of.
struct SampleParts {
  uint64_t before = 0;                                ///< region of what ran before
  uint64_t work = 0;                                  ///< region of what is timed
  const std::vector<std::string>* kernels = nullptr;  ///< of `work`, in order of their starts
};

/// Whether everything that the sample needs has been recorded.
bool complete(const TraceIndex& index, const SampleParts& parts);

/// The sample whose work must have run exactly `kernels`, none of them before everything in its own
/// region `before` had ended. Anything else is a reason to reject it, and so is a launch of either
/// region that left no record.
Sample sample_of(const TraceIndex& index, const SampleParts& parts);

/// The step of the clock behind these durations: the distance between the values they cluster at,
/// 0 where they do not tell. Conversion between clocks blurs each value by a nanosecond or two.
double timestamp_step(std::vector<double> durations_ns);

}  // namespace muse::profiler
