// SPDX-License-Identifier: Apache-2.0
// Whose turn it is within a cluster, and its barrier.
#include "tests/simt/cluster.h"

#include <cstring>

namespace muse::simt {
namespace {

constexpr int kPoisonByte = 0xFF;  // NaN in every format; -1 in integers

}  // namespace

std::string Cluster::run(const Kernel& kernel, const void* arguments, const LaunchShape& shape,
                         uint64_t number, const StaticShared& memory) {
  start(kernel, arguments, shape, number);
  put_aside_.assign(size_, std::vector<std::byte>(memory.bytes, std::byte{kPoisonByte}));
  const std::string error = go_until_ended(memory);
  if (!error.empty()) {
    for (unsigned rank = 0; rank < size_; ++rank) blocks_[rank]->give_up();
  }
  return error;
}

void Cluster::start(const Kernel& kernel, const void* arguments, const LaunchShape& shape,
                    uint64_t number) {
  const Index& cluster = shape.cluster;
  const uint64_t across = shape.grid.x / cluster.x, down = shape.grid.y / cluster.y;
  size_ = cluster.x * cluster.y * cluster.z;
  living_ = size_ * shape.block.x * shape.block.y * shape.block.z;
  arrived_ = 0;
  phase_ = 0;
  while (blocks_.size() < size_) blocks_.push_back(std::make_unique<Block>());
  for (unsigned rank = 0; rank < size_; ++rank) {
    const auto place = [&](uint64_t first, unsigned extent, unsigned within) {
      return static_cast<unsigned>(first * extent + within);
    };
    const Index index = {place(number % across, cluster.x, rank % cluster.x),
                         place(number / across % down, cluster.y, rank / cluster.x % cluster.y),
                         place(number / across / down, cluster.z, rank / cluster.x / cluster.y)};
    const uint64_t linear =
        index.x + uint64_t{shape.grid.x} * (index.y + uint64_t{shape.grid.y} * index.z);
    blocks_[rank]->start(kernel, arguments, shape, index, linear, *this);
  }
}

std::string Cluster::go_until_ended(const StaticShared& memory) {
  bool moved = true;
  while (moved) {
    moved = false;
    for (unsigned rank = 0; rank < size_; ++rank) {
      if (!blocks_[rank]->can_go()) continue;
      moved = true;
      go(rank, memory);
      if (std::string error = blocks_[rank]->error(); !error.empty()) return error;
    }
  }
  for (unsigned rank = 0; rank < size_; ++rank) {
    if (!blocks_[rank]->ended()) return blocks_[rank]->deadlock();
    // What peers stored came after a look at its guards.
    if (std::string error = blocks_[rank]->error(); !error.empty()) return error;
  }
  return "";
}

void Cluster::go(unsigned rank, const StaticShared& memory) {
  if (memory.bytes > 0) std::memcpy(memory.begin, put_aside_[rank].data(), memory.bytes);
  blocks_[rank]->go();
  if (memory.bytes > 0) std::memcpy(put_aside_[rank].data(), memory.begin, memory.bytes);
}

void Cluster::arrive(Fiber& fiber) {
  fiber.arrived = true;
  fiber.arrival = phase_;
  ++arrived_;
  open_if_all_arrived();
}

/// Who has ended is waited for no longer.
void Cluster::end(const Fiber& fiber) {
  --living_;
  if (fiber.arrived && fiber.arrival == phase_) --arrived_;
  open_if_all_arrived();
}

void Cluster::open_if_all_arrived() {
  if (living_ == 0 || arrived_ < living_) return;
  arrived_ = 0;
  ++phase_;
  for (unsigned rank = 0; rank < size_; ++rank) blocks_[rank]->open_cluster_barrier();
}

}  // namespace muse::simt
