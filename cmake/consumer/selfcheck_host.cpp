// SPDX-License-Identifier: Apache-2.0
// muse_selfcheck on a CPU: the process's own memory, a steady clock, caches flushed as in a sweep.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <stdexcept>

#include "profiler/host_cache.h"
#include "selfcheck_machine.h"

namespace selfcheck {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

std::size_t round_up(std::size_t bytes, std::size_t multiple) {
  return (std::max<std::size_t>(bytes, 1) + multiple - 1) / multiple * multiple;
}

/// All memory that a step is given, as a sweep flushes it.
std::map<void*, std::size_t>& live() {
  static std::map<void*, std::size_t> memory;
  return memory;
}

std::int64_t last_level_bytes() {
  std::int64_t bytes = 0;
  for (const int level : {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL4_CACHE_SIZE}) {
    bytes = std::max<std::int64_t>(bytes, sysconf(level));
  }
  return bytes;
}

void flush() {
  static muse::profiler::HostCache cache(last_level_bytes());
  std::vector<std::span<const std::byte>> ranges;
  for (const auto& [address, bytes] : live()) {
    ranges.emplace_back(static_cast<const std::byte*>(address), bytes);
  }
  cache.flush(ranges);
}

}  // namespace

void choose_device(int) {}

const char* clock_name() { return "steady clock, the caches flushed before as in a sweep"; }
const char* comparison() {
  return "In a sweep other candidates run between two samples of one, here nothing does: a few us "
         "less here are no gain. Where something else runs on this machine, more are no loss.";
}

// Pages as in a sweep: a large block lies in huge ones.
Memory::Memory(std::size_t bytes) {
  const bool huge = bytes >= kHugePageBytes;
  const std::size_t alignment = huge ? kHugePageBytes : kAlignment;
  const std::size_t size = round_up(bytes, alignment);
  data_ = std::aligned_alloc(alignment, size);
  if (data_ == nullptr) throw std::runtime_error("no memory");
  if (huge) madvise(data_, size, MADV_HUGEPAGE);  // advice: a refusal changes nothing
  live().emplace(data_, size);
}
Memory::~Memory() {
  live().erase(data_);
  std::free(data_);
}

void upload(void* target, const void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(target, host, bytes);
}
void download(void* host, const void* target, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, target, bytes);
}

void run_once(const Run& run) { run(nullptr); }

std::vector<double> times_us(const Run& run, int count) {
  std::vector<double> times;
  run(nullptr);  // pages and threads are there from the second on
  for (int i = 0; i < count; ++i) {
    flush();
    const auto start = std::chrono::steady_clock::now();
    run(nullptr);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count());
  }
  return times;
}

}  // namespace selfcheck
