// SPDX-License-Identifier: Apache-2.0
// doctor: what every target relies on.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "profiler/clock_reading.h"
#include "profiler/device_instance.h"
#include "profiler/sampler.h"
#include "tuner/build_info.h"
#include "tuner/commands/doctor.h"
#include "tuner/console.h"
#include "tuner/supervisor.h"

namespace muse::tuner {
namespace {

namespace fs = std::filesystem;

Check build() {
  const BuildInfo& info = build_info();
  Check check{.name = "build"};
  check.seen =
      fmt::format("muse-tune {} ({}), {}, {}, targets: host{}", info.version, info.revision,
                  info.compiler, info.build_type, has_cuda_target() ? ", cuda" : "");
  if (info.build_type != "Release") {
    check.verdict = Verdict::kWarn;
    check.remedy = "its times say nothing about production: build with CMAKE_BUILD_TYPE=Release";
  }
  return check;
}

Check worker() {
  Check check{.name = "worker"};
  Supervisor supervisor({});
  const auto hello = supervisor.hello();
  if (hello) {
    check.seen = "starts and answers: " + hello->device_class.model;
    return check;
  }
  check.verdict = Verdict::kFail;
  check.seen = "does not start: " + hello.error().reason;
  check.remedy =
      "look at the limits on processes and memory (ulimit -a), and that the executable "
      "can still be read";
  return check;
}

/// A sweep of a large config writes some 100 MB.
Check database_folder() {
  constexpr double kGigabyte = 1e9;
  Check check{.name = "database folder"};
  std::error_code error;
  const fs::path folder = fs::current_path(error);
  const fs::space_info space = fs::space(folder, error);
  if (error) {
    check.verdict = Verdict::kFail;
    check.seen = fmt::format("'{}': {}", folder.string(), error.message());
    check.remedy = "change to a folder that can be read and written";
    return check;
  }
  const double free = static_cast<double>(space.available);
  check.seen = fmt::format("'{}', {:.1f} GB free", folder.string(), free / kGigabyte);
  if (access(folder.c_str(), W_OK) != 0) {
    check.verdict = Verdict::kWarn;
    check.seen += ", not writable";
    check.remedy = "pass --db a file in a folder that is";
  } else if (free < kGigabyte) {
    check.verdict = free < kGigabyte / 20 ? Verdict::kFail : Verdict::kWarn;
    check.remedy = "free some space, or pass --db a file on another disk";
  }
  return check;
}

Check host_timer() {
  const profiler::HostSampler sampler;
  Check check{.name = "host clock"};
  check.seen = fmt::format("{}, step {}", sampler.version(), format_ns(sampler.step_ns()));
  if (sampler.step_ns() > 1000) {
    check.verdict = Verdict::kWarn;
    check.remedy =
        "the kernel uses a slow clock source: see "
        "/sys/devices/system/clocksource/clocksource0/current_clocksource";
  }
  return check;
}

Check governor() {
  const profiler::DeviceInstance host = profiler::host_device_instance();
  Check check{.name = "host governor"};
  check.seen = host.clock_policy;
  if (host.clock_policy != "performance" && host.clock_policy != "unknown") {
    check.verdict = Verdict::kWarn;
    check.remedy = "the host's clock follows its load: cpupower frequency-set -g performance";
  }
  return check;
}

Check load() {
  const profiler::ClockReading clock = profiler::read_host_clock();
  const double cpus = std::max(1u, std::thread::hardware_concurrency());
  Check check{.name = "host load"};
  check.seen = clock.load < 0 ? "unknown" : fmt::format("{:.1f} on {:.0f} CPUs", clock.load, cpus);
  if (clock.load > cpus / 2) {
    check.verdict = Verdict::kWarn;
    check.remedy = "other work runs on this machine; times of host variants need it idle";
  }
  return check;
}

}  // namespace

void examine_host(Examination& out) {
  for (Check (*check)() : {build, worker, database_folder, host_timer, governor, load}) {
    out.checks.push_back(check());
  }
}

}  // namespace muse::tuner
