// SPDX-License-Identifier: Apache-2.0
// The pool: workers join an open job by themselves, the caller closes it when no item is left. A
// worker that wakes too late finds the job closed, so that the caller never waits for a wake-up.
#include "variants/host/parallel.h"

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "variants/host/intrinsics.h"

namespace muse::host {
namespace {

// About ten microseconds: as long as the gap between the launches of one pipeline, and short enough
// to leave the CPU to others.
constexpr int kSpins = 300;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

/// Returns when the value differs from `old`: spins shortly, then sleeps.
template <class T>
void wait_for_change(const std::atomic<T>& value, T old) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  value.wait(old, std::memory_order_acquire);
}

class Pool {
 public:
  static Pool& instance() {
    static Pool pool;
    return pool;
  }

  ~Pool() {
    stop_.store(true);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(int threads, int64_t items, ParallelBody body, const void* context) {
    const std::lock_guard lock(mutex_);
    while (static_cast<int>(threads_.size()) < threads - 1) {
      const int worker = static_cast<int>(threads_.size()) + 1;
      threads_.emplace_back([this, worker] { serve(worker); });
    }
    // The job is closed and nobody is inside: these are the caller's alone until it opens.
    body_ = body;
    context_ = context;
    items_ = items;
    workers_ = threads;
    next_.store(0, std::memory_order_relaxed);
    job_.store(kOpen, std::memory_order_release);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();

    take_items(0);
    // Acquire: what the workers wrote is seen by the caller.
    for (uint32_t inside = job_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen; inside != 0;
         inside = job_.load(std::memory_order_acquire)) {
      wait_for_change(job_, inside);
    }
  }

 private:
  static constexpr uint32_t kOpen = 1U << 31;  // of job_; the other bits count workers inside

  void serve(int worker) {
    uint32_t seen = 0;
    while (!stop_.load()) {
      wait_for_change(epoch_, seen);
      seen = epoch_.load(std::memory_order_acquire);
      if (!enter()) continue;
      if (worker < workers_) take_items(worker);
      if (job_.fetch_sub(1, std::memory_order_acq_rel) == 1) job_.notify_one();
    }
  }

  bool enter() {
    uint32_t job = job_.load(std::memory_order_acquire);
    while ((job & kOpen) != 0) {
      if (job_.compare_exchange_weak(job, job + 1, std::memory_order_acq_rel)) return true;
    }
    return false;
  }

  void take_items(int worker) {
    for (int64_t item = next_.fetch_add(1, std::memory_order_relaxed); item < items_;
         item = next_.fetch_add(1, std::memory_order_relaxed)) {
      body_(context_, worker, item);
    }
  }

  std::mutex mutex_;  // one job at a time
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint32_t> epoch_{0};  // rises with every job, so that sleepers wake
  alignas(64) std::atomic<uint32_t> job_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  ParallelBody body_ = nullptr;
  const void* context_ = nullptr;
  int64_t items_ = 0;
  int workers_ = 0;
};

}  // namespace

void run_parallel(int threads, int64_t items, ParallelBody body, const void* context) {
  Pool::instance().run(threads, items, body, context);
}

}  // namespace muse::host
