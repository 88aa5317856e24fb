// SPDX-License-Identifier: Apache-2.0
// A backend that publishes on the progress page when a variant's code runs, so that the deadline
// counts that time and no other.
#pragma once

#include <memory>

#include "tuner/backend.h"
#include "tuner/protocol.h"

namespace muse::tuner {

/// The worker's pen on the progress page.
class Publisher {
 public:
  explicit Publisher(Progress& page) : page_(page) {}
  void beat() { page_.beat.fetch_add(1, std::memory_order_release); }
  void at(int entrant, int candidate, int launch) {
    page_.entrant.store(entrant, std::memory_order_relaxed);
    page_.candidate.store(candidate, std::memory_order_relaxed);
    page_.launch.store(launch, std::memory_order_relaxed);
    beat();
  }
  /// A variant's code runs from the first enter() to the last leave().
  void enter() {
    if (running_++ == 0) page_.reference.store(0, std::memory_order_relaxed);
    beat();
  }
  void leave() {
    if (--running_ == 0) page_.reference.store(1, std::memory_order_relaxed);
    beat();
  }
  void set_waiting(bool waiting) {
    page_.waiting.store(waiting ? 1 : 0, std::memory_order_relaxed);
    beat();
  }

 private:
  Progress& page_;
  int running_ = 0;
};

/// While it lives the deadline counts.
class OnTheClock {
 public:
  explicit OnTheClock(Publisher& publisher) : publisher_(publisher) { publisher_.enter(); }
  ~OnTheClock() { publisher_.leave(); }
  OnTheClock(const OnTheClock&) = delete;
  OnTheClock& operator=(const OnTheClock&) = delete;

 private:
  Publisher& publisher_;
};

/// `inner` with binding, launches, synchronisation and samples (which wait for the device) on the
/// clock; everything else is the host's own work. Both references must outlive the result.
std::unique_ptr<Backend> watch(Backend& inner, Publisher& publisher);

}  // namespace muse::tuner
