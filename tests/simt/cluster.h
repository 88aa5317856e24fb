// SPDX-License-Identifier: Apache-2.0
// Blocks that run at the same time, on one OS thread: a cluster, or a block alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/simt/block.h"

namespace muse::simt {

inline constexpr unsigned kMaximumCluster = 16;

/// This OS thread's copy of the `__shared__` objects of a library of kernels.
struct StaticShared {
  std::byte* begin = nullptr;
  size_t bytes = 0;
};

class Cluster {
 public:
  /// Runs cluster number `number` of the grid to its end; empty, or what went wrong.
  std::string run(const Kernel& kernel, const void* arguments, const LaunchShape& shape,
                  uint64_t number, const StaticShared& memory);

  // In a kernel.
  unsigned size() const { return size_; }
  Block& block(unsigned rank) { return *blocks_[rank]; }
  uint64_t phase() const { return phase_; }  ///< how often its barrier has opened
  void arrive(Fiber& fiber);
  void end(const Fiber& fiber);

 private:
  void start(const Kernel& kernel, const void* arguments, const LaunchShape& shape,
             uint64_t number);
  void go(unsigned rank, const StaticShared& memory);
  std::string go_until_ended(const StaticShared& memory);
  void open_if_all_arrived();

  std::vector<std::unique_ptr<Block>> blocks_;     // as many as there ever were
  std::vector<std::vector<std::byte>> put_aside_;  // static shared memory of those that wait
  unsigned size_ = 0, living_ = 0, arrived_ = 0;   // blocks; threads of all
  uint64_t phase_ = 0;
};

}  // namespace muse::simt
