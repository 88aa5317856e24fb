// SPDX-License-Identifier: Apache-2.0
// What the processor and the compiler's checks find in a kernel ends its launch as on a GPU.
#include <csignal>
#include <cstdint>
#include <string>

#include "tests/simt/block.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define MUSE_SIMT_ASAN 1
#endif

namespace muse::simt {
#if !defined(MUSE_SIMT_ASAN)
namespace {

/// Runs on the fiber's own stack, which is left for good.
void on_fault(int signal, siginfo_t* info, void*) {
  Block* const running = Block::running();
  if (!running || !running->in_kernel()) {
    std::signal(signal, SIG_DFL);  // not a kernel's: strikes again when this returns
    return;
  }
  running->note((signal == SIGFPE ? "division by zero at " : "illegal access of address ") +
                hex(reinterpret_cast<uintptr_t>(info->si_addr)));
  running->abandon();
}

}  // namespace
#endif

void catch_illegal_accesses() {
#if !defined(MUSE_SIMT_ASAN)
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(signal, &action, nullptr);
#endif
}

}  // namespace muse::simt

// The kernels are compiled with -fsanitize=alignment,bounds and without its runtime: what it finds
// ends the launch as on a GPU. The layouts are the compilers' ABI.
namespace {

struct SourceLocation {
  const char* file;
  uint32_t line, column;
};
struct TypeMismatch {
  SourceLocation location;
  const void* type;
  unsigned char log_alignment, kind;
};
struct OutOfBounds {
  SourceLocation location;
  const void* array_type;
  const void* index_type;
};

std::string text(const SourceLocation& location) {
  return std::string(location.file) + ":" + std::to_string(location.line);
}

}  // namespace

extern "C" [[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(const TypeMismatch* data,
                                                                   uintptr_t address) {
  using muse::simt::hex;
  muse::simt::Block* const running = muse::simt::Block::running();
  running->note(text(data->location) + ": address " + hex(address) + " is not aligned to " +
                std::to_string(1U << data->log_alignment) + " bytes");
  running->abandon();
}

extern "C" [[noreturn]] void __ubsan_handle_out_of_bounds_abort(const OutOfBounds* data,
                                                                uintptr_t index) {
  muse::simt::Block* const running = muse::simt::Block::running();
  running->note(text(data->location) + ": index " + std::to_string(index) +
                " is outside its array");
  running->abandon();
}
