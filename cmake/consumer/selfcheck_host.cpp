// SPDX-License-Identifier: Apache-2.0
// muse_selfcheck on a CPU: the process's own memory, a steady clock, caches filled with other data.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "selfcheck_machine.h"

namespace selfcheck {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr long kLeastFlushBytes = 8L << 20;

/// Twice the largest cache.
std::vector<uint8_t>& flush_data() {
  static std::vector<uint8_t> data = [] {
    long bytes = kLeastFlushBytes;
    for (const int level : {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL4_CACHE_SIZE}) {
      bytes = std::max(bytes, 2 * sysconf(level));
    }
    return std::vector<uint8_t>(static_cast<std::size_t>(bytes), 1);
  }();
  return data;
}

}  // namespace

void choose_device(int) {}

const char* clock_name() { return "steady clock, caches read full of other data before"; }

Memory::Memory(std::size_t bytes)
    : data_(std::aligned_alloc(kAlignment, (std::max<std::size_t>(bytes, 1) + kAlignment - 1) /
                                               kAlignment * kAlignment)) {
  if (data_ == nullptr) throw std::runtime_error("no memory");
}
Memory::~Memory() { std::free(data_); }

void upload(void* target, const void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(target, host, bytes);
}
void download(void* host, const void* target, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, target, bytes);
}

void run_once(const Run& run) { run(nullptr); }

std::vector<double> times_us(const Run& run, int count) {
  std::vector<double> times;
  volatile uint64_t sink = 0;
  run(nullptr);  // pages and threads are there from the second on
  for (int i = 0; i < count; ++i) {
    uint64_t sum = 0;
    for (std::size_t at = 0; at < flush_data().size(); at += 64) sum += flush_data()[at];
    sink = sink + sum;
    const auto start = std::chrono::steady_clock::now();
    run(nullptr);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count());
  }
  return times;
}

}  // namespace selfcheck
