// SPDX-License-Identifier: Apache-2.0
// The worker's life: born under a parent it dies with, it answers one request after the other.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <exception>
#include <fstream>
#include <optional>
#include <system_error>

#include "tuner/console.h"
#include "tuner/device_lock.h"
#include "tuner/session.h"
#include "tuner/supervisor.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif

namespace muse::tuner {
namespace {

// Sanitizers map their shadow as private data, which a limit on data would refuse.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||       \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
constexpr bool kShadowMemory = true;
#else
constexpr bool kShadowMemory = false;
#endif

enum ExitStatus { kQuit = 0, kBrokenWorld = 1, kOrphan = 2, kDeviceFault = kDeviceFaultStatus };

std::optional<int64_t> available_memory_bytes() {
  std::ifstream memory("/proc/meminfo");
  std::string key, unit;
  for (int64_t kib; memory >> key >> kib; std::getline(memory, unit)) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return std::nullopt;
}

void lower_limit(int resource, rlim_t value) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return;
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur <= value) return;
  limit.rlim_cur =
      value;  // above the hard limit only where that is lower, and then it already holds
  setrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
}

/// A candidate that asks for all memory gets bad_alloc, or is the one the kernel picks; never the
/// machine's other work. All of it is a courtesy: a kernel that refuses changes no result.
void limit_damage(bool host) {
  lower_limit(RLIMIT_CORE, 0);  // a core of a 1 GiB pool takes longer than the deadline
  std::ofstream("/proc/self/oom_score_adj") << 500;
  // With CUDA the driver reserves more address space than the machine has memory.
  if (!host || kShadowMemory) return;
  if (const auto available = available_memory_bytes()) {
    lower_limit(RLIMIT_DATA, static_cast<rlim_t>(*available));
  }
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

/// The next message; nullopt where the supervisor is gone or makes no sense.
std::optional<std::string> receive(int fd, MessageBuffer& buffer) {
  char bytes[65536];
  for (;;) {
    auto message = buffer.next();
    if (!message) return std::nullopt;
    if (*message) return **std::move(message);
    const ssize_t got = recv(fd, bytes, sizeof bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    buffer.feed({bytes, static_cast<size_t>(got)});
  }
}

/// Holds the device while a request is served.
class Turn {
 public:
  Turn(DeviceLock& lock, Publisher& publisher) : lock_(lock) {
    lock_.acquire([&] { publisher.set_waiting(true); });
    publisher.set_waiting(false);
  }
  ~Turn() { lock_.release(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  DeviceLock& lock_;
};

/// Answers requests; made once the target is known to be there.
class Service {
 public:
  Service(std::unique_ptr<Backend> backend, Publisher& publisher)
      : backend_(std::move(backend)),
        publisher_(publisher),
        lock_(lock_folder(), backend_->device_instance().uuid),
        session_(*backend_, publisher_, Registry::global()) {}

  Reply operator()(const HelloRequest&) {
    return Hello{.pid = getpid(),
                 .device_class = backend_->device_class(),
                 .device_instance = backend_->device_instance(),
                 .step_ns = backend_->sampler().step_ns(),
                 .limits = backend_->limits(),
                 .protocol = backend_->protocol(),
                 .toolkit = backend_->toolkit()};
  }
  Reply operator()(const CanaryRequest&) {
    const Turn turn(lock_, publisher_);
    return session_.canary();
  }
  Reply operator()(const ValidateRequest& request) {
    const Turn turn(lock_, publisher_);
    return session_.validate(request);
  }
  Reply operator()(const RoundRequest& request) {
    const Turn turn(lock_, publisher_);
    return session_.rounds(request);
  }
  Reply operator()(const RevalidateRequest& request) {
    const Turn turn(lock_, publisher_);
    return session_.revalidate(request);
  }
  Reply operator()(const QuitRequest&) {
    return Refusal{.reason = "a worker that quits does not answer"};
  }

 private:
  std::unique_ptr<Backend> backend_;
  Publisher& publisher_;
  DeviceLock lock_;
  Session session_;
};

/// Throws what the backend throws; std::invalid_argument on a call that makes no sense.
std::unique_ptr<Backend> make_backend(const WorkerCall& call) {
  constexpr std::string_view kCuda = "cuda:";
  if (call.target == "host") return make_host_backend();
  const auto timer = profiler::parse_timer(call.timer);
  if (!call.target.starts_with(kCuda) || !timer) {
    throw std::invalid_argument(
        fmt::format("no target '{}', or no timer '{}'", call.target, call.timer));
  }
  return make_cuda_backend({.device = std::stoi(call.target.substr(kCuda.size())),
                            .timer = *timer,
                            .cache = call.cache,
                            .toolkit = call.toolkit});
}

/// Serves until told to quit; a world without a target is told to whoever asks.
int serve(const WorkerCall& call, Publisher& publisher) {
  const int fd = call.fd;
  std::optional<Service> service;
  Refusal why_not;
  try {
    service.emplace(make_backend(call), publisher);
  } catch (const TargetError& error) {
    const bool timer = error.kind == TargetError::Kind::kTimer;
    why_not = {
        .reason = plain_text(error.what()), .what = timer ? "timer" : "device", .code = error.code};
  } catch (const std::exception& error) {
    why_not.reason = plain_text(error.what());
  }
  MessageBuffer buffer;
  while (const std::optional<std::string> text = receive(fd, buffer)) {
    const auto request = decode_request(*text);
    if (request && std::holds_alternative<QuitRequest>(*request)) return kQuit;
    Reply reply = why_not;
    if (!request) {
      reply = Refusal{.reason = "request: " + request.error()};
    } else if (service) {
      reply = std::visit(*service, *request);
    }
    if (!send_all(fd, frame(encode(reply)))) return kOrphan;
  }
  return kOrphan;
}

}  // namespace

int worker_main(const WorkerCall& call) {
  // The order matters: a parent that dies between the two lines is seen by the second.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != call.parent_pid) return kOrphan;
  limit_damage(call.target == "host");
  void* page =
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED, call.progress_fd, 0);
  if (page == MAP_FAILED) return kBrokenWorld;
  Publisher publisher(*static_cast<Progress*>(page));
  try {
    return serve(call, publisher);
  } catch (const DeviceFault& fault) {
    // Its last words are the reason that the supervisor stores.
    say_error(plain_text(fault.what()));
    return kDeviceFault;
  }
}

}  // namespace muse::tuner
