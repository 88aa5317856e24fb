// SPDX-License-Identifier: Apache-2.0
// The device class of the CPU this process runs on, as Linux tells it.
#include "variants/runtime/device_class.h"

#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <vector>

namespace muse {
namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown CPU";  // not every architecture has a model name there
}

int allowed_cpus() {
  // The kernel refuses a mask smaller than its own: grow until it fits.
  for (int cpus = 1024; cpus <= (1 << 20); cpus *= 2) {
    std::vector<cpu_set_t> mask(static_cast<size_t>(cpus / CPU_SETSIZE));
    const size_t bytes = mask.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, mask.data()) == 0) return CPU_COUNT_S(bytes, mask.data());
  }
  return 1;
}

int64_t last_level_cache_bytes() {
  int64_t largest = 0;
  for (int name : {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL4_CACHE_SIZE}) {
    const int64_t bytes = sysconf(name);  // 0 or -1 where there is none
    if (bytes > 0) largest = bytes;
  }
  return largest;
}

std::string instruction_set() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) return "avx512";
  if (avx2) return "avx2";
#endif
  return "baseline";
}

}  // namespace

DeviceClass host_device_class() {
  DeviceClass device;
  device.model = cpu_model();
  device.host = true;
  device.sm_count = allowed_cpus();
  device.memory_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  device.l2_bytes = last_level_cache_bytes();
  device.isa = instruction_set();
  return device;
}

std::string cuda_architecture(int cc) { return "sm_" + std::to_string(cc) + (cc >= 90 ? "a" : ""); }

}  // namespace muse
