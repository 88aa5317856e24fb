// SPDX-License-Identifier: Apache-2.0
// Turns records into a sample, or into the reason why they are none; finds the step of the clock.
#include "profiler/kernel_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace muse::profiler {
namespace {

using Records = std::vector<const KernelRecord*>;

/// Which launch a record is of.
auto identity(const KernelRecord* record) {
  return std::tuple(record->correlation, record->node, record->grid);
}

std::string doubled(Records records) {
  std::sort(records.begin(), records.end(),
            [](const KernelRecord* a, const KernelRecord* b) { return identity(a) < identity(b); });
  const auto twin = std::adjacent_find(
      records.begin(), records.end(),
      [](const KernelRecord* a, const KernelRecord* b) { return identity(a) == identity(b); });
  return twin == records.end() ? "" : fmt::format("kernel {} is recorded twice", (*twin)->name);
}

std::string bad_time(const Records& records) {
  for (const KernelRecord* r : records) {
    if (r->start_ns == 0 || r->end_ns == 0) {
      return fmt::format("kernel {} has no timestamp", r->name);
    }
    if (r->end_ns == r->start_ns) return fmt::format("kernel {} took no time", r->name);
    if (r->end_ns < r->start_ns) {
      return fmt::format("in kernel {} time went back by {} ns", r->name, r->start_ns - r->end_ns);
    }
  }
  return "";
}

std::string wrong_sequence(const Records& records, const std::vector<std::string>& kernels) {
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (records[i]->name == kernels[i]) continue;
    return fmt::format("kernel {} is {} where {} was expected", i + 1, records[i]->name,
                       kernels[i]);
  }
  return "";
}

std::string fault_before(const TraceIndex::Region& before) {
  if (before.silent > 0) {
    return fmt::format("{} of {} launches of what ran before left no record", before.silent,
                       before.launches);
  }
  std::string reason = doubled(before.records);
  if (reason.empty()) reason = bad_time(before.records);
  return reason.empty() ? "" : "of what ran before, " + reason;
}

/// `records` sorted by their starts once they are known to be good.
std::string fault_of_work(const TraceIndex::Region& work, Records& records,
                          const std::vector<std::string>& kernels) {
  if (std::string reason = doubled(records); !reason.empty()) return reason;
  if (records.size() != kernels.size()) {
    return fmt::format("{} records of {} kernels", records.size(), kernels.size());
  }
  if (work.silent > 0) {
    return fmt::format("{} of {} launches left no record", work.silent, work.launches);
  }
  if (std::string reason = bad_time(records); !reason.empty()) return reason;
  // Programmatic launches overlap, yet start in order; equal starts keep the order of launches.
  std::sort(records.begin(), records.end(), [](const KernelRecord* a, const KernelRecord* b) {
    return std::tuple(a->start_ns, identity(a)) < std::tuple(b->start_ns, identity(b));
  });
  return wrong_sequence(records, kernels);
}

}  // namespace

void TraceIndex::add(const Trace& trace) {
  dropped_ += trace.dropped;
  for (const TracedLaunch& launch : trace.launches) {
    Region& region = regions_[launch.region];
    if (!launches_.emplace(launch.correlation, Launch{&region}).second) continue;
    ++region.launches;
    ++region.silent;
  }
  for (const KernelRecord& record : trace.records) {
    const auto launch = launches_.find(record.correlation);
    if (launch == launches_.end()) continue;
    Region& region = *launch->second.region;
    region.records.push_back(&record);
    if (std::exchange(launch->second.silent, false)) --region.silent;
  }
}

const TraceIndex::Region& TraceIndex::operator[](uint64_t region) const {
  static const Region nothing;
  const auto found = regions_.find(region);
  return found == regions_.end() ? nothing : found->second;
}

bool complete(const TraceIndex& index, const SampleParts& parts) {
  const TraceIndex::Region& work = index[parts.work];
  return index[parts.before].silent == 0 && work.silent == 0 &&
         work.records.size() >= parts.kernels->size();
}

Sample sample_of(const TraceIndex& index, const SampleParts& parts) {
  const auto reject = [](std::string reason) { return Sample{.rejected = std::move(reason)}; };
  const std::vector<std::string>& kernels = *parts.kernels;
  if (kernels.empty()) return reject("no kernel is expected: there is nothing to time");
  if (index.dropped() > 0) return reject(fmt::format("{} records were dropped", index.dropped()));
  const TraceIndex::Region& before = index[parts.before];
  const TraceIndex::Region& work = index[parts.work];
  if (std::string reason = fault_before(before); !reason.empty()) return reject(std::move(reason));
  Records records = work.records;
  if (std::string reason = fault_of_work(work, records, kernels); !reason.empty()) {
    return reject(std::move(reason));
  }
  const uint64_t start = records.front()->start_ns;
  uint64_t first_start = start, before_end = 0, end = 0;
  for (const KernelRecord* record : before.records) {
    first_start = std::min(first_start, record->start_ns);
    before_end = std::max(before_end, record->end_ns);
  }
  if (start < before_end) {
    return reject(
        fmt::format("starts {} ns before what ran before it had ended", before_end - start));
  }
  Sample sample;
  for (const KernelRecord* record : records) {
    end = std::max(end, record->end_ns);
    sample.kernel_ns += static_cast<double>(record->end_ns - record->start_ns);
  }
  sample.span_ns = static_cast<double>(end - start);
  sample.device_ns = static_cast<double>(end - first_start);
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
