// SPDX-License-Identifier: Apache-2.0
// NVML by dlopen. Its header is no part of the toolkit, so what is used of its ABI is declared
// here.
#include "profiler/nvml.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "profiler/dynamic_library.h"

namespace muse::profiler {
namespace {

// Values and layouts of NVML's ABI, which keeps them for good.
using Result = int;
using Device = struct nvmlDevice_st*;
constexpr Result kSuccess = 0;
constexpr Result kInsufficientSize = 7;
constexpr int kSmClock = 1, kMemoryClock = 2;
constexpr int kGpuTemperature = 0;
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
static_assert(sizeof(ProcessInfo) == 24);

constexpr const char* kRemedy =
    "it comes with the NVIDIA driver; in a container, run with the 'utility' driver capability "
    "(NVIDIA_DRIVER_CAPABILITIES=compute,utility)";

std::optional<double> scaled(std::optional<unsigned> value, double factor) {
  return value ? std::optional(*value * factor) : std::nullopt;
}

}  // namespace

// A function that this library does not have stays null; what it would have told is unknown.
struct Nvml::Api {
  DynamicLibrary library;
  Result (*init)() = nullptr;
  Result (*shutdown)() = nullptr;
  const char* (*error_string)(Result) = nullptr;
  Result (*driver_version)(char*, unsigned) = nullptr;
  Result (*count)(unsigned*) = nullptr;
  Result (*by_index)(unsigned, Device*) = nullptr;
  Result (*by_uuid)(const char*, Device*) = nullptr;
  Result (*uuid)(Device, char*, unsigned) = nullptr;
  Result (*name)(Device, char*, unsigned) = nullptr;
  Result (*clock)(Device, int, unsigned*) = nullptr;
  Result (*max_clock)(Device, int, unsigned*) = nullptr;
  Result (*application_clock)(Device, int, unsigned*) = nullptr;
  Result (*default_application_clock)(Device, int, unsigned*) = nullptr;
  Result (*power)(Device, unsigned*) = nullptr;
  Result (*temperature)(Device, int, unsigned*) = nullptr;
  Result (*reasons)(Device, unsigned long long*) = nullptr;
  Result (*mig)(Device, unsigned*, unsigned*) = nullptr;
  Result (*ecc)(Device, unsigned*, unsigned*) = nullptr;
  Result (*persistence)(Device, unsigned*) = nullptr;
  Result (*processes)(Device, unsigned*, ProcessInfo*) = nullptr;

  explicit Api(DynamicLibrary loaded);
  template <class F>
  void find(F*& function, const char* symbol) {
    function = library.function<F>(symbol);
  }
  /// The first function without which nothing can be asked; null where all are there.
  const char* missing() const;

  // Each nullopt where the function is missing or the card does not tell.
  std::optional<unsigned> read(Result (*function)(Device, unsigned*), Device device) const;
  std::optional<unsigned> read(Result (*function)(Device, int, unsigned*), Device device,
                               int which) const;
  std::optional<bool> mode(Result (*function)(Device, unsigned*, unsigned*), Device device) const;
  std::string text(Result (*function)(Device, char*, unsigned), Device device) const;
  std::optional<std::vector<unsigned>> compute_processes(Device device) const;
};

Nvml::Api::Api(DynamicLibrary loaded) : library(std::move(loaded)) {
  find(init, "nvmlInit_v2");
  find(shutdown, "nvmlShutdown");
  find(error_string, "nvmlErrorString");
  find(driver_version, "nvmlSystemGetDriverVersion");
  find(count, "nvmlDeviceGetCount_v2");
  find(by_index, "nvmlDeviceGetHandleByIndex_v2");
  find(by_uuid, "nvmlDeviceGetHandleByUUID");
  find(uuid, "nvmlDeviceGetUUID");
  find(name, "nvmlDeviceGetName");
  find(clock, "nvmlDeviceGetClockInfo");
  find(max_clock, "nvmlDeviceGetMaxClockInfo");
  find(application_clock, "nvmlDeviceGetApplicationsClock");
  find(default_application_clock, "nvmlDeviceGetDefaultApplicationsClock");
  find(power, "nvmlDeviceGetPowerUsage");
  find(temperature, "nvmlDeviceGetTemperature");
  find(reasons, "nvmlDeviceGetCurrentClocksEventReasons");
  // Its name before the driver branch 535.
  if (!reasons) find(reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
  find(mig, "nvmlDeviceGetMigMode");
  find(ecc, "nvmlDeviceGetEccMode");
  find(persistence, "nvmlDeviceGetPersistenceMode");
  find(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
}

const char* Nvml::Api::missing() const {
  if (!init) return "nvmlInit_v2";
  if (!driver_version) return "nvmlSystemGetDriverVersion";
  if (!count) return "nvmlDeviceGetCount_v2";
  if (!by_index) return "nvmlDeviceGetHandleByIndex_v2";
  if (!by_uuid) return "nvmlDeviceGetHandleByUUID";
  if (!uuid) return "nvmlDeviceGetUUID";
  if (!clock) return "nvmlDeviceGetClockInfo";
  if (!reasons) return "nvmlDeviceGetCurrentClocksEventReasons";
  return nullptr;
}

std::optional<unsigned> Nvml::Api::read(Result (*function)(Device, unsigned*),
                                        Device device) const {
  unsigned value = 0;
  if (!function || function(device, &value) != kSuccess) return std::nullopt;
  return value;
}

std::optional<unsigned> Nvml::Api::read(Result (*function)(Device, int, unsigned*), Device device,
                                        int which) const {
  unsigned value = 0;
  if (!function || function(device, which, &value) != kSuccess) return std::nullopt;
  return value;
}

std::optional<bool> Nvml::Api::mode(Result (*function)(Device, unsigned*, unsigned*),
                                    Device device) const {
  unsigned current = 0, pending = 0;
  if (!function || function(device, &current, &pending) != kSuccess) return std::nullopt;
  return current != 0;
}

std::string Nvml::Api::text(Result (*function)(Device, char*, unsigned), Device device) const {
  std::array<char, 96> buffer{};
  if (!function || function(device, buffer.data(), buffer.size() - 1) != kSuccess) return "";
  return buffer.data();
}

std::optional<std::vector<unsigned>> Nvml::Api::compute_processes(Device device) const {
  if (!processes) return std::nullopt;
  std::vector<ProcessInfo> infos(64);
  // Processes may start between two calls: a few tries with room to spare.
  for (int tries = 0; tries < 4; ++tries) {
    auto found = static_cast<unsigned>(infos.size());
    const Result result = processes(device, &found, infos.data());
    if (result == kSuccess) {
      infos.resize(std::min<size_t>(found, infos.size()));
      std::vector<unsigned> list;
      for (const ProcessInfo& info : infos) list.push_back(info.pid);
      return list;
    }
    if (result != kInsufficientSize) return std::nullopt;
    infos.resize(2 * size_t{found} + 64);
  }
  return std::nullopt;
}

std::string clock_reasons(int64_t bits) {
  constexpr std::array<std::pair<int64_t, const char*>, 9> kNames{{
      {0x1, "idle"},
      {0x2, "application clocks"},
      {0x4, "SW power cap"},
      {0x8, "HW slowdown"},
      {0x10, "sync boost"},
      {0x20, "SW thermal slowdown"},
      {0x40, "HW thermal slowdown"},
      {0x80, "HW power brake"},
      {0x100, "display clocks"},
  }};
  std::string text;
  for (const auto& [bit, name] : kNames) {
    if ((bits & bit) == 0) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
    bits &= ~bit;
  }
  if (bits != 0) text += fmt::format("{}{:#x}", text.empty() ? "" : ", ", bits);
  return text.empty() ? "none" : text;
}

Nvml::Nvml(std::unique_ptr<Api> api) : api_(std::move(api)) {}

Nvml::~Nvml() {
  if (api_->shutdown) api_->shutdown();
}

tl::expected<std::unique_ptr<Nvml>, std::string> Nvml::load() {
  auto library = DynamicLibrary::open({"libnvidia-ml.so.1"});
  if (!library) return tl::unexpected(fmt::format("{}; {}", library.error(), kRemedy));
  auto api = std::make_unique<Api>(*std::move(library));
  if (const char* symbol = api->missing()) {
    return tl::unexpected(
        fmt::format("{} has no {}: it is too old or no NVML; install a driver "
                    "from 580 on",
                    api->library.name(), symbol));
  }
  if (const Result result = api->init(); result != kSuccess) {
    const char* why = api->error_string ? api->error_string(result) : "";
    return tl::unexpected(
        fmt::format("NVML does not start: error {} {}; is the driver loaded, and "
                    "are /dev/nvidia* there?",
                    result, why ? why : ""));
  }
  return std::unique_ptr<Nvml>(new Nvml(std::move(api)));
}

const tl::expected<std::unique_ptr<Nvml>, std::string>& Nvml::instance() {
  // Never destroyed: the library's own exit handlers may run before ours.
  static const auto* loaded = new tl::expected<std::unique_ptr<Nvml>, std::string>(load());
  return *loaded;
}

std::string Nvml::driver() const {
  std::array<char, 96> buffer{};
  if (api_->driver_version(buffer.data(), buffer.size() - 1) != kSuccess) return "";
  return buffer.data();
}

std::vector<std::string> Nvml::uuids() const {
  std::vector<std::string> all;
  unsigned count = 0;
  if (api_->count(&count) != kSuccess) return all;
  for (unsigned i = 0; i < count; ++i) {
    Device device = nullptr;
    if (api_->by_index(i, &device) == kSuccess) all.push_back(api_->text(api_->uuid, device));
  }
  return all;
}

std::optional<GpuState> Nvml::state(const std::string& uuid) const {
  Device device = nullptr;
  if (api_->by_uuid(uuid.c_str(), &device) != kSuccess) return std::nullopt;
  const Api& api = *api_;
  GpuState state{.uuid = uuid, .name = api.text(api.name, device)};
  state.max_sm_mhz = scaled(api.read(api.max_clock, device, kSmClock), 1);
  state.max_memory_mhz = scaled(api.read(api.max_clock, device, kMemoryClock), 1);
  state.application_sm_mhz = scaled(api.read(api.application_clock, device, kSmClock), 1);
  state.default_application_sm_mhz =
      scaled(api.read(api.default_application_clock, device, kSmClock), 1);
  state.mig = api.mode(api.mig, device);
  state.ecc = api.mode(api.ecc, device);
  if (const auto on = api.read(api.persistence, device)) state.persistence = *on != 0;
  state.processes = api.compute_processes(device);
  return state;
}

ClockReading Nvml::clock(const std::string& uuid) const {
  Device device = nullptr;
  if (api_->by_uuid(uuid.c_str(), &device) != kSuccess) return {};
  const Api& api = *api_;
  ClockReading reading{
      .sm_mhz = scaled(api.read(api.clock, device, kSmClock), 1).value_or(-1),
      .memory_mhz = scaled(api.read(api.clock, device, kMemoryClock), 1).value_or(-1),
      .power_w = scaled(api.read(api.power, device), 1e-3).value_or(-1),
      .temperature_c = scaled(api.read(api.temperature, device, kGpuTemperature), 1).value_or(-1)};
  unsigned long long bits = 0;
  if (api.reasons(device, &bits) == kSuccess) reading.reason_bits = static_cast<int64_t>(bits);
  return reading;
}

ClockReading read_gpu_clock(const std::string& uuid) {
  const auto& nvml = Nvml::instance();
  return nvml ? (*nvml)->clock(uuid) : ClockReading{};
}

}  // namespace muse::profiler
