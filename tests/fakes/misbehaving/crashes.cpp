// SPDX-License-Identifier: Apache-2.0
// Gates that end the process, throw, or answer wrong.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/fakes/misbehaving/misbehaving.h"
#include "variants/registry.h"

namespace muse::misbehaving {
namespace {

void segv(const Arguments& arguments, int launch) {
  if (!run_until_due(arguments, launch)) return;
  std::fputs("about to touch \x1b[31mpage 0x10\n", stderr);
  volatile uintptr_t nowhere = 0x10;  // hidden from the compiler, which would warn
  *reinterpret_cast<volatile int*>(nowhere) = 1;
}

void abort_now(const Arguments& arguments, int launch) {
  if (run_until_due(arguments, launch)) std::abort();
}

void exit_well(const Arguments& arguments, int launch) {
  if (run_until_due(arguments, launch)) _exit(0);
}

/// Killed as the kernel kills for memory, but without it having done so.
void kill_self(const Arguments& arguments, int launch) {
  if (run_until_due(arguments, launch)) raise(SIGKILL);
}

void throw_int(const Arguments& arguments, int launch) {
  if (run_until_due(arguments, launch)) throw 42;
}

void throw_error(const Arguments& arguments, int launch) {
  if (run_until_due(arguments, launch)) throw std::runtime_error("the \x1b[2Jgate \xff fell off");
}

/// Asks for 256 MiB at a time up to 1 TiB and touches none of it.
void eat_memory(const Arguments& arguments, int launch) {
  if (!run_until_due(arguments, launch)) return;
  constexpr size_t kBlockBytes = size_t{256} << 20;
  std::vector<std::unique_ptr<std::byte[]>> blocks;
  for (int i = 0; i < 4096; ++i) {
    blocks.emplace_back(static_cast<std::byte*>(operator new[](kBlockBytes)));
  }
}

void write_wrong(const Arguments& arguments, int launch) {
  if (!run_until_due(arguments, launch)) return;
  const Block& all = block(arguments);
  all.out[all.elements - 1] ^= 0x0100;  // twice or half of what is right
}

void write_half(const Arguments& arguments, int launch) {
  const Block& all = block(arguments);
  const std::vector<uint16_t> before(all.out, all.out + all.elements);
  if (!run_until_due(arguments, launch)) return;
  const int64_t half = all.elements / 2;
  std::copy(before.begin() + half, before.end(), all.out + half);
}

/// Writes into every socket it finds and waits, so that nothing runs after it.
void send_garbage(const Arguments& arguments, int launch) {
  if (!run_until_due(arguments, launch)) return;
  for (int fd = 3; fd < 64; ++fd) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    static_cast<void>(send(fd, "\x05\0\0\0{\"a\"]", 9, MSG_NOSIGNAL));
  }
  std::this_thread::sleep_for(std::chrono::seconds(20));
}

}  // namespace
}  // namespace muse::misbehaving

MUSE_REGISTER_VARIANT(gate, fake_segv, misbehaving::fake_gate("gate/fake_segv", misbehaving::segv))
MUSE_REGISTER_VARIANT(gate, fake_abort,
                      misbehaving::fake_gate("gate/fake_abort", misbehaving::abort_now))
MUSE_REGISTER_VARIANT(gate, fake_exit0,
                      misbehaving::fake_gate("gate/fake_exit0", misbehaving::exit_well))
MUSE_REGISTER_VARIANT(gate, fake_kill,
                      misbehaving::fake_gate("gate/fake_kill", misbehaving::kill_self))
MUSE_REGISTER_VARIANT(gate, fake_throw_int,
                      misbehaving::fake_gate("gate/fake_throw_int", misbehaving::throw_int))
MUSE_REGISTER_VARIANT(gate, fake_throw,
                      misbehaving::fake_gate("gate/fake_throw", misbehaving::throw_error))
MUSE_REGISTER_VARIANT(gate, fake_oom,
                      misbehaving::fake_gate("gate/fake_oom", misbehaving::eat_memory))
MUSE_REGISTER_VARIANT(gate, fake_wrong,
                      misbehaving::fake_gate("gate/fake_wrong", misbehaving::write_wrong))
MUSE_REGISTER_VARIANT(gate, fake_half,
                      misbehaving::fake_gate("gate/fake_half", misbehaving::write_half))
MUSE_REGISTER_VARIANT(gate, fake_garbage,
                      misbehaving::fake_gate("gate/fake_garbage", misbehaving::send_garbage))
