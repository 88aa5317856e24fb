// SPDX-License-Identifier: Apache-2.0
// A compiler process: compiles one candidate after the other and puts each cubin into the cache.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>

#include "tuner/compile.h"
#include "tuner/compile_protocol.h"
#include "tuner/nvrtc.h"
#include "tuner/protocol.h"
#include "tuner/ptxas_log.h"
#include "tuner/records.h"
#include "variants/kernel_source.h"

namespace muse::tuner {
namespace {

using Kind = CompileReply::Kind;

/// Of a log; templates can make them long without end.
constexpr size_t kLogBytes = size_t{1} << 16;

enum ExitStatus { kQuit = 0, kOrphan = 2, kGarbage = 4 };

std::string kept(const std::string& log) { return plain_text(log.substr(0, kLogBytes)); }

Compiled describe(const Candidate& candidate, NvrtcResult result) {
  Compiled compiled{.cubin_hash = hash_hex(result.cubin),
                    .source_hash = source_hash(candidate),
                    .log = kept(result.log)};
  const auto facts = parse_ptxas_log(result.log);
  const std::vector<std::string>& entries = candidate.variant->entries;
  for (size_t i = 0; i < entries.size(); ++i) {
    CompiledKernel kernel{.entry = entries[i], .symbol = result.symbols[i]};
    if (const auto found = facts.find(kernel.symbol); found != facts.end()) {
      kernel.registers = found->second.registers;
      kernel.shared_bytes = found->second.shared_bytes;
      kernel.spill_bytes = found->second.spill_bytes;
    }
    compiled.kernels.push_back(std::move(kernel));
  }
  compiled.cubin = std::move(result.cubin);
  return compiled;
}

CompileReply compile(const Nvrtc& nvrtc, const CompileRequest& request) {
  Variant variant;  // what the text is made of, and no more
  variant.name = request.variant;
  variant.entries = request.entries;
  const Candidate candidate{&variant, request.configuration};
  NvrtcProgram program{.text = configuration_text(candidate),
                       .headers = embedded_closure(variant),
                       .architecture = request.architecture};
  for (const std::string& entry : variant.entries) {
    program.expressions.push_back(kernel_expression(candidate, entry));
  }
  const auto start = std::chrono::steady_clock::now();
  NvrtcResult result = nvrtc.compile(program);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  if (!result.ok) return {Kind::kFailed, kept(result.log), {}};
  Compiled compiled = describe(candidate, std::move(result));
  compiled.compile_ms = took.count();
  try {
    CubinCache(request.cache).store(candidate, request.toolkit, request.architecture, compiled);
  } catch (const std::exception& error) {
    return {Kind::kNotStored, plain_text(error.what()), {}};
  }
  return {Kind::kStored, "", {}};
}

CompileReply answer(const tl::expected<Nvrtc, std::string>& nvrtc, const CompileRequest& request) {
  if (!nvrtc) return {Kind::kUnavailable, plain_text(nvrtc.error()), {}};
  if (request.variant.empty()) return {Kind::kToolkit, nvrtc->toolkit(), nvrtc->targets()};
  if (nvrtc->toolkit() != request.toolkit) {
    return {Kind::kUnavailable,
            fmt::format("NVRTC here is {}, and {} is asked for", nvrtc->toolkit(), request.toolkit),
            {}};
  }
  return compile(*nvrtc, request);
}

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

}  // namespace

int compile_worker_main(int fd, int parent_pid) {
  // The order matters: a parent that dies between the two lines is seen by the second.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent_pid) return kOrphan;
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  // Before the folder changes: search paths in the environment may be relative to it.
  const tl::expected<Nvrtc, std::string> nvrtc = Nvrtc::load();
  // Line information holds the working directory: with one for all, equal sources give equal bytes.
  if (chdir("/") != 0) return kOrphan;
  MessageBuffer buffer;
  char bytes[65536];
  for (;;) {
    const auto message = buffer.next();
    if (!message) return kGarbage;
    if (*message) {
      const auto request = decode_compile_request(**message);
      if (!request) return kGarbage;
      if (!send_all(fd, frame(encode(answer(nvrtc, *request))))) return kOrphan;
      continue;
    }
    const ssize_t got = recv(fd, bytes, sizeof bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return kQuit;
    buffer.feed({bytes, static_cast<size_t>(got)});
  }
}

}  // namespace muse::tuner
