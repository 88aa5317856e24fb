// SPDX-License-Identifier: Apache-2.0
// Threads of the host variants: a persistent pool and a loop over it.
#pragma once

#include <cstdint>

namespace muse::host {

/// What run_parallel calls: context, worker in [0, threads), item in [0, items).
using ParallelBody = void (*)(const void* context, int worker, int64_t item);

/// The untyped form of parallel_for.
void run_parallel(int threads, int64_t items, ParallelBody body, const void* context);

/// Calls body(worker, item) once for every item, on at most `threads` threads, the caller being
/// worker 0; returns when all are done. Which worker takes which item is left to chance, so that
/// results may depend on `item` alone; `worker` chooses scratch memory. One thread means a plain
/// loop. Loops of several callers run one after the other; a body must neither throw nor start
/// another loop. Throws std::system_error where a thread cannot be started (first use of so many
/// threads only).
template <class Body>
void parallel_for(int threads, int64_t items, const Body& body) {
  if (threads <= 1 || items <= 1) {
    for (int64_t item = 0; item < items; ++item) body(0, item);
    return;
  }
  run_parallel(
      threads, items,
      [](const void* context, int worker, int64_t item) {
        (*static_cast<const Body*>(context))(worker, item);
      },
      &body);
}

}  // namespace muse::host
