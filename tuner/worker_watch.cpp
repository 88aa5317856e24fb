// SPDX-License-Identifier: Apache-2.0
// Shared memory, patience and last words.
#include "tuner/worker_watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

namespace muse::tuner {
namespace {

[[noreturn]] void throw_system_error() {
  throw std::system_error(errno, std::generic_category(), "progress page");
}

}  // namespace

ProgressPage::ProgressPage()
    : file_(memfd_create("muse-tune-progress", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  if (!file_ || ftruncate(file_.get(), sizeof(Progress)) != 0 ||
      fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_system_error();
  }
  void* address =
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (address == MAP_FAILED) throw_system_error();
  progress_ = new (address) Progress;
}

ProgressPage::~ProgressPage() { munmap(progress_, sizeof(Progress)); }

Patience::Patience(const Progress& progress, const Limits& limits, CpuTime cpu_time)
    : progress_(progress),
      limits_(limits),
      cpu_time_(std::move(cpu_time)),
      beat_(progress.beat.load(std::memory_order_acquire)),
      cpu_(cpu_time_()),
      since_(Clock::now()),
      alive_(since_) {}

std::optional<Patience::Exhausted> Patience::exhausted(Clock::time_point now) {
  const uint64_t beat = progress_.beat.load(std::memory_order_acquire);
  const bool moved = std::exchange(beat_, beat) != beat;
  const std::chrono::nanoseconds cpu = cpu_time_();
  const bool ran = std::exchange(cpu_, cpu) != cpu;
  if (moved) since_ = now;
  if (moved || ran) alive_ = now;
  silent_for_ = std::chrono::duration_cast<std::chrono::milliseconds>(now - alive_);
  if (moved) return std::nullopt;
  const bool reference = progress_.reference.load(std::memory_order_relaxed) != 0;
  if (reference && now - alive_ > limits_.silence) {
    return Exhausted{fmt::format("neither progress nor CPU time for {} ms, outside any candidate",
                                 limits_.silence.count()),
                     true};
  }
  const std::chrono::milliseconds limit = reference ? limits_.host_deadline : limits_.deadline;
  if (now - since_ <= limit) return std::nullopt;
  return Exhausted{fmt::format("no progress for {} ms{}", limit.count(),
                               reference ? ", outside any candidate" : "")};
}

void LastWords::add(std::string_view bytes) {
  bytes_.append(bytes);
  if (bytes_.size() > 2 * kLastWordsBytes) bytes_.erase(0, bytes_.size() - kLastWordsBytes);
}

std::string LastWords::text() const {
  const size_t kept = std::min(bytes_.size(), kLastWordsBytes);
  return plain_text(std::string_view(bytes_).substr(bytes_.size() - kept));
}

std::string LastWords::line() const {
  constexpr size_t kLongest = 200;
  std::string text = this->text();
  const size_t end = text.find_last_not_of("\n ");
  if (end == std::string::npos) return {};
  text.resize(end + 1);
  const size_t newline = text.rfind('\n');
  if (newline != std::string::npos) text.erase(0, newline + 1);
  // Cut between bytes, so once more: half a character is none.
  return text.size() <= kLongest ? text : plain_text(std::string_view(text).substr(0, kLongest));
}

}  // namespace muse::tuner
