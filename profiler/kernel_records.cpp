// SPDX-License-Identifier: Apache-2.0
// Turns records into a sample, or into the reason why they are none; finds the step of the clock.
#include "profiler/kernel_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace muse::profiler {
namespace {

bool belongs(const Trace& trace, const KernelRecord& record, uint64_t id) {
  const auto owner = trace.owners.find(record.correlation);
  return owner != trace.owners.end() && owner->second == id;
}

std::vector<KernelRecord> records_of(const Trace& trace, uint64_t id) {
  std::vector<KernelRecord> records;
  for (const KernelRecord& record : trace.records) {
    if (belongs(trace, record, id)) records.push_back(record);
  }
  return records;
}

/// Which launch a record is of.
auto identity(const KernelRecord& record) {
  return std::tuple(record.correlation, record.node, record.grid);
}

std::string doubled(std::vector<KernelRecord> records) {
  std::sort(records.begin(), records.end(),
            [](const KernelRecord& a, const KernelRecord& b) { return identity(a) < identity(b); });
  const auto twin = std::adjacent_find(
      records.begin(), records.end(),
      [](const KernelRecord& a, const KernelRecord& b) { return identity(a) == identity(b); });
  return twin == records.end() ? "" : fmt::format("kernel {} is recorded twice", twin->name);
}

std::string bad_time(const std::vector<KernelRecord>& records) {
  for (const KernelRecord& r : records) {
    if (r.start_ns == 0 || r.end_ns == 0) return fmt::format("kernel {} has no timestamp", r.name);
    if (r.end_ns == r.start_ns) return fmt::format("kernel {} took no time", r.name);
    if (r.end_ns < r.start_ns) {
      return fmt::format("in kernel {} time went back by {} ns", r.name, r.start_ns - r.end_ns);
    }
  }
  return "";
}

std::string wrong_sequence(const std::vector<KernelRecord>& records,
                           const std::vector<std::string>& kernels) {
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (records[i].name == kernels[i]) continue;
    return fmt::format("kernel {} is {} where {} was expected", i + 1, records[i].name, kernels[i]);
  }
  return "";
}

}  // namespace

size_t count_of(const Trace& trace, uint64_t id) {
  return static_cast<size_t>(
      std::count_if(trace.records.begin(), trace.records.end(),
                    [&](const KernelRecord& record) { return belongs(trace, record, id); }));
}

Sample sample_of(const Trace& trace, uint64_t before, uint64_t work,
                 const std::vector<std::string>& kernels) {
  const auto reject = [](std::string reason) { return Sample{.rejected = std::move(reason)}; };
  if (kernels.empty()) return reject("no kernel is expected: there is nothing to time");
  if (trace.dropped > 0) return reject(fmt::format("{} records were dropped", trace.dropped));
  std::vector<KernelRecord> records = records_of(trace, work);
  if (std::string reason = doubled(records); !reason.empty()) return reject(std::move(reason));
  if (records.size() != kernels.size()) {
    return reject(fmt::format("{} records of {} kernels", records.size(), kernels.size()));
  }
  if (std::string reason = bad_time(records); !reason.empty()) return reject(std::move(reason));
  // Programmatic launches overlap, yet start in order; equal starts keep the order of launches.
  std::sort(records.begin(), records.end(), [](const KernelRecord& a, const KernelRecord& b) {
    return std::tuple(a.start_ns, identity(a)) < std::tuple(b.start_ns, identity(b));
  });
  if (std::string reason = wrong_sequence(records, kernels); !reason.empty()) {
    return reject(std::move(reason));
  }
  uint64_t before_end = 0, end = 0;
  for (const KernelRecord& record : records_of(trace, before)) {
    before_end = std::max(before_end, record.end_ns);
  }
  const uint64_t start = records.front().start_ns;
  if (start < before_end) {
    return reject(
        fmt::format("starts {} ns before what ran before it had ended", before_end - start));
  }
  Sample sample;
  for (const KernelRecord& record : records) {
    end = std::max(end, record.end_ns);
    sample.kernel_ns += static_cast<double>(record.end_ns - record.start_ns);
  }
  sample.span_ns = static_cast<double>(end - start);
  return sample;
}

double timestamp_step(std::vector<double> durations_ns) {
  constexpr double kBlur = 3;
  std::sort(durations_ns.begin(), durations_ns.end());
  // Means of what lies together, and the smallest distance between two of them.
  std::vector<double> clusters;
  double least = 0;
  for (size_t i = 0; i < durations_ns.size();) {
    size_t end = i + 1;
    double sum = durations_ns[i];
    for (; end < durations_ns.size() && durations_ns[end] - durations_ns[end - 1] <= kBlur; ++end) {
      sum += durations_ns[end];
      const double gap = durations_ns[end] - durations_ns[end - 1];
      if (gap > 0 && (least == 0 || gap < least)) least = gap;
    }
    clusters.push_back(sum / static_cast<double>(end - i));
    i = end;
  }
  // Everything in one place: the clock is finer than the blur, or did not move.
  if (clusters.size() < 2) return least;
  double step = clusters[1] - clusters[0];
  for (size_t i = 2; i < clusters.size(); ++i) {
    step = std::min(step, clusters[i] - clusters[i - 1]);
  }
  return step;
}

}  // namespace muse::profiler
