// SPDX-License-Identifier: Apache-2.0
// A block on one OS thread: its threads as fibers, who runs next, and who waits for whom.
#pragma once

#include <ucontext.h>

#include <csetjmp>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tests/simt/machine.h"

namespace muse::simt {

inline constexpr unsigned kMaximumThreads = 1024;
inline constexpr size_t kMaximumSharedBytes = 232448;
/// Of a block's dynamic shared memory.
inline constexpr size_t kSharedAlignment = 1024;

struct Copy {
  void* target;
  const void* source;  ///< null: zeros
  size_t bytes;
  int group;
  uint64_t number = 0;  ///< of the thread's copies
};

class Cluster;

/// What a barrier with phases is here.
struct PhaseBarrier {
  uint32_t expected : 11, missing : 11;  ///< arrivals
  uint32_t parity : 1;                   ///< of the phase that is not over
  uint32_t made : 9;                     ///< kMade
  int32_t bytes;                         ///< to land
};

/// A store to a peer that has not landed.
struct RemoteStore {
  size_t offset;  ///< in dynamic shared memory
  unsigned rank;
  size_t bytes;
  size_t mailbox;  ///< likewise
  unsigned char words[16];
};

struct Fiber;

/// Copies that a barrier with phases counts, and that have not landed.
struct Landing {
  size_t barrier;          ///< in dynamic shared memory
  Fiber* fiber = nullptr;  ///< whose own copies up to number `last` they are; null: `pieces`
  uint64_t last = 0;
  std::vector<Copy> pieces = {};
  size_t bytes = 0;  ///< of the pieces
};

/// A stack and where its thread goes on. Kept for the next block where its kernel has returned.
struct Fiber {
  enum class State : uint8_t {
    kFresh,
    kReady,
    kAtBarrier,
    kAtRendezvous,
    kAtCluster,
    kAtMailbox,
    kAtPhase,
    kEnded
  };

  jmp_buf context;
  void* stack = nullptr;  ///< lowest address behind the guard page
  size_t stack_bytes = 0;
  size_t colour = 0;           ///< bytes left free at its top, so that stacks share no cache sets
  void* fake_stack = nullptr;  ///< AddressSanitizer's
  bool started = false;        ///< has a context
  State state = State::kFresh;
  Index index;  ///< threadIdx
  unsigned warp = 0, lane = 0;
  int predicate = 0;                ///< at a barrier: its own, then the count
  const char* operation = nullptr;  ///< at a rendezvous
  unsigned mask = 0;                ///< at a rendezvous
  std::vector<Copy> copies;         ///< under way
  int copy_group = 0;               ///< of the next copy
  uint64_t copies_started = 0;
  std::vector<RemoteStore> stores;  ///< under way
  bool arrived = false;             ///< at the cluster's barrier, and has not waited since
  uint64_t arrival = 0;             ///< the barrier's phase then
};

/// "0x0000ffff"
std::string hex(uint64_t value);

/// From then on an illegal access in a kernel ends its launch, not the process. Left to
/// AddressSanitizer where that is on.
void catch_illegal_accesses();

class Block {
 public:
  Block();
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  /// Poisons shared memory; every thread stands before its kernel.
  void start(const Kernel& kernel, const void* arguments, const LaunchShape& shape, Index index,
             uint64_t number, Cluster& cluster);
  /// Runs until no thread can go on.
  void go();
  bool can_go() const;
  bool ended() const { return living_ == 0; }
  /// Empty, or what went wrong, the guards of shared memory included.
  std::string error() const { return !error_.empty() || !ended() ? error_ : broken_guard(); }
  /// Who waits for what.
  std::string deadlock() const;
  /// Gives up what unfinished threads have on their stacks.
  void give_up();
  /// The cluster's barrier has opened.
  void open_cluster_barrier();
  /// Bytes that a peer sent; what is wrong with that, if anything.
  std::string receive(const RemoteStore& store);

  // In a kernel.
  static Block* running();  ///< this OS thread's; null outside go()
  /// What went wrong, to be followed by abandon().
  void note(const std::string& what);
  /// Leaves the block for good. Nothing on the fiber's stack is destroyed, so that nobody may hold
  /// memory there.
  [[noreturn]] void abandon();
  bool in_kernel() const { return current_ != &main_; }
  int barrier(int predicate);
  void rendezvous(const char* operation, unsigned mask, void* operand, Compute compute);
  void start_copy(const Copy& copy);
  void commit_copies() { ++current_->copy_group; }
  void wait_copies(int pending);
  void arrive_at_cluster();
  void wait_for_cluster();
  void open_mailbox(const void* mailbox, int bytes);
  void wait_for_mail(const void* mailbox);
  void send_to_peer(const void* shared, int rank, const void* words, size_t bytes,
                    const void* mailbox);
  void init_barrier(void* barrier, int arrivals);
  void arrive_at(const void* barrier, int bytes);
  void arrive_with_copies(const void* barrier);
  void wait_at(const void* barrier, int parity);
  void copy_box(void* shared, const void* map, const int (&corner)[4], const void* barrier);
  const Fiber& current() const { return *current_; }
  unsigned char* dynamic_shared() { return shared_; }

 private:
  /// Lanes that wait for one another.
  struct Group {
    const char* operation;
    Compute compute;
    unsigned mask, arrived;
    void* operands[kWarp];
  };
  struct Warp {
    unsigned ready = 0;   ///< lanes that could run
    unsigned living = 0;  ///< lanes that have not ended
    std::vector<Group> groups;
  };

  static void enter();
  void live();
  void reset(const LaunchShape& shape);
  void switch_to(Fiber& next);
  Fiber* next_ready();
  void go_on();
  void end();
  void complete(Warp& warp, unsigned warp_number, size_t group);
  void open_barrier();
  void land_stores(Fiber& fiber);
  void wake(Fiber::State waiting);
  size_t shared_offset(const void* address, size_t bytes, const char* what);
  template <class Due>
  static void run_copies(Fiber& fiber, const Due& due);
  PhaseBarrier phase_barrier(size_t at, const char* misuse);
  void change_barrier(size_t at, int arrivals, int64_t bytes);
  void land(const Landing& landing);
  void start_landing(Landing landing);
  bool land_all();
  std::string place(const Fiber& fiber) const;
  std::string broken_guard() const;
  Fiber& fiber(unsigned warp, unsigned lane) { return fibers_[warp * kWarp + lane]; }

  std::deque<Fiber> fibers_;  // they do not move
  std::vector<Warp> warps_;
  Fiber main_;
  Fiber* current_ = nullptr;
  Fiber* left_ = nullptr;  // whose turn was before
  Kernel kernel_;
  const void* arguments_ = nullptr;
  unsigned threads_ = 0, living_ = 0, at_barrier_ = 0;
  Index block_index_;
  Cluster* cluster_ = nullptr;
  bool odd_ = false;
  std::string error_;
  std::unique_ptr<unsigned char[]> shared_memory_;
  unsigned char* shared_ = nullptr;
  size_t shared_bytes_ = 0;
  std::vector<Landing> landings_;  // under way
};

}  // namespace muse::simt
