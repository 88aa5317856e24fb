// SPDX-License-Identifier: Apache-2.0
// Independent pieces of work on all cores. Each piece writes its own results only, so that they do
// not depend on the number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace muse::reference {

/// Calls body(i) once for each i in [0, count). The body must not throw.
template <class Body>
void parallel_for(int64_t count, const Body& body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i = next++; i < count; i = next++) body(i);
  };
  const int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::jthread> helpers;  // joined at the end of the scope
  for (int64_t t = 1; t < std::min(cores, count); ++t) helpers.emplace_back(work);
  work();
}

}  // namespace muse::reference
