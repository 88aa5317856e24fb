// SPDX-License-Identifier: Apache-2.0
// Puts memory of the host into the cold state before a sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace muse::profiler {

/// What is read where neither eviction is possible nor the system tells its last-level cache.
inline constexpr int64_t kUnknownCacheBytes = int64_t{64} << 20;

/// Evicts ranges from every cache of the machine, line by line (clflushopt: the private caches of
/// other cores too, and nothing dirty stays behind). A CPU without the instruction reads twice its
/// last-level cache instead, a slice on every CPU this process may use.
class HostCache {
 public:
  explicit HostCache(int64_t last_level_bytes);
  void flush(std::span<const std::span<const std::byte>> ranges);
  /// How this machine flushes; part of the protocol hash.
  static std::string recipe(int64_t last_level_bytes);

 private:
  void read_all() const;

  int64_t bytes_ = 0;  ///< 0 where lines can be evicted
  std::vector<int> cpus_;
  std::unique_ptr<uint8_t[]> data_;
};

}  // namespace muse::profiler
