// SPDX-License-Identifier: Apache-2.0
// What emulated kernels ask of the emulator: a block's threads are fibers of one OS thread, and
// whatever waits for other threads of the block or its cluster comes through here. C++17, as device
// code is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace muse::simt {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

struct Index {
  unsigned x = 1, y = 1, z = 1;
};

/// A kernel with its configuration, called once for each thread.
struct Kernel {
  void (*call)(const void* arguments) = nullptr;
  size_t argument_bytes = 0;
};

template <auto function>
struct KernelOf;
template <class Pod, void (*function)(Pod)>
struct KernelOf<function> {
  static void call(const void* arguments) { function(*static_cast<const Pod*>(arguments)); }
  static constexpr Kernel kernel() { return {&call, sizeof(Pod)}; }
};

/// A launch that a GPU would have refused, trapped or hung in; says where.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct LaunchShape {
  Index grid, block;
  size_t dynamic_shared_bytes = 0;
  Index cluster = {};  ///< blocks that run at the same time
};

/// Runs every block to its end on up to `os_threads` threads of the system. Even blocks go through
/// their warps upwards and complete asynchronous copies as late as allowed; odd blocks go downwards
/// and copy at once: what holds in one order only shows in the other. Every other launch of a
/// kernel takes the blocks in reverse. The kernel must lie in a shared library whose thread_local
/// objects are the `__shared__` ones and nothing else. Throws Error for the first block that went
/// wrong, an illegal access among it.
void launch(const Kernel& kernel, const void* arguments, const LaunchShape& shape, int os_threads);

// From here on for code that runs in a kernel. ---------------------------------------------------

/// Ends the launch with an Error that names block and thread.
[[noreturn]] void fail(const char* what);

unsigned lane_id();

/// Of the launch's size, poisoned, aligned to 1024 bytes.
unsigned char* dynamic_shared();

/// Every thread of the block that has not ended arrives; returns how many arrived with `predicate`.
int block_barrier(int predicate);

/// Operands by lane; null where the lane is not in the group.
using Compute = void (*)(void* const* operands, unsigned mask);
/// Waits for the lanes of `mask` that have not ended to come here with the same `compute`; the last
/// one runs it once for all.
void warp_rendezvous(const char* operation, unsigned mask, void* operand, Compute compute);

/// The same with types. `compute` is a plain function of (Operand* const* lanes, unsigned mask).
template <class Operand, void (*compute)(Operand* const*, unsigned)>
void warp_collective(const char* operation, unsigned mask, Operand& operand) {
  warp_rendezvous(operation, mask, &operand, [](void* const* operands, unsigned arrived) {
    Operand* lanes[kWarp];
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      lanes[lane] = static_cast<Operand*>(operands[lane]);
    }
    compute(lanes, arrived);
  });
}

/// `compute` where no lane is missing, else the end of the launch.
template <class Operand, void (*compute)(Operand* const*)>
void compute_whole(Operand* const* lanes, unsigned arrived) {
  if (arrived != kAllLanes) fail("an instruction of the whole warp ran without all its lanes");
  compute(lanes);
}

/// For instructions of the whole warp.
template <class Operand, void (*compute)(Operand* const*)>
void whole_warp(const char* operation, Operand& operand) {
  warp_collective<Operand, compute_whole<Operand, compute>>(operation, kAllLanes, operand);
}

/// Asynchronous copies of the thread: `bytes` from `source`, or zeros where it is null; both
/// addresses a multiple of `bytes`.
void start_copy(void* target, const void* source, size_t bytes);
void commit_copies();
/// Until at most the newest `pending` groups are under way.
void wait_copies(int pending);

/// The barrier of a cluster: every thread of its blocks that has not ended arrives.
void arrive_at_cluster();
void wait_for_cluster();
/// Eight bytes of dynamic shared memory that count what peers send, once.
void open_mailbox(void* mailbox, int bytes);
void wait_for_mail(const void* mailbox);
/// To where `shared`, in this block's dynamic shared memory, lies in that of block `rank`. It is
/// there once that one's mailbox has all its bytes: from odd blocks at once, from even ones when
/// the thread next waits for anything, or ends.
void send_to_peer(const void* shared, int rank, const void* words, size_t bytes,
                  const void* mailbox);

/// Barriers with phases: eight bytes of dynamic shared memory that count arrivals and bytes.
void init_barrier(void* barrier, int arrivals);
/// One arrival, and `bytes` more to land before the phase is over.
void arrive_at(void* barrier, int bytes);
/// One arrival, once the thread's copies of before have landed: in odd blocks they have, in even
/// ones they do when no thread of the block can go on otherwise.
void arrive_with_copies(void* barrier);
/// Until the phase of this parity, the current one or the one before, is over.
void wait_at(const void* barrier, int parity);
/// Copies the box of a tensor map whose first element is `corner`, which `barrier` counts; lands as
/// late as the above.
void copy_box(void* shared, const void* map, const int (&corner)[4], void* barrier);

}  // namespace muse::simt
