// SPDX-License-Identifier: Apache-2.0
// Spawns the worker, asks it, and puts it down where it hangs; what it did becomes a WorkerLoss.
#include "tuner/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include "tuner/process.h"
#include "tuner/worker_watch.h"

namespace muse::tuner {
namespace {

using std::chrono::milliseconds;

/// How often the flag to stop and the progress page are looked at while nothing else happens.
constexpr milliseconds kTick{20};
/// A stopped sweep has 3 s in all.
constexpr milliseconds kStopGrace{500};
constexpr milliseconds kFarewell{500};       ///< for an idle worker that was told to quit
constexpr milliseconds kCudaFarewell{5000};  ///< its context is torn down meanwhile
/// From KILL until the worker counts as lost. A GPU's kernel that runs is taken off the device
/// first.
constexpr milliseconds kHostKillLimit{2000}, kCudaKillLimit{10000};
constexpr int kCanaryFailures = 2;  ///< in a row, until the device counts as lost

std::string system_text(const char* what) {
  return fmt::format("{}: {}", what, std::generic_category().message(errno));
}

WorkerLoss loss(Outcome outcome, std::string reason) {
  WorkerLoss result;
  result.outcome = outcome;
  result.reason = std::move(reason);
  return result;
}

/// From the line that a worker says when the device has failed under it.
std::string fault_reason(const std::string& line) {
  const std::string_view prefix = "muse-tune: error: ";
  return fmt::format("{}; the worker ended with it and is replaced",
                     line.starts_with(prefix) ? line.substr(prefix.size()) : line);
}

}  // namespace

/// One worker process and the ends of its channels.
struct Worker {
  pid_t pid = -1;
  Fd socket, error_output;
  std::unique_ptr<ProgressPage> page;
  MessageBuffer replies;
  LastWords words;
};

struct Supervisor::Impl {
  WorkerOptions options;
  std::unique_ptr<Worker> worker;
  Hello hello;
  int spawned = 0;
  int canary_failures = 0;
  bool lost = false;
  std::string blameless_loss;  ///< not told yet

  template <class Expected>
  tl::expected<Expected, WorkerLoss> ask(const Request& request, int entrants,
                                         const std::string& what,
                                         std::function<void()> meanwhile = {});

  bool host() const { return options.target == "host"; }
  milliseconds kill_limit() const { return host() ? kHostKillLimit : kCudaKillLimit; }
  bool stopped() const { return options.stop && options.stop->load() != 0; }
  std::optional<WorkerLoss> start();
  std::optional<WorkerLoss> ensure();
  tl::expected<std::unique_ptr<Worker>, std::string> spawn_worker() const;
  tl::expected<Reply, WorkerLoss> exchange(const Request& request, const Patience::Limits& limits,
                                           int entrants, std::function<void()> meanwhile = {});
  void drain_words();
  bool dismiss();
  std::optional<Ending> put_down(milliseconds grace);
  WorkerLoss lose(Outcome outcome, const std::string& reason, int entrants);
  WorkerLoss lose_ended(const Ending& ending, int entrants, std::optional<int64_t> kills_before);
  WorkerLoss describe(WorkerLoss result, int entrants) const;
};

tl::expected<std::unique_ptr<Worker>, std::string> Supervisor::Impl::spawn_worker() const {
  auto result = std::make_unique<Worker>();
  try {
    result->page = std::make_unique<ProgressPage>();
  } catch (const std::system_error& error) {
    return tl::unexpected(std::string(error.what()));
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return tl::unexpected(system_text("socket pair"));
  }
  result->socket = Fd(ends[0]);
  const Fd theirs(ends[1]);
  if (pipe2(ends, O_CLOEXEC) != 0) return tl::unexpected(system_text("pipe"));
  result->error_output = Fd(ends[0]);
  const Fd their_error_output(ends[1]);
  for (const Fd* fd : {&result->socket, &result->error_output}) {
    if (fcntl(fd->get(), F_SETFL, O_NONBLOCK) != 0) return tl::unexpected(system_text("fcntl"));
  }
  const std::filesystem::path executable =
      options.executable.empty() ? "/proc/self/exe" : options.executable;
  const auto pid = spawn(
      {.executable = executable,
       .arguments = {"muse-tune", "worker", "--target", options.target, "--timer", options.timer,
                     "--cache", options.cache.string(), "--toolkit", options.toolkit, "--fd",
                     std::to_string(kFirstInherited), "--progress-fd",
                     std::to_string(kFirstInherited + 1), "--parent", std::to_string(getpid())},
       .inherited = {theirs.get(), result->page->fd()},
       .error_output = their_error_output.get()});
  if (!pid) return tl::unexpected(pid.error());
  result->pid = *pid;
  return result;
}

/// One read per call: a flood must not keep us from looking at the deadline.
void Supervisor::Impl::drain_words() {
  char bytes[65536];
  const ssize_t got = read(worker->error_output.get(), bytes, sizeof bytes);
  if (got > 0) worker->words.add({bytes, static_cast<size_t>(got)});
  if (got == 0) worker->error_output.reset();  // closed: poll would report it for ever
}

std::optional<Ending> Supervisor::Impl::put_down(milliseconds grace) {
  const std::optional<Ending> ending = end_child(worker->pid, grace, kill_limit());
  lost = lost || !ending;
  return ending;
}

WorkerLoss Supervisor::Impl::describe(WorkerLoss result, int entrants) const {
  // The page is only a hint: a candidate may have overwritten it.
  const Progress& progress = worker->page->progress();
  const int entrant = progress.entrant.load();
  if (entrant >= 0 && entrant < entrants) {
    result.entrant = entrant;
    result.candidate = std::max(-1, progress.candidate.load());
    result.launch = std::max(-1, progress.launch.load());
  }
  result.last_words = worker->words.text();
  if (const std::string line = worker->words.line(); !line.empty()) {
    result.reason += "; its last words: " + line;
  }
  return result;
}

/// Puts the worker down and says why.
WorkerLoss Supervisor::Impl::lose(Outcome outcome, const std::string& reason, int entrants) {
  WorkerLoss result = loss(outcome, reason);
  put_down(outcome == Outcome::kPending ? std::min(options.grace, kStopGrace) : options.grace);
  if (lost) {
    result.reason += fmt::format("; process {} does not end even when killed", worker->pid);
  }
  if (worker->error_output) drain_words();
  result = describe(std::move(result), entrants);
  worker.reset();
  return result;
}

/// The worker has ended by itself and is collected.
WorkerLoss Supervisor::Impl::lose_ended(const Ending& ending, int entrants,
                                        std::optional<int64_t> kills_before) {
  for (int i = 0; i < 2 && worker->error_output; ++i) drain_words();  // a pipe holds 64 KiB
  WorkerLoss result = loss(Outcome::kCrashed, "worker " + ending.text());
  const std::optional<int64_t> kills = out_of_memory_kills();
  if (ending.signal == SIGKILL && kills && kills_before && *kills > *kills_before) {
    result = loss(Outcome::kOom, "worker killed, probably for memory");
  } else if (ending.signal == 0 && ending.status >= 0) {
    result.reason += " before it answered";
  } else {
    result.blameless = ending.signal == SIGKILL || ending.signal == SIGTERM;
  }
  result = describe(std::move(result), entrants);
  if (!host() && ending.status == kDeviceFaultStatus) {
    result.reason = fault_reason(worker->words.line());
  }
  worker.reset();
  return result;
}

tl::expected<Reply, WorkerLoss> Supervisor::Impl::exchange(const Request& request,
                                                           const Patience::Limits& limits,
                                                           int entrants,
                                                           std::function<void()> meanwhile) {
  const std::optional<int64_t> kills_before = out_of_memory_kills();
  const std::string bytes = frame(encode(request));
  std::string_view unsent = bytes;
  Progress& progress = worker->page->progress();
  progress.entrant.store(-1);  // where it was in the request before is no clue
  Patience patience(progress, limits, [pid = worker->pid] { return cpu_time(pid); });
  bool announced = false;
  for (;;) {
    if (stopped()) return tl::unexpected(lose(Outcome::kPending, "stopped", entrants));
    if (progress.waiting.load() == 1 && !std::exchange(announced, true)) options.on_wait();
    if (const auto why = patience.exhausted(Patience::Clock::now())) {
      WorkerLoss hung = lose(Outcome::kTimeout, why->why, entrants);
      hung.blameless = why->silent;
      return tl::unexpected(std::move(hung));
    }
    if (patience.silent_for() >= options.told_silence) options.on_silence(patience.silent_for());
    pollfd fds[2] = {
        {worker->socket.get(), static_cast<short>(unsent.empty() ? POLLIN : POLLIN | POLLOUT), 0},
        {worker->error_output.get(), POLLIN, 0}};  // a negative one is ignored
    const int ready = poll(fds, 2, static_cast<int>(kTick.count()));
    if (ready == 0) {
      // A child that a candidate left behind may hold the socket open.
      if (const auto ending = try_collect(worker->pid)) {
        return tl::unexpected(lose_ended(*ending, entrants, kills_before));
      }
    }
    if (ready <= 0) continue;
    if (fds[1].revents != 0) drain_words();
    if (fds[0].revents & POLLOUT) {
      const ssize_t sent = send(worker->socket.get(), unsent.data(), unsent.size(), MSG_NOSIGNAL);
      if (sent > 0) unsent.remove_prefix(static_cast<size_t>(sent));
    }
    // However long it takes: a worker that has done its work has moved the page.
    if (unsent.empty() && meanwhile) std::exchange(meanwhile, nullptr)();
    if (!(fds[0].revents & (POLLIN | POLLHUP | POLLERR))) continue;
    char buffer[65536];
    const ssize_t got = recv(worker->socket.get(), buffer, sizeof buffer, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) {
      const auto ending = collect(worker->pid, host() ? options.grace : kill_limit());
      return tl::unexpected(
          ending ? lose_ended(*ending, entrants, kills_before)
                 : lose(Outcome::kCrashed, "worker closed its connection", entrants));
    }
    worker->replies.feed({buffer, static_cast<size_t>(got)});
    const auto garbage = [&](const std::string& what) {
      return tl::unexpected(lose(Outcome::kCrashed, "worker sent garbage: " + what, entrants));
    };
    const auto message = worker->replies.next();
    if (!message) return garbage(message.error());
    if (!*message) continue;
    if (!worker->replies.empty()) return garbage("more than one answer");
    auto reply = decode_reply(**message);
    if (!reply) return garbage(reply.error());
    return *std::move(reply);
  }
}

/// A worker that has said hello and, where another one died before it, passed the canary.
std::optional<WorkerLoss> Supervisor::Impl::start() {
  auto started = spawn_worker();
  if (!started) return loss(Outcome::kCrashed, started.error());
  worker = *std::move(started);
  const bool respawn = spawned++ > 0;
  const milliseconds limit = options.start_deadline;
  const Patience::Limits limits{.deadline = limit, .host_deadline = limit, .silence = limit};
  auto reply = exchange(HelloRequest{}, limits, 0);
  if (!reply) return std::move(reply.error());
  if (const auto* refusal = std::get_if<Refusal>(&*reply)) {
    WorkerLoss refused = lose(Outcome::kCrashed, refusal->reason, 0);
    refused.refusal = *refusal;
    return refused;
  }
  auto* greeting = std::get_if<Hello>(&*reply);
  if (!greeting) return lose(Outcome::kCrashed, "worker sent garbage: no hello", 0);
  hello = std::move(*greeting);
  if (!respawn) return std::nullopt;

  auto song = exchange(CanaryRequest{}, limits, 0);
  if (song) {
    const auto* report = std::get_if<ValidationReport>(&*song);
    if (report && report->outcome == Outcome::kOk) {
      canary_failures = 0;
      if (!blameless_loss.empty()) options.on_replaced(std::exchange(blameless_loss, {}));
      return std::nullopt;
    }
    const auto* refusal = std::get_if<Refusal>(&*song);
    song = tl::unexpected(lose(Outcome::kCrashed,
                               report    ? report->reason
                               : refusal ? refusal->reason
                                         : "worker sent garbage: no validation",
                               0));
  }
  WorkerLoss failure = std::move(song.error());
  if (failure.outcome == Outcome::kPending) return failure;
  lost = lost || ++canary_failures >= kCanaryFailures;
  failure.reason = "canary after a respawn: " + failure.reason;
  return failure;
}

std::optional<WorkerLoss> Supervisor::Impl::ensure() {
  if (lost) return loss(Outcome::kCrashed, "the device is lost: its worker cannot be ended");
  if (stopped()) return loss(Outcome::kPending, "stopped");
  // One that died while nobody asked is replaced; nothing was lost with it.
  if (const auto ending = worker ? try_collect(worker->pid) : std::nullopt) {
    blameless_loss = "between two requests: worker " + ending->text();
    worker.reset();
  }
  return worker ? std::nullopt : start();
}

template <class Expected>
tl::expected<Expected, WorkerLoss> Supervisor::Impl::ask(const Request& request, int entrants,
                                                         const std::string& what,
                                                         std::function<void()> meanwhile) {
  if (auto failure = ensure()) {
    failure->blameless = true;
    failure->no_worker = failure->outcome != Outcome::kPending;
    return tl::unexpected(*std::move(failure));
  }
  const Patience::Limits limits{.deadline = options.deadline,
                                .host_deadline = options.host_deadline,
                                .silence = options.silence};
  auto reply = exchange(request, limits, entrants, std::move(meanwhile));
  if (!reply) {
    if (reply.error().blameless) blameless_loss = what + ": " + reply.error().reason;
    return tl::unexpected(std::move(reply.error()));
  }
  if (auto* expected = std::get_if<Expected>(&*reply)) return std::move(*expected);
  if (const auto* refusal = std::get_if<Refusal>(&*reply)) {
    return tl::unexpected(
        loss(Outcome::kCrashed, "worker refused the request: " + refusal->reason));
  }
  return tl::unexpected(
      lose(Outcome::kCrashed, "worker sent garbage: the answer to another question", entrants));
}

Supervisor::Supervisor(WorkerOptions options) : impl_(new Impl) {
  impl_->options = std::move(options);
}

/// An idle worker takes its leave by itself, which is told; any other ends as hard as it must.
bool Supervisor::Impl::dismiss() {
  if (!worker) return false;
  const std::string farewell = frame(encode(QuitRequest{}));
  const bool sent = send(worker->socket.get(), farewell.data(), farewell.size(), MSG_NOSIGNAL) ==
                    static_cast<ssize_t>(farewell.size());
  const milliseconds patience = options.target == "host" ? kFarewell : kCudaFarewell;
  const std::optional<Ending> ending =
      sent ? collect(worker->pid, patience) : std::optional<Ending>();
  if (!ending) put_down(options.grace);
  worker.reset();
  return ending && ending->signal == 0 && ending->status == 0;
}

Supervisor::~Supervisor() { impl_->dismiss(); }

void Supervisor::retire() {
  if (impl_->dismiss()) impl_->spawned = 0;
}

tl::expected<Hello, WorkerLoss> Supervisor::hello() {
  if (auto failure = impl_->ensure()) return tl::unexpected(*std::move(failure));
  return impl_->hello;
}

tl::expected<ValidationReport, WorkerLoss> Supervisor::validate(const ValidateRequest& request) {
  return impl_->ask<ValidationReport>(request, 1, "in the validation of " + request.chain);
}

tl::expected<RoundReply, WorkerLoss> Supervisor::rounds(const RoundRequest& request,
                                                        const std::function<void()>& meanwhile) {
  const int entrants = static_cast<int>(request.entrants.size());
  auto reply = impl_->ask<RoundReply>(
      request, entrants, fmt::format("in rounds of {} candidates", entrants), meanwhile);
  if (!reply) return reply;
  const auto garbage = [&](const std::string& what) {
    return tl::unexpected(impl_->lose(Outcome::kCrashed, "worker sent garbage: " + what, entrants));
  };
  if (reply->rounds.empty() || reply->rounds.size() > request.orders.size()) {
    return garbage(fmt::format("{} rounds of {}", reply->rounds.size(), request.orders.size()));
  }
  for (size_t i = 0; i < reply->rounds.size(); ++i) {
    const size_t samples = reply->rounds[i].samples.size(), turns = request.orders[i].size();
    if (samples != turns) return garbage(fmt::format("{} samples for {} turns", samples, turns));
  }
  return reply;
}

tl::expected<ValidationReport, WorkerLoss> Supervisor::revalidate(
    const RevalidateRequest& request) {
  return impl_->ask<ValidationReport>(request, 1,
                                      "in the second validation of " + request.entrant.chain);
}

void Supervisor::set_deadline(milliseconds deadline) { impl_->options.deadline = deadline; }

bool Supervisor::lost_device() const { return impl_->lost; }

int Supervisor::respawns() const { return std::max(0, impl_->spawned - 1); }

}  // namespace muse::tuner
