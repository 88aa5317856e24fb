// SPDX-License-Identifier: Apache-2.0
// What comes to a block's shared memory by itself, asynchronous copies, boxes of tensor maps and
// mail from peers; and the barriers with phases and mailboxes that count it.
#include <cstring>

#include "tests/simt/block.h"
#include "tests/simt/cluster.h"
#include "tests/simt/tensor_map.h"

namespace muse::simt {
namespace {

constexpr uint32_t kOpen = 0x4D41494C;
constexpr uint32_t kMade = 0x15B;

/// What a mailbox is here.
struct Mailbox {
  uint32_t missing;  // bytes
  uint32_t open;     // kOpen
};

void run_copy(const Copy& copy) {
  if (copy.source) {
    std::memcpy(copy.target, copy.source, copy.bytes);
  } else {
    std::memset(copy.target, 0, copy.bytes);
  }
}

/// The box in pieces of 16 bytes, as they come to lie at `target`. `corner`: its first element.
std::vector<Copy> pieces_of_box(const TensorMap& map, const int (&corner)[4],
                                unsigned char* target) {
  constexpr int kPiece = 16;
  std::vector<Copy> pieces;
  size_t at = 0;
  int64_t in[4];
  for (in[3] = 0; in[3] < map.box[3]; ++in[3]) {
    for (in[2] = 0; in[2] < map.box[2]; ++in[2]) {
      for (in[1] = 0; in[1] < map.box[1]; ++in[1]) {
        for (in[0] = 0; in[0] < map.box[0]; in[0] += kPiece, at += kPiece) {
          const unsigned char* source = map.base;
          bool inside = true;
          for (int i = 0; i < 4; ++i) {
            inside = inside && corner[i] + in[i] >= 0 && corner[i] + in[i] < map.extent[i];
            source += (corner[i] + in[i]) * map.stride[i];
          }
          // A swizzle of 64 bytes: the 16-byte chunk in a line's half by the line's number.
          const size_t to = map.swizzle_bytes == 64 ? at ^ (at >> 3 & 0x30) : at;
          pieces.push_back({target + to, inside ? source : nullptr, kPiece, 0});
        }
      }
    }
  }
  return pieces;
}

}  // namespace

void Block::start_copy(const Copy& copy) {
  const auto misaligned = [&copy](const void* address) {
    return reinterpret_cast<uintptr_t>(address) % copy.bytes != 0;
  };
  if (misaligned(copy.target) || misaligned(copy.source)) {
    note("an asynchronous copy's address is not aligned to " + std::to_string(copy.bytes) +
         " bytes");
    abandon();
  }
  current_->copies.push_back(copy);
  current_->copies.back().group = current_->copy_group;
  current_->copies.back().number = ++current_->copies_started;
  if (odd_) run_copies(*current_, [](const Copy&) { return true; });
}

void Block::wait_copies(int pending) {
  const int last_group = current_->copy_group - 1 - pending;
  run_copies(*current_, [last_group](const Copy& copy) { return copy.group <= last_group; });
}

template <class Due>
void Block::run_copies(Fiber& fiber, const Due& due) {
  std::vector<Copy> rest;
  for (const Copy& copy : fiber.copies) {
    if (due(copy)) {
      run_copy(copy);
    } else {
      rest.push_back(copy);
    }
  }
  fiber.copies.swap(rest);
}

PhaseBarrier Block::phase_barrier(size_t at, const char* misuse) {
  PhaseBarrier barrier;
  std::memcpy(&barrier, shared_ + at, sizeof barrier);
  if (barrier.made != kMade) {
    note(std::string(misuse) + " a barrier with phases that nobody has made");
    abandon();
  }
  return barrier;
}

void Block::init_barrier(void* barrier, int arrivals) {
  const auto count = static_cast<uint32_t>(arrivals) & 0x7FFU;
  const PhaseBarrier made{count, count, 0, kMade, 0};
  std::memcpy(shared_ + shared_offset(barrier, sizeof made, "a barrier with phases"), &made,
              sizeof made);
}

/// Arrivals and bytes that have come, or are still to come where below 0.
void Block::change_barrier(size_t at, int arrivals, int64_t bytes) {
  PhaseBarrier barrier = phase_barrier(at, "arrives at");
  if (static_cast<int>(barrier.missing) < arrivals) {
    note("arrives at a barrier with phases that expects no more");
    abandon();
  }
  barrier.missing -= static_cast<uint32_t>(arrivals);
  barrier.bytes -= static_cast<int32_t>(bytes);
  const bool over = barrier.missing == 0 && barrier.bytes == 0;
  if (over) {
    barrier.parity ^= 1U;
    barrier.missing = barrier.expected;
  }
  std::memcpy(shared_ + at, &barrier, sizeof barrier);
  if (over) wake(Fiber::State::kAtPhase);
}

void Block::arrive_at(const void* barrier, int bytes) {
  change_barrier(shared_offset(barrier, sizeof(PhaseBarrier), "a barrier with phases"), 1, -bytes);
}

void Block::wait_at(const void* barrier, int parity) {
  Fiber& self = *current_;
  const size_t at = shared_offset(barrier, sizeof(PhaseBarrier), "a barrier with phases");
  while (phase_barrier(at, "waits at").parity == static_cast<uint32_t>(parity)) {
    self.state = Fiber::State::kAtPhase;
    warps_[self.warp].ready &= ~(1U << self.lane);
    go_on();
  }
}

void Block::arrive_with_copies(const void* barrier) {
  start_landing({shared_offset(barrier, sizeof(PhaseBarrier), "a barrier with phases"), current_,
                 current_->copies_started});
}

void Block::copy_box(void* shared, const void* map, const int (&corner)[4], const void* barrier) {
  TensorMap box;
  std::memcpy(&box, map, sizeof box);
  if (box.valid != kTensorMap) {
    note("copies a box of a tensor map that nobody has encoded");
    abandon();
  }
  const size_t at = shared_offset(barrier, sizeof(PhaseBarrier), "a barrier with phases");
  const size_t alignment = box.swizzle_bytes == 0 ? 128 : kSharedAlignment;
  if (static_cast<size_t>(static_cast<unsigned char*>(shared) - shared_) % alignment != 0) {
    note("a box is copied to an address not aligned to " + std::to_string(alignment) + " bytes");
    abandon();
  }
  Landing landing{at, nullptr, 0, pieces_of_box(box, corner, static_cast<unsigned char*>(shared))};
  for (const Copy& piece : landing.pieces) landing.bytes += piece.bytes;
  start_landing(std::move(landing));
}

void Block::start_landing(Landing landing) {
  if (odd_) {
    land(landing);
  } else {
    landings_.push_back(std::move(landing));
  }
}

void Block::land(const Landing& landing) {
  if (landing.fiber) {
    run_copies(*landing.fiber, [&](const Copy& copy) { return copy.number <= landing.last; });
    change_barrier(landing.barrier, 1, 0);
    return;
  }
  for (const Copy& piece : landing.pieces) run_copy(piece);
  change_barrier(landing.barrier, 0, static_cast<int64_t>(landing.bytes));
}

/// Whether there was something to land.
bool Block::land_all() {
  const std::vector<Landing> all = std::move(landings_);
  landings_.clear();
  for (const Landing& landing : all) land(landing);
  return !all.empty();
}

void Block::open_mailbox(const void* mailbox, int bytes) {
  const Mailbox opened{static_cast<uint32_t>(bytes), kOpen};
  std::memcpy(shared_ + shared_offset(mailbox, sizeof opened, "a mailbox"), &opened, sizeof opened);
}

void Block::wait_for_mail(const void* mailbox) {
  Fiber& self = *current_;
  Mailbox now;
  const size_t at = shared_offset(mailbox, sizeof now, "a mailbox");
  while (true) {
    std::memcpy(&now, shared_ + at, sizeof now);
    if (now.open != kOpen) {
      note("waits for mail at a mailbox that is not open");
      abandon();
    }
    if (now.missing == 0) return;
    self.state = Fiber::State::kAtMailbox;
    warps_[self.warp].ready &= ~(1U << self.lane);
    go_on();
  }
}

void Block::send_to_peer(const void* shared, int rank, const void* words, size_t bytes,
                         const void* mailbox) {
  const auto refuse = [this](const std::string& what) {
    note("a store to a peer " + what);
    abandon();
  };
  const size_t offset = shared_offset(shared, bytes, "a store to a peer");
  const size_t mail = shared_offset(mailbox, sizeof(Mailbox), "a mailbox");
  if (rank < 0 || static_cast<unsigned>(rank) >= cluster_->size()) {
    refuse("of rank " + std::to_string(rank) + " in a cluster of " +
           std::to_string(cluster_->size()));
  }
  if (cluster_->phase() == 0) refuse("that may not have started: no barrier of the cluster before");
  current_->stores.push_back({offset, static_cast<unsigned>(rank), bytes, mail, {}});
  std::memcpy(current_->stores.back().words, words, bytes);
  if (odd_) land_stores(*current_);
}

void Block::land_stores(Fiber& fiber) {
  for (const RemoteStore& store : fiber.stores) {
    const std::string wrong = cluster_->block(store.rank).receive(store);
    if (wrong.empty()) continue;
    note("a store to a peer " + wrong);
    abandon();
  }
  fiber.stores.clear();
}

std::string Block::receive(const RemoteStore& store) {
  if (ended()) return "that has ended";
  Mailbox mailbox;
  std::memcpy(&mailbox, shared_ + store.mailbox, sizeof mailbox);
  if (mailbox.open != kOpen) return "whose mailbox is not open";
  if (mailbox.missing < store.bytes) return "whose mailbox expects no more";
  mailbox.missing -= static_cast<uint32_t>(store.bytes);
  std::memcpy(shared_ + store.mailbox, &mailbox, sizeof mailbox);
  std::memcpy(shared_ + store.offset, store.words, store.bytes);
  if (mailbox.missing == 0) wake(Fiber::State::kAtMailbox);
  return "";
}

}  // namespace muse::simt
