// SPDX-License-Identifier: Apache-2.0
// What commands share: the target, its timer, and a worker on it. This process itself never touches
// the driver: whoever wants to know something of a GPU asks a worker.
#include <fmt/format.h>

#include <filesystem>

#include "tuner/build_info.h"
#include "tuner/commands/command.h"
#include "tuner/kernels.h"

namespace muse::tuner {
namespace {

// Of cudaError_t.
constexpr int kInsufficientDriver = 35;  ///< also: no driver at all
constexpr int kNoDevice = 100;

// The kernel module makes a file for every card; nvidiactl alone is enough in containers.
bool card_present() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    if (entry.path().filename().string().starts_with("nvidia")) return true;
  }
  return false;
}

bool is_cuda_target(const std::string& target) {
  constexpr size_t kPrefix = 5, kMostDigits = 4;
  return target.starts_with("cuda:") && target.size() > kPrefix &&
         target.size() <= kPrefix + kMostDigits &&
         target.find_first_not_of("0123456789", kPrefix) == std::string::npos;
}

tl::expected<DeviceClass, WorkerLoss> ask_device(const std::string& target) {
  Supervisor supervisor(
      {.target = target, .timer = std::string(profiler::name(profiler::Timer::kEvents))});
  const auto hello = supervisor.hello();
  if (!hello) return tl::unexpected(hello.error());
  return hello->device_class;
}

[[noreturn]] void refuse(const std::string& target, const std::string& reason) {
  throw CommandError(
      ExitCode::kEnvironment,
      fmt::format("--target {}: {}; --target host tunes the CPU variants", target, reason));
}

TargetAtHand host() { return {"host", host_device_class()}; }

TargetAtHand resolve_auto() {
  if (!has_cuda_target()) {
    if (!card_present()) return host();
    refuse("auto", "this machine has an NVIDIA card but this build has no CUDA target");
  }
  const std::string first = "cuda:0";
  const auto device = ask_device(first);
  if (device) return {first, *device};
  const std::optional<Refusal>& refusal = device.error().refusal;
  const bool none =
      refusal && refusal->what == "device" &&
      (refusal->code == kNoDevice || (refusal->code == kInsufficientDriver && !card_present()));
  if (!none) refuse("auto", device.error().reason);
  say(fmt::format("--target auto: the host, for want of a GPU (CUDA error {}{})", refusal->code,
                  refusal->code == kNoDevice ? "" : ", and no /dev/nvidia*"));
  return host();
}

}  // namespace

TargetAtHand resolve_target(const std::string& target) {
  if (target == "host") return host();
  if (target == "auto") return resolve_auto();
  if (!is_cuda_target(target)) {
    throw CommandError(
        ExitCode::kUsage,
        fmt::format("--target {}: not a target; use auto, host or cuda:N", printable(target)));
  }
  if (!has_cuda_target()) refuse(target, "this build has no CUDA target");
  const auto device = ask_device(target);
  if (!device) refuse(target, device.error().reason);
  return {target, *device};
}

TimerChoice resolve_timer(const Spec& spec, const std::string& option, const std::string& target) {
  using profiler::Timer;
  const std::string where = option.empty() ? spec.path + ": measure.timer" : "--timer";
  std::optional<Timer> timer = spec.measure.timer;
  bool automatic = spec.measure.timer_auto;
  if (!option.empty()) {
    automatic = option == "auto";
    timer = profiler::parse_timer(option);
    if (!timer && !automatic) {
      throw CommandError(ExitCode::kUsage,
                         fmt::format("--timer {}: not a timer; use cupti, events, host or auto",
                                     printable(option)));
    }
  }
  const bool host = target == "host";
  if (timer && (*timer == Timer::kHost) != host) {
    throw CommandError(
        ExitCode::kUsage,
        fmt::format("{}: {} has no timer '{}'; use {} or auto", where, host ? "the host" : "a GPU",
                    profiler::name(*timer), host ? "host" : "cupti, events"));
  }
  return {timer.value_or(host ? Timer::kHost : Timer::kCupti), automatic && !host};
}

Toolchain toolchain_for(const TargetAtHand& target, const std::string& cache) {
  if (target.host()) return {};
  const Toolchain toolchain = find_toolchain(cache);
  if (!toolchain.missing.empty()) {
    say(fmt::format("kernels come from {} alone, where {} made them: {}", toolchain.cache.string(),
                    toolchain.toolkit, toolchain.missing));
  }
  return toolchain;
}

WorkerOptions worker_options(const TargetAtHand& target, const Toolchain& toolchain) {
  return {.target = target.name, .cache = toolchain.cache, .toolkit = toolchain.toolkit};
}

void require_base(const Plan& plan, const NotCompiledMap& not_compiled) {
  for (const Candidate& candidate : plan.base) {
    const auto failed = not_compiled.find(key(candidate));
    if (failed == not_compiled.end()) continue;
    throw CommandError(
        ExitCode::kEnvironment,
        fmt::format("{} of the base has no kernels ({}), and without a base nothing "
                    "can be measured:\n{}",
                    key(candidate), name(failed->second.outcome), failed->second.reason));
  }
}

std::optional<StartedWorker> start_worker(WorkerOptions options, const TimerChoice& timer) {
  profiler::Timer taken = timer.timer;
  for (;;) {
    options.timer = profiler::name(taken);
    auto supervisor = std::make_unique<Supervisor>(options);
    auto hello = supervisor->hello();
    if (hello) return StartedWorker{std::move(supervisor), *std::move(hello), taken};
    const WorkerLoss& loss = hello.error();
    if (options.stop && *options.stop != 0) return std::nullopt;
    const bool timer_fails = loss.refusal && loss.refusal->what == "timer";
    if (!timer_fails || !timer.or_events || taken == profiler::Timer::kEvents) {
      throw CommandError(
          ExitCode::kEnvironment,
          timer_fails
              ? fmt::format("--timer {}: {}; --timer events needs none of it", options.timer,
                            loss.reason)
              : fmt::format("cannot start a worker on {}: {}", options.target, loss.reason));
    }
    say(fmt::format("--timer auto: events, as {} cannot start: {}", options.timer, loss.reason));
    taken = profiler::Timer::kEvents;
  }
}

Hello local_hello(const WorkerOptions& options, const TimerChoice& timer) {
  if (options.target != "host") {
    auto started = start_worker(options, timer);
    if (!started) throw std::logic_error("a worker was stopped that nobody could stop");
    return std::move(started->hello);
  }
  const std::unique_ptr<Backend> backend = make_host_backend();
  return {.device_class = backend->device_class(),
          .device_instance = backend->device_instance(),
          .step_ns = backend->sampler().step_ns(),
          .protocol = backend->protocol(),
          .toolkit = backend->toolkit()};
}

}  // namespace muse::tuner
