// SPDX-License-Identifier: Apache-2.0
// Measures the floors and ceilings of a GPU by both timers, and concludes what measuring costs.
#include "profiler/ceilings.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "profiler/event_sampler.h"

namespace muse::profiler {
namespace {

constexpr int64_t kMegabyte = int64_t{1} << 20;
constexpr int64_t kReadBytes = 512 * kMegabyte;
constexpr int64_t kShortReadBytes = 200 * kMegabyte;  ///< some 50 us on an H200
constexpr int kCopies = 20;
constexpr const char* kShortRead = "read_200MiB";
constexpr const char* kNullKernel = "null_kernel";
constexpr const char* kChains = "chains_20x4_pdl";

std::string graph_name(int kernels, bool programmatic) {
  return fmt::format("null_graph_{}{}", kernels, programmatic ? "_pdl" : "");
}

std::string gather_name(const GatherShape& shape) {
  return fmt::format("gather{}_b{}_t{}_{}", shape.row_bytes, shape.batch, shape.tokens,
                     name(shape.order));
}

/// Rows by one sampler, in the order of the table.
class Pass {
 public:
  Pass(CeilingWork& work, Sampler& sampler, bool traced, int samples, std::vector<Ceiling>& rows)
      : work_(work), sampler_(sampler), traced_(traced), samples_(samples), rows_(rows) {}

  void add(const std::string& name, const Work& work, int64_t bytes = 0) {
    rows_.push_back({.name = name,
                     .timer = sampler_.timer(),
                     .traced = traced_,
                     .bytes = bytes,
                     .time = measure(sampler_, work, samples_)});
  }

  void floors() {
    add(kNullKernel, work_.null_kernel());
    add("spin_10us", work_.spin(10));
    for (const bool programmatic : {false, true}) {
      for (int kernels = programmatic ? 2 : 1; kernels <= 4; ++kernels) {
        add(graph_name(kernels, programmatic), work_.null_graph(kernels, programmatic));
      }
    }
    add(kChains, work_.chains(kCopies));
  }

  void bandwidths(const std::vector<GatherShape>& gathers) {
    add("read_512MiB", work_.read(kReadBytes), kReadBytes);
    add("copy_256MiB", work_.copy(kReadBytes), kReadBytes);
    add(kShortRead, work_.read(kShortReadBytes), kShortReadBytes);
    for (const GatherShape& shape : gathers) {
      add(gather_name(shape), work_.gather(shape), shape.bytes());
    }
  }

  void dirty_l2() {
    add("read_200MiB_after_write", work_.read_after(kShortReadBytes, CeilingWork::Before::kWrite),
        kShortReadBytes);
    add("read_200MiB_after_write_read",
        work_.read_after(kShortReadBytes, CeilingWork::Before::kWriteThenRead), kShortReadBytes);
  }

  /// What tracing costs the traced: the same by events while records are taken.
  void under_tracing() {
    add(kNullKernel, work_.null_kernel());
    add(graph_name(4, false), work_.null_graph(4, false));
    add(kChains, work_.chains(kCopies));
    add(kShortRead, work_.read(kShortReadBytes), kShortReadBytes);
  }

 private:
  CeilingWork& work_;
  Sampler& sampler_;
  bool traced_;
  int samples_;
  std::vector<Ceiling>& rows_;
};

/// The host's time for one sample of next to nothing.
double sample_host_ns(Sampler& sampler, const Work& work, int count) {
  measure(sampler, work, 1);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) sampler.take(work);
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / count;
}

double median_of(const Ceilings& c, std::string_view name, Timer timer, bool traced = false) {
  const Ceiling* row = c.find(name, timer, traced);
  return row && row->time.samples > 0 ? row->time.median_ns : -1;
}

void conclude(Ceilings& c) {
  const std::string graph = graph_name(4, false);
  const double plain = median_of(c, graph, Timer::kEvents);
  const double traced = median_of(c, graph, Timer::kEvents, true);
  if (plain > 0 && traced > 0) c.tracing_cost_ns = traced - plain;
  // What events add to every time.
  const double floor =
      median_of(c, kNullKernel, Timer::kEvents) - median_of(c, kNullKernel, Timer::kCupti);
  const double chain_events = median_of(c, kChains, Timer::kEvents);
  const double chain_cupti = median_of(c, kChains, Timer::kCupti);
  if (chain_events > 0 && chain_cupti > 0)
    c.chain_stretch = chain_cupti / (chain_events - floor) - 1;
  const Timer timer = c.no_cupti ? Timer::kEvents : Timer::kCupti;
  const double clean = median_of(c, kShortRead, timer);
  const double dirty = median_of(c, "read_200MiB_after_write", timer);
  if (clean > 0 && dirty > 0) c.dirty_l2_slowdown = dirty / clean - 1;
  const double read_events = median_of(c, kShortRead, Timer::kEvents);
  const double read_cupti = median_of(c, kShortRead, Timer::kCupti);
  if (read_events > 0 && read_cupti > 0)
    c.cupti_over_events = read_cupti / (read_events - floor) - 1;
}

}  // namespace

const Ceiling* Ceilings::find(std::string_view name, Timer timer, bool traced) const {
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const Ceiling& c) {
    return c.name == name && c.timer == timer && c.traced == traced;
  });
  return row == rows.end() ? nullptr : &*row;
}

CeilingOptions ceiling_options(bool quick) {
  CeilingOptions options{.samples = quick ? 10 : 30, .gathers = {}};
  std::vector<std::pair<int, int64_t>> sizes{{8, 4096}, {32, 4096}};
  if (!quick) sizes.insert(sizes.end(), {{128, 4096}, {8, 32768}, {32, 32768}, {128, 32768}});
  for (const auto& [batch, tokens] : sizes) {
    for (const PageOrder order :
         {PageOrder::kContiguous, PageOrder::kStrideB, PageOrder::kRandom}) {
      for (const int row_bytes : {128, 64}) {
        options.gathers.push_back(
            {.batch = batch, .tokens = tokens, .order = order, .row_bytes = row_bytes});
      }
    }
  }
  return options;
}

Ceilings measure_ceilings(CUstream_st* stream, const CeilingOptions& options) {
  Ceilings result;
  CeilingWork work(stream);
  const std::unique_ptr<Sampler> events = make_event_sampler(stream);
  result.event_step_ns = events->step_ns();
  Pass untraced(work, *events, false, options.samples, result.rows);
  untraced.floors();
  untraced.bandwidths(options.gathers);
  result.rows.push_back(
      {.name = "peers_null_kernel",
       .timer = Timer::kEvents,
       .time = time_as_peers(stream, work.bare_null_kernel().run, options.samples)});
  result.rows.push_back(
      {.name = "peers_read_512MiB",
       .timer = Timer::kEvents,
       .bytes = kReadBytes,
       .time = time_as_peers(stream, work.read(kReadBytes).run, options.samples)});
  auto cupti = make_cupti_sampler(stream);
  if (!cupti) {
    result.no_cupti = cupti.error();
    untraced.dirty_l2();
  } else {
    Sampler& sampler = **cupti;
    result.cupti_step_ns = sampler.step_ns();
    Pass traced(work, sampler, false, options.samples, result.rows);
    traced.floors();
    traced.bandwidths(options.gathers);
    traced.dirty_l2();
    Pass(work, *events, true, options.samples, result.rows).under_tracing();
    result.sample_host_ns = sample_host_ns(sampler, work.bare_null_kernel(), options.samples);
  }
  conclude(result);
  return result;
}

}  // namespace muse::profiler
