// SPDX-License-Identifier: Apache-2.0
// Compulsory bytes of a span, and a model of launches, waves, bytes in flight and arithmetic.
#include "tuner/floor_model.h"

#include <algorithm>
#include <cmath>

namespace muse::tuner {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Keys of one request that its queries attend and that are older than the step.
struct OldKeys {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

OldKeys old_keys(const Problem& problem, int64_t context) {
  const int64_t end = context - problem.q_len;  // the position of the first query, too
  return {problem.windowed() ? std::max<int64_t>(0, end - (problem.window - 1)) : 0, end};
}

constexpr int64_t kPageEntryBytes = 4, kBf16Bytes = 2, kF32Bytes = 4;

// ---- the estimate

// Rough figures of GPUs from CC 8.0 on; they shape the order of candidates, not its unit.
constexpr double kBandwidthShare = 0.88;  ///< of the theoretical one that gathers reach
constexpr double kHalfRowShare = 0.72;    ///< of that, for rows of 64 bytes
constexpr double kLatencyNs = 1300;       ///< of a busy memory system
constexpr double kWaveNs = 2000;          ///< a CTA's start and end, with nothing in between
constexpr double kSmRowNs = 30;           ///< merging and storing one row of O
constexpr double kKernelNs = 1500;        ///< draining the last CTAs
constexpr int64_t kSmThreads = 2048, kSmCtas = 32;
constexpr int64_t kSmRegisters = 65536, kThreadRegisters = 128;
constexpr int64_t kManyRows = 32, kManyRowsRegisters = 192;  ///< O of so many rows is in registers
constexpr int64_t kReservedSmemBytes = 1024;                 ///< of each CTA
constexpr double kSmTensorFlops = 2048;  ///< a clock, f16, as mma.sync reaches it
constexpr double kSmExps = 16;           ///< a clock
constexpr double kSmWidenedBytes = 64;   ///< a clock, E4M3 to f16
constexpr double kWarpsToFill = 7;       ///< an SM's arithmetic by half
constexpr int64_t kTensorRows = 16;      ///< of a tile of the tensor cores
constexpr int64_t kLeastSplit = 64;      ///< keys; attention cuts no finer

/// What a span has to move and to compute.
struct Work {
  double bytes = 0;
  double sm_clocks = 0;      ///< of one SM that is busy all the time
  double rows = 0;           ///< of O or of a partial, that leave a CTA
  double largest_share = 0;  ///< of one CTA, where they differ
  int64_t ctas = 0;          ///< that have something to do; 0 = all
  bool half_rows = false;
  int64_t registers = kThreadRegisters;
};

double partial_bytes(const Problem& problem, const Handoff& handoff, int64_t splits) {
  if (handoff.kind != HandoffKind::kPartials) return 0;
  const int64_t element = handoff.partial_type == PartialType::kBf16 ? kBf16Bytes : kF32Bytes;
  return static_cast<double>(splits * problem.q_len * problem.num_q_heads *
                             (problem.head_dim * element + kF32Bytes));
}

/// Splits are of equal size, in whole units.
int64_t splits_of(const Handoff& handoff, int64_t keys) {
  if (handoff.kind != HandoffKind::kPartials) return 1;
  const int64_t units = ceil_div(keys, kLeastSplit);
  return ceil_div(units, ceil_div(units, handoff.split_capacity));
}

void add_attention(const Shape& shape, const Handoff& produced, const Launch& launch, Work& work) {
  const Problem& p = shape.problem;
  const int64_t groups = std::max<int64_t>(
      1, launch.grid.x * launch.grid.y * launch.grid.z /
             (p.batch * std::max<int64_t>(1, produced.split_capacity)));  // CTAs for one split
  const int64_t heads = std::max<int64_t>(1, p.num_kv_heads / groups);    // of a CTA
  const double rows = static_cast<double>(ceil_div(p.q_len * p.group(), kTensorRows) * kTensorRows);
  double all_keys = 0, largest = 0;
  for (const int64_t context : contexts(shape.lengths, p.batch, p.q_len)) {
    const int64_t keys = old_keys(p, context).count() + p.q_len;
    const int64_t splits = splits_of(produced, keys);
    all_keys += static_cast<double>(keys);
    largest = std::max(largest, static_cast<double>(keys) / static_cast<double>(splits * groups));
    work.ctas += splits * groups;
    work.rows += static_cast<double>(splits * p.q_len * p.num_q_heads);
  }
  const double row_bytes = static_cast<double>(2 * p.num_kv_heads * p.head_dim);
  work.bytes += all_keys * (row_bytes + static_cast<double>(groups * kPageEntryBytes) /
                                            static_cast<double>(p.page_size));
  work.half_rows = p.page_size == 1 && heads * p.head_dim < 128;
  if (p.q_len * p.group() >= kManyRows) work.registers = kManyRowsRegisters;
  work.largest_share = largest / all_keys;
  const double pairs = all_keys * static_cast<double>(p.num_kv_heads);
  const double scores = static_cast<double>(p.q_len * p.group());
  work.sm_clocks +=
      pairs * (4 * static_cast<double>(p.head_dim) * rows / kSmTensorFlops + scores / kSmExps +
               2 * static_cast<double>(p.head_dim) / kSmWidenedBytes);
}

Work work_of(const Shape& shape, Span span, const Handoff& taken, const Handoff& produced,
             const Launch& launch) {
  const Problem& p = shape.problem;
  const double row = static_cast<double>(p.tokens() * p.head_dim * kBf16Bytes);
  Work work;
  if (span.covers(Stage::kPrepare)) {
    work.bytes += row * static_cast<double>(p.num_q_heads + 2 * p.num_kv_heads);
  }
  if (span.covers(Stage::kAttention)) add_attention(shape, produced, launch, work);
  if (span.first == Stage::kCombine) {
    for (const int64_t context : contexts(shape.lengths, p.batch, p.q_len)) {
      const int64_t splits = splits_of(taken, old_keys(p, context).count() + p.q_len);
      work.bytes += partial_bytes(p, taken, splits);
    }
  }
  if (span.covers(Stage::kGate)) work.bytes += row * static_cast<double>(p.num_q_heads);
  return work;
}

/// CTAs of the launch that an SM holds.
int64_t resident(const Launch& launch, const Work& work, const DeviceClass& device) {
  const int64_t threads = launch.block.x * launch.block.y * launch.block.z;
  const int64_t smem = device.smem_per_block_bytes + kReservedSmemBytes;
  return std::max<int64_t>(
      1, std::min({kSmCtas, kSmThreads / threads, kSmRegisters / work.registers / threads,
                   smem / (launch.smem_bytes + kReservedSmemBytes)}));
}

/// Two limits at once; neither overlaps with the other to the end.
double both(double a, double b) { return std::hypot(a, b); }

double launch_ns(const Launch& launch, const Work& work, const DeviceClass& device,
                 const DeviceLimits& limits) {
  const auto threads = static_cast<double>(launch.block.x * launch.block.y * launch.block.z);
  const auto ctas = static_cast<double>(
      work.ctas > 0 ? work.ctas : launch.grid.x * launch.grid.y * launch.grid.z);
  const double sms = device.sm_count;
  const double slots = static_cast<double>(resident(launch, work, device)) * sms;
  const double in_flight = std::max(2.0 / 3 * static_cast<double>(launch.smem_bytes), 32 * threads);
  const double peak =
      limits.dram_bytes_per_s / 1e9 * kBandwidthShare * (work.half_rows ? kHalfRowShare : 1);
  // A share of the work done by `running` CTAs at once.
  const auto stream_ns = [&](double running, double share) {
    const double memory =
        both(work.bytes * share / peak, work.bytes * share / (running * in_flight) * kLatencyNs);
    const double busy = std::min(running, sms);
    const double clocks = both(1, kWarpsToFill / (running / busy * threads / 32));
    return both(memory, work.sm_clocks * share / busy * clocks / limits.sm_clock_hz * 1e9);
  };
  const double running = std::min(ctas, slots);
  const double waves = std::max(1.0, ctas / slots);
  const double row_ns = work.rows * kSmRowNs / std::min(running, sms);
  const double slowest = stream_ns(1, work.largest_share);
  return limits.launch_floor_ns + kKernelNs + waves * kWaveNs + row_ns +
         std::max(stream_ns(running, 1), slowest);
}

}  // namespace

int64_t compulsory_bytes(const Shape& shape, Span span) {
  const Problem& p = shape.problem;
  const int64_t head = p.tokens() * p.head_dim * kBf16Bytes;
  int64_t bytes = 0;
  if (span.covers(Stage::kPrepare)) bytes += head * (p.num_q_heads + 2 * p.num_kv_heads);
  if (span.covers(Stage::kAttention)) {
    for (const int64_t context : contexts(shape.lengths, p.batch, p.q_len)) {
      const OldKeys keys = old_keys(p, context);
      bytes += keys.count() * 2 * p.num_kv_heads * p.head_dim;
      if (keys.count() > 0) {
        const int64_t pages = (keys.end - 1) / p.page_size - keys.begin / p.page_size + 1;
        bytes += pages * kPageEntryBytes;
      }
    }
  }
  if (span.covers(Stage::kGate)) bytes += head * p.num_q_heads;
  return bytes;
}

double floor_ns(const Shape& shape, Span span, const DeviceClass& device,
                const DeviceLimits& limits) {
  if (device.host) return 0;
  const double bytes_ns =
      limits.dram_bytes_per_s > 0
          ? static_cast<double>(compulsory_bytes(shape, span)) / limits.dram_bytes_per_s * 1e9
          : 0;
  return std::max(limits.launch_floor_ns, bytes_ns);
}

double estimate_ns(const Shape& shape, const Chain& chain, const Handoff& taken,
                   const DeviceClass& device, const DeviceLimits& limits) {
  if (device.host || limits.dram_bytes_per_s <= 0 || limits.sm_clock_hz <= 0) return 0;
  double total = 0;
  Handoff left = taken;
  for (const Candidate& candidate : chain) {
    const Variant& variant = *candidate.variant;
    const Handoff produced = variant.produces(shape.problem, candidate.configuration);
    const Geometry geometry = variant.geometry(shape.problem, candidate.configuration, device);
    for (const Launch& launch : geometry.launches) {
      Work work = work_of(shape, candidate.span(), left, produced, launch);
      // Several launches share the work; which does what is not known.
      const auto launches = static_cast<double>(geometry.launches.size());
      work.bytes /= launches;
      work.sm_clocks /= launches;
      total += launch_ns(launch, work, device, limits);
    }
    left = produced;
  }
  return total;
}

}  // namespace muse::tuner
