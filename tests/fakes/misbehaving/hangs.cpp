// SPDX-License-Identifier: Apache-2.0
// Gates that do not come back, each bounded by 20 s, and one that talks too much.
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "tests/fakes/misbehaving/misbehaving.h"
#include "variants/registry.h"

namespace muse::misbehaving {
namespace {

constexpr std::chrono::seconds kBound{20};

void spin_for_the_bound() {
  const auto end = std::chrono::steady_clock::now() + kBound;
  while (std::chrono::steady_clock::now() < end) {
  }
}

void spin(const Arguments& arguments, int launch) {
  if (run_until_due(arguments, launch)) spin_for_the_bound();
}

void sleep_long(const Arguments& arguments, int launch) {
  if (run_until_due(arguments, launch)) std::this_thread::sleep_for(kBound);
}

void stop_self(const Arguments& arguments, int launch) {
  if (run_until_due(arguments, launch)) raise(SIGSTOP);
}

void ignore_term(const Arguments& arguments, int launch) {
  if (!run_until_due(arguments, launch)) return;
  signal(SIGTERM, SIG_IGN);
  spin_for_the_bound();
}

/// Leaves a child behind that holds every descriptor, and hangs.
void fork_and_spin(const Arguments& arguments, int launch) {
  if (!run_until_due(arguments, launch)) return;
  if (fork() == 0) {
    signal(SIGTERM, SIG_IGN);
    std::this_thread::sleep_for(kBound);
    _exit(0);
  }
  _exit(7);
}

/// 8 MiB without a newline, then one line; the answer is right.
void flood(const Arguments& arguments, int launch) {
  if (!run_until_due(arguments, launch)) return;
  const std::string block(1 << 20, '#');
  for (int i = 0; i < 8; ++i) static_cast<void>(!write(STDERR_FILENO, block.data(), block.size()));
  static_cast<void>(!write(STDERR_FILENO, "\nthe end\n", 9));
}

}  // namespace
}  // namespace muse::misbehaving

MUSE_REGISTER_VARIANT(gate, fake_spin, misbehaving::fake_gate("gate/fake_spin", misbehaving::spin))
MUSE_REGISTER_VARIANT(gate, fake_sleep,
                      misbehaving::fake_gate("gate/fake_sleep", misbehaving::sleep_long))
MUSE_REGISTER_VARIANT(gate, fake_stop,
                      misbehaving::fake_gate("gate/fake_stop", misbehaving::stop_self))
MUSE_REGISTER_VARIANT(gate, fake_ignore_term_spin,
                      misbehaving::fake_gate("gate/fake_ignore_term_spin",
                                             misbehaving::ignore_term))
MUSE_REGISTER_VARIANT(gate, fake_fork,
                      misbehaving::fake_gate("gate/fake_fork", misbehaving::fork_and_spin))
MUSE_REGISTER_VARIANT(gate, fake_flood,
                      misbehaving::fake_gate("gate/fake_flood", misbehaving::flood))
