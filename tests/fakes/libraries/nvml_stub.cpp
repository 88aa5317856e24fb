// SPDX-License-Identifier: Apache-2.0
// Stands in for libnvidia-ml.so.1: one card, whose state comes from the environment.
// MUSE_STUB_NVML_INIT: what nvmlInit_v2 returns. MUSE_STUB_NVML_REASONS: clock event reasons, with
// which the clock is half as high; with MUSE_STUB_NVML_FROM and _UNTIL only in those of its
// readings, counted from 0. MUSE_STUB_NVML_UUID: of the card. Built with MUSE_STUB_OLD it lacks
// what a library of long ago lacks.
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

constexpr const char* kDefaultUuid = "GPU-0a1b2c3d-0000-1111-2222-333344445555";
constexpr int kNotFound = 6;
int the_card;

long number(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::strtol(text, nullptr, 0) : 0;
}

const char* uuid() {
  const char* text = std::getenv("MUSE_STUB_NVML_UUID");
  return text ? text : kDefaultUuid;
}

/// Readings so far: each ends with the reasons.
std::atomic<long> readings{0};

long reasons() {
  const bool all = std::getenv("MUSE_STUB_NVML_UNTIL") == nullptr;
  const bool now =
      readings >= number("MUSE_STUB_NVML_FROM") && readings < number("MUSE_STUB_NVML_UNTIL");
  return all || now ? number("MUSE_STUB_NVML_REASONS") : 0;
}

int put(char* target, unsigned size, const char* text) {
  std::strncpy(target, text, size);
  return 0;
}

}  // namespace

extern "C" {

int nvmlInit_v2() { return static_cast<int>(number("MUSE_STUB_NVML_INIT")); }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int) { return "Driver Not Loaded"; }
int nvmlSystemGetDriverVersion(char* target, unsigned size) {
  return put(target, size, "999.11.22");
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned, void** device) {
  *device = &the_card;
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* wanted, void** device) {
  if (std::strcmp(wanted, uuid()) != 0) return kNotFound;
  *device = &the_card;
  return 0;
}
int nvmlDeviceGetUUID(void*, char* target, unsigned size) { return put(target, size, uuid()); }
int nvmlDeviceGetClockInfo(void*, int type, unsigned* mhz) {
  *mhz = type == 2 ? 3201 : reasons() == 0 ? 1980 : 990;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void*, int type, unsigned* mhz) {
  *mhz = type == 2 ? 3201 : 1980;
  return 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatt) {
  *milliwatt = 123000;
  return 0;
}
#if !defined(MUSE_STUB_OLD)
int nvmlDeviceGetCurrentClocksEventReasons(void*, unsigned long long* bits) {
  *bits = static_cast<unsigned long long>(reasons());
  ++readings;
  return 0;
}
#endif

}  // extern "C"
