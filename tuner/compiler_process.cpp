// SPDX-License-Identifier: Apache-2.0
// One compiler process: a socket pair for requests and replies, a pipe for what it says last.
#include "tuner/compiler_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>

namespace muse::tuner {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kGrace{100};       ///< from TERM to KILL: it has nothing to put in order
constexpr milliseconds kKillLimit{2000};  ///< from KILL until it is left to itself

std::string system_text(const char* what) {
  return fmt::format("{}: {}", what, std::generic_category().message(errno));
}

}  // namespace

tl::expected<std::unique_ptr<CompilerProcess>, std::string> CompilerProcess::start(
    const std::filesystem::path& executable) {
  std::unique_ptr<CompilerProcess> self(new CompilerProcess);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return tl::unexpected(system_text("socket pair"));
  }
  self->socket_ = Fd(ends[0]);
  const Fd theirs(ends[1]);
  if (pipe2(ends, O_CLOEXEC) != 0) return tl::unexpected(system_text("pipe"));
  self->error_output_ = Fd(ends[0]);
  const Fd their_error_output(ends[1]);
  for (const Fd* fd : {&self->socket_, &self->error_output_}) {
    if (fcntl(fd->get(), F_SETFL, O_NONBLOCK) != 0) return tl::unexpected(system_text("fcntl"));
  }
  const auto pid =
      spawn({.executable = executable.empty() ? "/proc/self/exe" : executable,
             .arguments = {"muse-tune", "compile-worker", "--fd", std::to_string(kFirstInherited),
                           "--parent", std::to_string(getpid())},
             .inherited = {theirs.get()},
             .error_output = their_error_output.get()});
  if (!pid) return tl::unexpected(pid.error());
  self->pid_ = *pid;
  return self;
}

CompilerProcess::~CompilerProcess() {
  if (pid_ > 0) end_child(pid_, kGrace, kKillLimit);
}

void CompilerProcess::ask(const CompileRequest& request, milliseconds deadline) {
  unsent_ = frame(encode(request));
  limit_ = deadline;
  deadline_ = Clock::now() + deadline;
}

void CompilerProcess::add_to(std::vector<pollfd>& fds) const {
  const short events = unsent_.empty() ? POLLIN : POLLIN | POLLOUT;
  fds.push_back({socket_.get(), events, 0});
  fds.push_back({error_output_.get(), POLLIN, 0});  // a negative one is ignored
}

bool CompilerProcess::drain() {
  char bytes[65536];
  ssize_t got = read(error_output_.get(), bytes, sizeof bytes);
  if (got > 0) words_.add({bytes, static_cast<size_t>(got)});
  if (got == 0) error_output_.reset();  // closed: poll would report it for ever
  got = recv(socket_.get(), bytes, sizeof bytes, 0);
  if (got > 0) replies_.feed({bytes, static_cast<size_t>(got)});
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

tl::unexpected<CompilerProcess::Loss> CompilerProcess::lose(Loss loss) {
  if (pid_ > 0 && !end_child(pid_, kGrace, kKillLimit)) {
    loss.reason += fmt::format("; process {} does not end even when killed", pid_);
  }
  pid_ = -1;
  deadline_.reset();
  if (error_output_) drain();
  if (const std::string line = words_.line(); !line.empty()) {
    loss.reason += "; its last words: " + line;
  }
  return tl::unexpected(std::move(loss));
}

std::optional<tl::expected<CompileReply, CompilerProcess::Loss>> CompilerProcess::look() {
  if (!unsent_.empty()) {
    const ssize_t sent = send(socket_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent > 0) unsent_.erase(0, static_cast<size_t>(sent));
  }
  const bool open = drain();
  const auto message = replies_.next();
  if (!message) return lose({.reason = "compiler sent garbage: " + message.error()});
  if (*message) {
    const auto reply = decode_compile_reply(**message);
    if (!reply) return lose({.reason = "compiler sent garbage: " + reply.error()});
    deadline_.reset();
    return *reply;
  }
  if (!open) {
    const std::optional<Ending> ending = collect(pid_, kKillLimit);
    if (!ending) return lose({.reason = "compiler closed its channel"});
    pid_ = -1;
    return lose({.killed = ending->signal == SIGKILL || ending->signal == SIGTERM,
                 .reason = "compiler " + ending->text()});
  }
  if (deadline_ && Clock::now() >= *deadline_) {
    const double seconds = std::chrono::duration<double>(limit_).count();
    return lose({.late = true, .reason = fmt::format("not compiled within {:.3g} s", seconds)});
  }
  return std::nullopt;
}

}  // namespace muse::tuner
