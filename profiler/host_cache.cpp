// SPDX-License-Identifier: Apache-2.0
// Evicts the caller's ranges line by line, or reads a big buffer on every CPU where it cannot.
// C++20 alone: muse_selfcheck is built of it, too.
#include "profiler/host_cache.h"

#include <pthread.h>
#include <sched.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <thread>

namespace muse::profiler {
namespace {

constexpr int64_t kLineBytes = 64;
/// Twice the private cache of any core known so far: what each core reads at least.
constexpr int64_t kLeastPerCpuBytes = int64_t{4} << 20;

#if defined(__x86_64__)
bool can_evict() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & bit_CLFLUSHOPT) != 0;
}

__attribute__((target("clflushopt"))) void evict(std::span<const std::byte> range) {
  // From the line that holds the first byte: the range need not be aligned.
  const auto begin = reinterpret_cast<uintptr_t>(range.data()) & ~uintptr_t{kLineBytes - 1};
  const auto end = reinterpret_cast<uintptr_t>(range.data()) + range.size();
  for (uintptr_t line = begin; line < end; line += kLineBytes) {
    _mm_clflushopt(reinterpret_cast<void*>(line));
  }
  _mm_sfence();  // the evictions end before the sample starts
}
#else
bool can_evict() { return false; }
void evict(std::span<const std::byte>) {}
#endif

/// The CPUs this process may use; empty where the system does not say.
std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

int64_t flush_bytes(int64_t last_level_bytes) {
  return 2 * (last_level_bytes > 0 ? last_level_bytes : kUnknownCacheBytes);
}

void read_lines(const uint8_t* data, int64_t begin, int64_t end) {
  uint64_t sum = 0;
  for (int64_t i = begin; i < end; i += kLineBytes) sum += data[i];
  volatile uint64_t sink = sum;  // keeps the loop
  static_cast<void>(sink);
}

}  // namespace

HostCache::HostCache(int64_t last_level_bytes) {
  if (can_evict()) return;
  bytes_ = flush_bytes(last_level_bytes);
  cpus_ = allowed_cpus();
  data_.reset(new uint8_t[static_cast<size_t>(bytes_)]);
  // Written, not just allocated: untouched pages would all be the one zero page and evict nothing.
  std::memset(data_.get(), 1, static_cast<size_t>(bytes_));
}

void HostCache::flush(std::span<const std::span<const std::byte>> ranges) {
  if (bytes_ > 0) return read_all();
  for (const auto range : ranges) evict(range);
}

void HostCache::read_all() const {
  // Last-level caches are not inclusive: another core keeps its private cache until it reads too.
  if (cpus_.size() < 2) return read_lines(data_.get(), 0, bytes_);
  const auto count = static_cast<int64_t>(cpus_.size());
  const int64_t slice = std::min(bytes_, std::max(bytes_ / count + kLineBytes, kLeastPerCpuBytes));
  std::vector<std::thread> readers;
  readers.reserve(cpus_.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = (bytes_ - slice) * i / (count - 1);
    readers.emplace_back([this, cpu = cpus_[static_cast<size_t>(i)], begin, slice] {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(cpu, &set);
      // Where the CPU has been taken away meanwhile, the slice is read on another one.
      pthread_setaffinity_np(pthread_self(), sizeof set, &set);
      read_lines(data_.get(), begin, begin + slice);
    });
  }
  for (std::thread& reader : readers) reader.join();
}

std::string HostCache::recipe(int64_t last_level_bytes) {
  if (can_evict()) return "evict every buffer (clflushopt)";
  return "read " + std::to_string(flush_bytes(last_level_bytes)) + " bytes, a slice of at least " +
         std::to_string(kLeastPerCpuBytes) + " on every CPU";
}

}  // namespace muse::profiler
