// SPDX-License-Identifier: Apache-2.0
// doctor: what a GPU needs of the machine, with or without one in it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "profiler/nvml.h"
#include "tuner/build_info.h"
#include "tuner/commands/doctor_device.h"
#include "tuner/compile.h"

#if defined(MUSE_HAS_CUDA)
#include "profiler/device_facts.h"
#include "tuner/cuda_error.h"
#endif

namespace muse::tuner {
namespace {

namespace fs = std::filesystem;

/// Names of /dev/nvidia*, ordered.
std::vector<std::string> device_files() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("nvidia")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Check files_check(const std::vector<std::string>& files) {
  Check check{.name = "device files"};
  check.seen =
      files.empty() ? "no /dev/nvidia*" : fmt::format("/dev/{{{}}}", fmt::join(files, ","));
  return check;
}

Check compiler() {
  Check check{.name = "nvrtc"};
  const auto toolkit = compiler_toolkit();
  check.seen = toolkit ? *toolkit : toolkit.error();
  if (!toolkit) {
    check.verdict = Verdict::kWarn;
    check.remedy =
        "without it only kernels that are in the cache already can run: install NVRTC of "
        "a CUDA Toolkit 13, or copy a cache that `muse-tune compile` has filled";
  }
  return check;
}

/// The cache is made by whoever compiles first: what matters is the nearest folder that exists.
Check cubin_cache() {
  Check check{.name = "cubin cache"};
  try {
    const fs::path folder = CubinCache::default_folder();
    fs::path nearest = folder;
    std::error_code error;
    while (!fs::exists(nearest, error) && nearest.has_relative_path()) {
      nearest = nearest.parent_path();
    }
    const bool usable =
        fs::is_directory(nearest, error) && access(nearest.c_str(), W_OK | X_OK) == 0;
    check.seen = fmt::format("'{}'{}", folder.string(), usable ? "" : " cannot be written");
    if (usable) return check;
  } catch (const std::runtime_error& unknown) {
    check.seen = unknown.what();
  }
  check.verdict = Verdict::kWarn;
  check.remedy = "pass --cache a folder that can be written, or set XDG_CACHE_HOME";
  return check;
}

Check nvml() {
  Check check{.name = "nvml"};
  const auto& library = profiler::Nvml::instance();
  if (library) {
    check.seen = fmt::format("driver {}, GPUs: {}", (*library)->driver(),
                             fmt::join((*library)->uuids(), ", "));
    return check;
  }
  check.verdict = Verdict::kWarn;
  check.seen = library.error();
  check.remedy = "without it nobody notices a clock that drops during a run";
  return check;
}

std::string of_most(double mhz, const std::optional<double>& most) {
  return most ? fmt::format("{:.0f} of {:.0f} MHz", mhz, *most) : fmt::format("{:.0f} MHz", mhz);
}

Check clocks(const profiler::Nvml& library, const std::string& uuid) {
  Check check{.name = "gpu clocks"};
  const profiler::ClockReading clock = library.clock(uuid);
  const auto state = library.state(uuid);
  if (!state || clock.sm_mhz < 0) {
    check.verdict = Verdict::kWarn;
    check.seen = uuid + ": NVML does not tell";
    check.remedy = "rounds cannot be rejected for a clock that drops: keep the GPU cool and idle";
    return check;
  }
  check.seen = fmt::format("{}: SM {}, memory {}, {:.0f} W, {:.0f} C, held back by: {}", uuid,
                           of_most(clock.sm_mhz, state->max_sm_mhz),
                           of_most(clock.memory_mhz, state->max_memory_mhz), clock.power_w,
                           clock.temperature_c, profiler::clock_reasons(clock.reason_bits));
  if (clock.reason_bits & profiler::kSlowdownBits) {
    check.verdict = Verdict::kWarn;
    check.remedy =
        "the GPU slows down to protect itself: look at cooling and power; rounds in this "
        "state are rejected";
  } else if (clock.reason_bits & profiler::kPowerCapBit) {
    check.verdict = Verdict::kWarn;
    check.remedy =
        "the power limit holds the clock back: wait until the GPU is idle, or see "
        "nvidia-smi -q -d POWER";
  }
  return check;
}

#if defined(MUSE_HAS_CUDA)

constexpr int kInsufficientDriver = 35, kNoDevice = 100;  // of cudaError_t

/// The device that the target names, if there is one to examine.
std::optional<int> find_device(const std::string& target, bool card, Check& check) {
  const bool automatic = target == "auto";
  const int ordinal = automatic ? 0 : std::stoi(target.substr(target.find(':') + 1));
  const profiler::DeviceCount count = profiler::count_devices();
  const profiler::CudaVersions versions = profiler::cuda_versions();
  const auto version = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  if (count.error == 0 && ordinal < count.devices) {
    check.seen =
        fmt::format("CUDA {}, this build has {}; {} visible", version(versions.driver),
                    version(versions.runtime),
                    count.devices == 1 ? "1 device" : fmt::format("{} devices", count.devices));
    return ordinal;
  }
  if (count.error == 0) {
    check.verdict = Verdict::kFail;
    check.seen = fmt::format("no device {}: {} visible", ordinal, count.devices);
    check.remedy = "use a lower number, and look at CUDA_VISIBLE_DEVICES";
    return std::nullopt;
  }
  const auto error = static_cast<cudaError_t>(count.error);
  check.seen = cuda_error_text(error);
  const bool none = count.error == kNoDevice || (count.error == kInsufficientDriver && !card);
  if (automatic && none) {
    check.seen += ": the target is the host, and these were the host's checks";
  } else {
    check.verdict = Verdict::kFail;
    check.remedy = cuda_remedy(error);
  }
  return std::nullopt;
}

#else

std::optional<int> find_device(const std::string& target, bool card, Check& check) {
  check.seen = "this build has no CUDA target";
  if (target != "auto" || card) {
    check.verdict = Verdict::kFail;
    check.remedy =
        "configure it where a CUDA Toolkit 13.0 or newer is installed, or use --target "
        "host";
  } else {
    check.seen += ": the target is the host, and these were the host's checks";
  }
  return std::nullopt;
}

#endif

}  // namespace

void examine_gpu(const std::string& target, bool quick, Examination& out) {
  const std::vector<std::string> files = device_files();
  Check driver{.name = "driver"};
  const std::optional<int> ordinal = find_device(target, !files.empty(), driver);
  const auto& library = profiler::Nvml::instance();
  // Nobody asks for a GPU and nothing knows of one: what it would need is nobody's trouble.
  const bool none = target == "auto" && !ordinal && driver.verdict == Verdict::kPass &&
                    files.empty() && (!library || (*library)->uuids().empty());
  if (!none) out.checks.push_back(files_check(files));
  if (has_cuda_target()) {  // `compile` needs these without a GPU
    out.checks.push_back(compiler());
    out.checks.push_back(cubin_cache());
  }
  if (none) {
    out.checks.push_back(
        {.name = "gpu", .seen = "none here; CUDA checks left out (driver, NVML, CUPTI)"});
    return;
  }
  out.checks.push_back(nvml());
  out.checks.push_back(driver);
#if defined(MUSE_HAS_CUDA)
  if (ordinal) {
    if (library) {
      out.checks.push_back(clocks(**library, profiler::device_facts(*ordinal).uuid));
    }
    examine_device(*ordinal, quick, out);
    return;
  }
  out.checks.push_back(tracing_without_device());
#else
  static_cast<void>(quick);
  static_cast<void>(ordinal);
#endif
  if (!library) return;
  for (const std::string& uuid : (*library)->uuids()) out.checks.push_back(clocks(**library, uuid));
}

}  // namespace muse::tuner
