// SPDX-License-Identifier: Apache-2.0
// doctor: what runs on the device.
#include "tuner/commands/doctor_device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>

#include "profiler/ceilings.h"
#include "profiler/cupti.h"
#include "profiler/device_error.h"
#include "profiler/device_facts.h"
#include "profiler/nvml.h"
#include "profiler/stream.h"
#include "tuner/console.h"
#include "tuner/cuda_error.h"

namespace muse::tuner {
namespace {

using profiler::Ceiling;
using profiler::Ceilings;
using profiler::DeviceFacts;

constexpr double kGigabyte = 1e9;

Check device(const DeviceFacts& facts, int64_t free_bytes) {
  Check check{.name = "device"};
  check.seen = fmt::format("{}, {}, CC {}.{}, {} SMs, {} MiB L2, {:.1f} of {:.1f} GB free",
                           facts.name, facts.uuid, facts.cc / 10, facts.cc % 10, facts.sm_count,
                           facts.l2_bytes >> 20, static_cast<double>(free_bytes) / kGigabyte,
                           static_cast<double>(facts.memory_bytes) / kGigabyte);
  if (facts.cc < 80) {
    check.verdict = Verdict::kFail;
    check.remedy = "the variants need compute capability 8.0 or more";
  } else if (free_bytes < facts.memory_bytes / 2) {
    check.verdict = Verdict::kWarn;
    check.remedy = "another process holds most of the memory; large shapes may not fit";
  }
  return check;
}

/// Asked before this process has a context of its own.
void modes(const profiler::GpuState& state, std::vector<Check>& checks) {
  const auto on = [](const std::optional<bool>& mode) {
    return !mode ? "unknown" : *mode ? "on" : "off";
  };
  Check mig{.name = "mig", .seen = on(state.mig)};
  if (state.mig.value_or(false)) {
    mig.verdict = Verdict::kWarn;
    mig.remedy =
        "a slice shares memory bandwidth with its neighbours; its figures hold for it alone";
  }
  checks.push_back(mig);
  checks.push_back({.name = "ecc", .seen = on(state.ecc)});
  checks.push_back({.name = "persistence", .seen = on(state.persistence)});
  Check others{.name = "other processes", .seen = "unknown"};
  if (state.processes) {
    others.seen =
        state.processes->empty() ? "none" : fmt::format("{}", fmt::join(*state.processes, ", "));
    if (!state.processes->empty()) {
      others.verdict = Verdict::kWarn;
      others.remedy = "they take turns with what is measured: end them, or use another GPU";
    }
  }
  checks.push_back(others);
}

Check tracing(const std::optional<profiler::TracingError>& error) {
  Check check{.name = "cupti"};
  const auto version = profiler::cupti_version();
  if (!error && version) {
    check.seen = fmt::format("CUPTI {} starts", *version);
    return check;
  }
  check.verdict = Verdict::kFail;
  check.seen = error ? error->what : version.error().what;
  check.remedy = "--timer events needs none of it, at the price of a floor of some us";
  return check;
}

std::string percent(double ratio) { return fmt::format("{:+.1f} %", 100 * ratio); }

void judge(const Ceilings& c, std::vector<Check>& checks) {
  int rejected = 0, samples = 0;
  std::string why;
  for (const Ceiling& row : c.rows) {
    samples += row.time.samples;
    rejected += row.time.rejected;
    if (!row.time.why.empty()) why = row.name + ": " + row.time.why;
  }
  Check clean{.name = "samples", .seen = fmt::format("{} good, {} rejected", samples, rejected)};
  if (rejected > 0) {
    // A few are the weather; many are a fault.
    clean.verdict = rejected > samples / 10 ? Verdict::kFail : Verdict::kWarn;
    clean.seen += "; the last: " + why;
    clean.remedy = "see that nothing else traces or uses the GPU; --timer events takes no records";
  }
  checks.push_back(clean);
  checks.push_back(
      {.name = "timestamp step",
       .seen = fmt::format("events {:.0f} ns, cupti {}", c.event_step_ns,
                           c.cupti_step_ns < 0 ? "-" : fmt::format("{:.0f} ns", c.cupti_step_ns))});
  if (c.no_cupti) return;
  checks.push_back({.name = "tracing cost",
                    .seen = fmt::format("{:.2f} us on a graph of 4 null kernels, {} of the host a "
                                        "sample",
                                        c.tracing_cost_ns / 1e3, format_ns(c.sample_host_ns))});
  Check chain{.name = "tracing of chains",
              .seen = "cupti against events: " + percent(c.chain_stretch)};
  if (c.pipelines_by_events()) {
    chain.verdict = Verdict::kWarn;
    chain.remedy = "tracing stretches programmatic launches: pipelines are to be timed by events";
  }
  checks.push_back(chain);
  Check agree{.name = "cupti and events",
              .seen = fmt::format("{} on a read of 200 MiB", percent(c.cupti_over_events))};
  if (c.cupti_over_events > 0.03 || c.cupti_over_events < -0.03) {
    agree.verdict = Verdict::kWarn;
    agree.remedy = "they should agree within 3 %: see that clocks are steady and nothing else runs";
  }
  checks.push_back(agree);
  checks.push_back({.name = "dirty L2",
                    .seen = fmt::format("a read of 200 MiB after a write of twice the L2: {}",
                                        percent(c.dirty_l2_slowdown))});
}

std::vector<std::vector<std::string>> table(const Ceilings& c) {
  std::vector<std::vector<std::string>> rows{
      {"ceiling", "timer", "median us", "10 %", "90 %", "kernels us", "TB/s", "samples"}};
  const auto us = [](double ns) { return fmt::format("{:.2f}", ns / 1e3); };
  for (const Ceiling& row : c.rows) {
    const profiler::Timing& t = row.time;
    const bool any = t.samples > 0;
    rows.push_back({row.name,
                    fmt::format("{}{}", profiler::name(row.timer), row.traced ? ", traced" : ""),
                    any ? us(t.median_ns) : "-", any ? us(t.low_ns) : "-",
                    any ? us(t.high_ns) : "-", any ? us(t.kernel_ns) : "-",
                    any && row.bytes > 0 ? fmt::format("{:.3f}", row.tb_per_s()) : "-",
                    std::to_string(t.samples)});
  }
  return rows;
}

nlohmann::json to_json(const Ceilings& c, const DeviceFacts& facts) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Ceiling& row : c.rows) {
    rows.push_back({{"name", row.name},
                    {"timer", profiler::name(row.timer)},
                    {"traced", row.traced},
                    {"bytes", row.bytes},
                    {"median_ns", row.time.median_ns},
                    {"low_ns", row.time.low_ns},
                    {"high_ns", row.time.high_ns},
                    {"kernel_ns", row.time.kernel_ns},
                    {"samples", row.time.samples},
                    {"rejected", row.time.rejected},
                    {"why", row.time.why}});
  }
  const auto known = [](double value, bool is_known) {
    return is_known ? nlohmann::json(value) : nlohmann::json();
  };
  const bool cupti = !c.no_cupti;
  return {{"uuid", facts.uuid},
          {"device", facts.name},
          {"event_step_ns", c.event_step_ns},
          {"cupti_step_ns", known(c.cupti_step_ns, cupti)},
          {"sample_host_ns", known(c.sample_host_ns, cupti)},
          {"tracing_cost_ns", known(c.tracing_cost_ns, cupti)},
          {"chain_stretch", known(c.chain_stretch, cupti)},
          {"cupti_over_events", known(c.cupti_over_events, cupti)},
          {"dirty_l2_slowdown", c.dirty_l2_slowdown},
          {"rows", rows}};
}

}  // namespace

void examine_device(int ordinal, bool quick, Examination& out) {
  try {
    const DeviceFacts facts = profiler::device_facts(ordinal);
    if (const auto& library = profiler::Nvml::instance()) {
      if (const auto state = (*library)->state(facts.uuid)) modes(*state, out.checks);
    }
    profiler::use_device(ordinal);
    const Check found = device(facts, profiler::free_device_bytes());
    out.checks.push_back(found);
    if (found.verdict == Verdict::kFail) return;
    const profiler::Stream stream;
    const Ceilings ceilings =
        profiler::measure_ceilings(stream.get(), profiler::ceiling_options(quick));
    out.checks.push_back(tracing(ceilings.no_cupti));
    judge(ceilings, out.checks);
    out.ceilings = to_json(ceilings, facts);
    out.tables = table(ceilings);
  } catch (const profiler::DeviceError& error) {
    out.checks.push_back({.name = "device work",
                          .verdict = Verdict::kFail,
                          .seen = error.what(),
                          .remedy = cuda_remedy(static_cast<cudaError_t>(error.code))});
  }
}

Check tracing_without_device() {
  Check check{.name = "cupti"};
  const auto version = profiler::cupti_version();
  const auto tracer = profiler::CuptiTracer::open();
  if (tracer) {
    check.seen = fmt::format("CUPTI {} starts", *version);
    return check;
  }
  check.verdict = Verdict::kWarn;
  check.seen = tracer.error().what;
  check.remedy = "it is needed on a GPU only";
  return check;
}

}  // namespace muse::tuner
