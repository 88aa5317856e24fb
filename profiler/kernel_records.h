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

/// All that was recorded around one sample.
struct Trace {
  std::vector<KernelRecord> records;
  std::unordered_map<uint32_t, uint64_t> owners;  ///< correlation -> id of the region it lies in
  size_t dropped = 0;                             ///< records lost for want of room
};

/// How many records belong to the region `id`.
size_t count_of(const Trace& trace, uint64_t id);

/// The sample of region `work`, which must have run exactly `kernels` in order of their starts,
/// none of them before everything in region `before` had ended. Anything else is a reason to
/// reject.
Sample sample_of(const Trace& trace, uint64_t before, uint64_t work,
                 const std::vector<std::string>& kernels);

/// The step of the clock behind these durations: the distance between the values they cluster at,
/// 0 where they do not tell. Conversion between clocks blurs each value by a nanosecond or two.
double timestamp_step(std::vector<double> durations_ns);

}  // namespace muse::profiler
