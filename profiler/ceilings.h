// SPDX-License-Identifier: Apache-2.0
// What this GPU can do at best and what measuring on it costs: the floors and ceilings that times
// of real kernels are held against.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/cupti_sampler.h"
#include "profiler/device_cache.h"
#include "profiler/device_memory.h"
#include "profiler/replay.h"
#include "profiler/sampler.h"

struct CUstream_st;

namespace muse::profiler {

/// How the rows that one request reads lie in the pool.
enum class PageOrder : uint8_t {
  kContiguous,  ///< one after the other
  kStrideB,     ///< the requests take turns, as a server's decode steps leave them
  kRandom,
};
std::string_view name(PageOrder order);

/// Rows of K and of V that one decode step reads: `tokens` of each of `batch` requests, each row on
/// a page of its own in a pool of 1 GiB.
struct GatherShape {
  int batch = 1;
  int64_t tokens = 1;
  PageOrder order = PageOrder::kRandom;
  int row_bytes = 128;  ///< 128, or 64: half of each row
  int64_t bytes() const { return 2 * batch * tokens * row_bytes; }
};

/// The row of each (request, token), request-major. Throws std::invalid_argument where the pool has
/// fewer than batch * tokens rows.
std::vector<int32_t> page_table(const GatherShape& shape, int64_t pool_rows);

/// Work whose floor or ceiling is known, on one stream of the current device. Everything it gives
/// lives at most as long as this.
class CeilingWork {
 public:
  /// Allocates 1 GiB and the flush. Throws DeviceError.
  explicit CeilingWork(CUstream_st* stream);

  // Each starts cold: a read flush runs before it.
  Work null_kernel();
  Work spin(double us);
  Work read(int64_t bytes);
  Work copy(int64_t bytes);  ///< reads and writes half of `bytes` each
  Work gather(const GatherShape& shape);
  /// One graph of `kernels` null kernels in a row.
  Work null_graph(int kernels, bool programmatic);
  /// One graph of `copies` chains of four kernels that overlap by halves; none between the copies.
  Work chains(int copies);
  /// The read after the given preparation in place of the flush.
  enum class Before : uint8_t { kRead, kWrite, kWriteThenRead };
  Work read_after(int64_t bytes, Before before);
  /// The null kernel without a flush: what a sample costs the host.
  Work bare_null_kernel();

  CUstream_st* stream() const { return stream_; }

 private:
  int64_t cycles(double us) const;
  uint32_t* sink() const;

  CUstream_st* stream_;
  DeviceCache cache_;
  DeviceMemory pool_, table_;
  double cycles_per_us_ = 0;
};

struct Ceiling {
  std::string name;
  Timer timer = Timer::kEvents;
  bool traced = false;  ///< by events while CUPTI records
  int64_t bytes = 0;    ///< moved; 0 where that is not the point
  Timing time;
  double tb_per_s() const { return time.median_ns > 0 ? double(bytes) / time.median_ns / 1e3 : 0; }
};

/// Everything in one go. Times are in ns, negative where they could not be taken.
struct Ceilings {
  std::vector<Ceiling> rows;
  std::optional<TracingError> no_cupti;  ///< why rows by CUPTI are missing
  double event_step_ns = -1, cupti_step_ns = -1;
  double sample_host_ns = -1;     ///< of the host, for one CUPTI sample of a null kernel
  double tracing_cost_ns = -1;    ///< a graph of four null kernels: events traced less not traced
  double chain_stretch = -1;      ///< overlapping chains: CUPTI over events, less 1
  double dirty_l2_slowdown = -1;  ///< a read after a write flush over one after a read, less 1
  double cupti_over_events = -1;  ///< a 50 us read: CUPTI over events less its floor, less 1
  bool pipelines_by_events() const { return chain_stretch > 0.05; }
  const Ceiling* find(std::string_view name, Timer timer, bool traced = false) const;
};

struct CeilingOptions {
  int samples = 30;
  std::vector<GatherShape> gathers;
};
/// `quick`: few samples, small gathers.
CeilingOptions ceiling_options(bool quick);

/// Times by events first, while nothing traces, then by CUPTI where it starts. Throws DeviceError.
Ceilings measure_ceilings(CUstream_st* stream, const CeilingOptions& options);

}  // namespace muse::profiler
