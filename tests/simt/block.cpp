// SPDX-License-Identifier: Apache-2.0
// Switching between fibers, who runs next, who waits for whom, and what goes wrong in a kernel.
#include "tests/simt/block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "tests/simt/cluster.h"
#include "tests/simt/cuda_builtins.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/common_interface_defs.h>
#define MUSE_SIMT_ASAN 1
#endif

__thread muse::simt::Index threadIdx, blockIdx, blockDim, gridDim;

namespace muse::simt {
namespace {

#if defined(MUSE_SIMT_ASAN)
constexpr size_t kStackBytes = size_t{1} << 20;  // redzones around every variable
#else
constexpr size_t kStackBytes = size_t{128} << 10;
#endif
constexpr size_t kPageBytes = 4096;
constexpr size_t kGuardBytes = 1024;  // before and behind the dynamic shared memory

__thread Block* running_block = nullptr;

void allocate_stack(Fiber& fiber) {
  const size_t bytes = kStackBytes + kPageBytes;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kPageBytes, PROT_NONE);  // an overflow crashes at once
  fiber.stack = static_cast<char*>(memory) + kPageBytes;
  fiber.stack_bytes = kStackBytes;
}

/// Tells AddressSanitizer, which watches stacks.
void leave_for([[maybe_unused]] Fiber& self, [[maybe_unused]] const Fiber& next) {
#if defined(MUSE_SIMT_ASAN)
  __sanitizer_start_switch_fiber(&self.fake_stack, next.stack, next.stack_bytes);
#endif
}
void arrived_at([[maybe_unused]] Fiber& self, [[maybe_unused]] Fiber& from) {
#if defined(MUSE_SIMT_ASAN)
  const void* stack = nullptr;
  __sanitizer_finish_switch_fiber(self.fake_stack, &stack, &from.stack_bytes);
  from.stack = const_cast<void*>(stack);  // the OS thread's own is learned here
#endif
}

std::string text(Index index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " +
         std::to_string(index.z) + ")";
}

}  // namespace

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%08llx", static_cast<unsigned long long>(value));
  return text;
}

Block* Block::running() { return running_block; }

Block::Block()
    : shared_memory_(new unsigned char[kMaximumSharedBytes + 2 * kGuardBytes + kSharedAlignment]) {
  const auto address = reinterpret_cast<uintptr_t>(shared_memory_.get()) + kGuardBytes;
  shared_ = reinterpret_cast<unsigned char*>((address + kSharedAlignment - 1) / kSharedAlignment *
                                             kSharedAlignment);
}

Block::~Block() {
  for (Fiber& fiber : fibers_) {
    munmap(static_cast<char*>(fiber.stack) - kPageBytes, fiber.stack_bytes + kPageBytes);
  }
}

/// Where a fresh fiber starts.
void Block::enter() {
  Block& block = *running_block;
  arrived_at(*block.current_, *block.left_);
  block.live();
}

void Block::live() {
  while (true) {
    threadIdx = current_->index;
    kernel_.call(arguments_);
    end();
  }
}

/// Returns when somebody switches back. _setjmp keeps no signal mask, hence makes no system call.
[[gnu::noinline]] void Block::switch_to(Fiber& next) {
  Fiber& self = *current_;
  leave_for(self, next);
  if (_setjmp(self.context) == 0) {
    left_ = &self;
    current_ = &next;
    if (next.started) _longjmp(next.context, 1);
    next.started = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = next.stack;
    context.uc_stack.ss_size = next.stack_bytes - next.colour;
    context.uc_link = nullptr;
    makecontext(&context, &Block::enter, 0);
    setcontext(&context);
  }
  arrived_at(*current_, *left_);
  threadIdx = current_->index;
}

void Block::start(const Kernel& kernel, const void* arguments, const LaunchShape& shape,
                  Index index, uint64_t number, Cluster& cluster) {
  kernel_ = kernel;
  arguments_ = arguments;
  block_index_ = index;
  odd_ = number % 2 == 1;
  cluster_ = &cluster;
  reset(shape);
}

bool Block::can_go() const {
  return std::any_of(warps_.begin(), warps_.end(),
                     [](const Warp& warp) { return warp.ready != 0; });
}

void Block::go() {
  blockIdx = block_index_;
  running_block = this;
  main_.started = true;
  current_ = &main_;
  switch_to(*next_ready());
  running_block = nullptr;
}

void Block::give_up() {
  for (Fiber& fiber : fibers_) fiber.started = false;
}

void Block::reset(const LaunchShape& shape) {
  gridDim = shape.grid;
  blockDim = shape.block;
  error_.clear();
  landings_.clear();
  threads_ = blockDim.x * blockDim.y * blockDim.z;
  living_ = threads_;
  at_barrier_ = 0;
  while (fibers_.size() < threads_) {
    fibers_.emplace_back();
    allocate_stack(fibers_.back());
    fibers_.back().colour = fibers_.size() % 16 * 512;
  }
  warps_.resize((threads_ + kWarp - 1) / kWarp);
  for (Warp& warp : warps_) {
    warp.ready = warp.living = 0;
    warp.groups.clear();
  }
  for (unsigned i = 0; i < threads_; ++i) {
    Fiber& fiber = fibers_[i];
    fiber.state = Fiber::State::kReady;
    fiber.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    fiber.warp = i / kWarp;
    fiber.lane = i % kWarp;
    fiber.copies.clear();
    fiber.copy_group = 0;
    fiber.copies_started = 0;
    fiber.stores.clear();
    fiber.arrived = false;
    warps_[fiber.warp].ready |= 1U << fiber.lane;
    warps_[fiber.warp].living |= 1U << fiber.lane;
  }
  shared_bytes_ = shape.dynamic_shared_bytes;
  std::memset(shared_ - kGuardBytes, odd_ ? 0x7F : 0xFF, shared_bytes_ + 2 * kGuardBytes);
  std::memset(shared_, 0xFF, shared_bytes_);
}

std::string Block::broken_guard() const {
  const unsigned char expected = odd_ ? 0x7F : 0xFF;
  const auto changed = [expected](unsigned char byte) { return byte != expected; };
  const unsigned char* const end = shared_ + shared_bytes_;
  const unsigned char* const behind = std::find_if(end, end + kGuardBytes, changed);
  const unsigned char* const before = std::find_if(shared_ - kGuardBytes, shared_, changed);
  const std::string block = "block " + text(block_index_) + ": ";
  if (behind != end + kGuardBytes) {
    return block + "shared memory written " + std::to_string(behind - end) + " bytes behind its " +
           std::to_string(shared_bytes_);
  }
  if (before != shared_) {
    return block + "shared memory written " + std::to_string(shared_ - before) +
           " bytes before its start";
  }
  return "";
}

/// The next lane of the same warp, else of the warps behind it; null where all wait or have ended.
Fiber* Block::next_ready() {
  const unsigned count = static_cast<unsigned>(warps_.size());
  const bool fresh = current_ == &main_;
  const unsigned start = fresh ? (odd_ ? count - 1 : 0) : current_->warp;
  for (unsigned step = 0; step < count; ++step) {
    const unsigned number = (odd_ ? start + count - step : start + step) % count;
    const unsigned ready = warps_[number].ready;
    if (ready == 0) continue;
    const unsigned behind = step == 0 && !fresh ? ready & ~((2U << current_->lane) - 1) : 0;
    return &fiber(number, static_cast<unsigned>(__builtin_ctz(behind != 0 ? behind : ready)));
  }
  return nullptr;
}

/// To whoever can run; back when the current fiber can again.
void Block::go_on() {
  land_stores(*current_);
  Fiber* next = next_ready();
  if (!next && land_all()) next = next_ready();
  if (next == current_) return;
  if (next) {
    switch_to(*next);
    return;
  }
  switch_to(main_);
}

void Block::note(const std::string& what) { error_ = place(*current_) + ": " + what; }

void Block::abandon() {
  switch_to(main_);
  __builtin_unreachable();
}

void Block::end() {
  Fiber& self = *current_;
  self.state = Fiber::State::kEnded;
  Warp& warp = warps_[self.warp];
  warp.ready &= ~(1U << self.lane);
  warp.living &= ~(1U << self.lane);
  --living_;
  if (living_ == 0 && !landings_.empty()) {
    note("the block ends before its asynchronous copies have landed");
    abandon();
  }
  // Who has ended is waited for no longer.
  for (size_t i = warp.groups.size(); i-- > 0;) {
    const Group& group = warp.groups[i];
    if ((group.mask & warp.living & ~group.arrived) == 0) complete(warp, self.warp, i);
  }
  if (living_ > 0 && at_barrier_ == living_) open_barrier();
  cluster_->end(self);
  go_on();
}

int Block::barrier(int predicate) {
  Fiber& self = *current_;
  self.state = Fiber::State::kAtBarrier;
  self.predicate = predicate != 0;
  warps_[self.warp].ready &= ~(1U << self.lane);
  if (++at_barrier_ == living_) open_barrier();
  go_on();
  return self.predicate;
}

void Block::open_barrier() {
  at_barrier_ = 0;
  int count = 0;
  for (unsigned i = 0; i < threads_; ++i) {
    if (fibers_[i].state == Fiber::State::kAtBarrier) count += fibers_[i].predicate;
  }
  for (unsigned i = 0; i < threads_; ++i) {
    Fiber& fiber = fibers_[i];
    if (fiber.state != Fiber::State::kAtBarrier) continue;
    fiber.state = Fiber::State::kReady;
    fiber.predicate = count;
    warps_[fiber.warp].ready |= 1U << fiber.lane;
  }
}

void Block::rendezvous(const char* operation, unsigned mask, void* operand, Compute compute) {
  Fiber& self = *current_;
  Warp& warp = warps_[self.warp];
  const unsigned bit = 1U << self.lane;
  if ((mask & bit) == 0) {
    note(std::string(operation) + " with a mask that lacks the lane itself");
    abandon();
  }
  size_t i = 0;
  while (i < warp.groups.size() &&
         (warp.groups[i].compute != compute || warp.groups[i].mask != mask)) {
    ++i;
  }
  if (i == warp.groups.size()) warp.groups.push_back({operation, compute, mask, 0, {}});
  Group& group = warp.groups[i];
  group.arrived |= bit;
  group.operands[self.lane] = operand;
  self.state = Fiber::State::kAtRendezvous;
  self.operation = operation;
  self.mask = mask;
  warp.ready &= ~bit;
  if ((mask & warp.living & ~group.arrived) == 0) {
    complete(warp, self.warp, i);
    return;  // it may run on; the others follow when it waits
  }
  go_on();
}

void Block::complete(Warp& warp, unsigned warp_number, size_t group) {
  const Group whole = warp.groups[group];
  warp.groups.erase(warp.groups.begin() + static_cast<ptrdiff_t>(group));
  whole.compute(whole.operands, whole.arrived);
  warp.ready |= whole.arrived;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((whole.arrived >> lane & 1U) != 0) fiber(warp_number, lane).state = Fiber::State::kReady;
  }
}

void Block::arrive_at_cluster() {
  Fiber& self = *current_;
  if (self.arrived) {
    note("arrives at its cluster's barrier again without having waited");
    abandon();
  }
  cluster_->arrive(self);
}

void Block::wait_for_cluster() {
  Fiber& self = *current_;
  if (!self.arrived) {
    note("waits at its cluster's barrier without having arrived");
    abandon();
  }
  self.arrived = false;
  if (self.arrival < cluster_->phase()) return;
  self.state = Fiber::State::kAtCluster;
  warps_[self.warp].ready &= ~(1U << self.lane);
  go_on();
}

void Block::open_cluster_barrier() { wake(Fiber::State::kAtCluster); }

void Block::wake(Fiber::State waiting) {
  for (unsigned i = 0; i < threads_; ++i) {
    Fiber& fiber = fibers_[i];
    if (fiber.state != waiting) continue;
    fiber.state = Fiber::State::kReady;
    warps_[fiber.warp].ready |= 1U << fiber.lane;
  }
}

size_t Block::shared_offset(const void* address, size_t bytes, const char* what) {
  const auto offset = static_cast<size_t>(static_cast<const unsigned char*>(address) - shared_);
  if (offset > shared_bytes_ || shared_bytes_ - offset < bytes) {
    note(std::string(what) + " outside dynamic shared memory");
    abandon();
  }
  if (offset % bytes != 0) {
    note(std::string(what) + " not aligned to " + std::to_string(bytes) + " bytes");
    abandon();
  }
  return offset;
}

std::string Block::place(const Fiber& fiber) const {
  return "block " + text(block_index_) + ", thread " + text(fiber.index) + " (warp " +
         std::to_string(fiber.warp) + ", lane " + std::to_string(fiber.lane) + ")";
}

std::string Block::deadlock() const {
  const auto waits_for = [](const Fiber& fiber) -> std::string {
    switch (fiber.state) {
      case Fiber::State::kFresh:
      case Fiber::State::kReady:
        return "runs";
      case Fiber::State::kAtBarrier:
        return "waits at __syncthreads";
      case Fiber::State::kAtRendezvous:
        return std::string("waits at ") + fiber.operation + " with mask " + hex(fiber.mask);
      case Fiber::State::kAtCluster:
        return "waits for its cluster";
      case Fiber::State::kAtMailbox:
        return "waits for mail";
      case Fiber::State::kAtPhase:
        return "waits for a phase";
      case Fiber::State::kEnded:
        return "has ended";
    }
    return "";
  };
  std::string what = "block " + text(block_index_) + ": deadlock:";
  for (unsigned first = 0; first < threads_;) {  // runs of lanes that wait for the same
    const Fiber& fiber = fibers_[first];
    unsigned last = first;
    while (last + 1 < threads_ && fibers_[last + 1].warp == fiber.warp &&
           waits_for(fibers_[last + 1]) == waits_for(fiber)) {
      ++last;
    }
    what += " warp " + std::to_string(fiber.warp) + " lane " + std::to_string(fiber.lane);
    if (last > first) what += ".." + std::to_string(fibers_[last].lane);
    what += " " + waits_for(fiber) + ";";
    first = last + 1;
  }
  what.pop_back();
  return what;
}

// What kernels call. ----------------------------------------------------------------------------

void fail(const char* what) {
  running_block->note(what);
  running_block->abandon();
}
unsigned lane_id() { return running_block->current().lane; }
unsigned char* dynamic_shared() { return running_block->dynamic_shared(); }
int block_barrier(int predicate) { return running_block->barrier(predicate); }
void warp_rendezvous(const char* operation, unsigned mask, void* operand, Compute compute) {
  running_block->rendezvous(operation, mask, operand, compute);
}
void start_copy(void* target, const void* source, size_t bytes) {
  running_block->start_copy({target, source, bytes, 0});
}
void commit_copies() { running_block->commit_copies(); }
void wait_copies(int pending) { running_block->wait_copies(pending); }
void arrive_at_cluster() { running_block->arrive_at_cluster(); }
void wait_for_cluster() { running_block->wait_for_cluster(); }
void open_mailbox(void* mailbox, int bytes) { running_block->open_mailbox(mailbox, bytes); }
void wait_for_mail(const void* mailbox) { running_block->wait_for_mail(mailbox); }
void init_barrier(void* barrier, int arrivals) { running_block->init_barrier(barrier, arrivals); }
void arrive_at(void* barrier, int bytes) { running_block->arrive_at(barrier, bytes); }
void arrive_with_copies(void* barrier) { running_block->arrive_with_copies(barrier); }
void wait_at(const void* barrier, int parity) { running_block->wait_at(barrier, parity); }
void copy_box(void* shared, const void* map, const int (&corner)[4], void* barrier) {
  running_block->copy_box(shared, map, corner, barrier);
}
void send_to_peer(const void* shared, int rank, const void* words, size_t bytes,
                  const void* mailbox) {
  running_block->send_to_peer(shared, rank, words, bytes, mailbox);
}

}  // namespace muse::simt
