// SPDX-License-Identifier: Apache-2.0
// The CPU as a target: its memory is the process's own, a launch is a call.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <span>
#include <string>

#include "profiler/host_cache.h"
#include "tuner/backend.h"
#include "tuner/build_info.h"

namespace muse::tuner {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

int64_t round_up(int64_t bytes, int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

/// The value behind `word` in a file of "word value" lines; -1 where there is none.
int64_t read_field(const std::string& file, std::string_view word) {
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line)) {
    if (line.compare(0, word.size(), word) != 0) continue;
    return std::strtoll(line.c_str() + word.size(), nullptr, 10);
  }
  return -1;
}

/// A file that holds one number; -1 where it is missing or says "max".
int64_t read_number(const std::string& file) {
  std::ifstream in(file);
  int64_t number = -1;
  return in >> number ? number : -1;
}

/// What one control group leaves: its limit less what cannot be reclaimed from it.
int64_t group_free_bytes(const std::string& folder, const char* limit_file, const char* usage_file,
                         const char* cache_word) {
  const int64_t limit = read_number(folder + limit_file);
  const int64_t usage = read_number(folder + usage_file);
  if (limit < 0 || usage < 0) return kUnlimited;
  const int64_t cache = std::max<int64_t>(0, read_field(folder + "/memory.stat", cache_word));
  return std::max<int64_t>(0, limit - usage + std::min(cache, usage));
}

/// The tightest of the process's control groups from its own up to the root, either version.
int64_t control_group_free_bytes() {
  int64_t least = kUnlimited;
  std::ifstream in("/proc/self/cgroup");
  std::string line;  // 0::/path or N:controllers:/path
  while (std::getline(in, line)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",memory,") == std::string::npos) continue;
    const std::string root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    std::string path = line.substr(second + 1);
    while (true) {
      const std::string folder = root + (path == "/" ? "" : path);
      const int64_t free =
          unified ? group_free_bytes(folder, "/memory.max", "/memory.current", "inactive_file ")
                  : group_free_bytes(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                     "total_inactive_file ");
      least = std::min(least, free);
      if (path.size() <= 1) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return least;
}

/// kUnlimited where the system does not say.
int64_t available_bytes() {
  const int64_t kib = read_field("/proc/meminfo", "MemAvailable:");
  return std::min(kib < 0 ? kUnlimited : kib * 1024, control_group_free_bytes());
}

[[noreturn]] void throw_oom(int64_t requested, int64_t available) {
  throw TrialError(
      Outcome::kOom,
      fmt::format("out of host memory: {} bytes requested, {} available", requested, available));
}

/// Offset of the first byte that differs; -1 where none does.
int64_t differs_at(const Compared& one) {
  const auto* got = static_cast<const uint8_t*>(one.got);
  const auto* expected = static_cast<const uint8_t*>(one.expected);
  const auto bytes = static_cast<size_t>(std::max<int64_t>(one.bytes, 0));
  if (bytes == 0) return -1;
  if (!expected) {
    // Equal to its neighbour throughout, and the first as wanted: faster than byte by byte.
    if (got[0] == one.byte && std::memcmp(got, got + 1, bytes - 1) == 0) return -1;
    return std::find_if(got, got + bytes, [&](uint8_t byte) { return byte != one.byte; }) - got;
  }
  if (std::memcmp(got, expected, bytes) == 0) return -1;
  return std::mismatch(got, got + bytes, expected).first - got;
}

class HostProgram final : public Program {
 public:
  HostProgram(const Variant& variant, std::vector<Arguments> arguments)
      : variant_(variant), arguments_(std::move(arguments)) {}
  int launches() const override { return static_cast<int>(arguments_.size()); }
  void launch(int launch) override {
    variant_.host_entry(arguments_.at(static_cast<size_t>(launch)), launch);
  }
  std::vector<std::string> kernels() const override { return {}; }

 private:
  const Variant& variant_;
  std::vector<Arguments> arguments_;
};

class HostBackend final : public Backend {
 public:
  HostBackend()
      : class_(host_device_class()),
        instance_(profiler::host_device_instance()),
        last_level_bytes_(class_.l2_bytes) {}

  TargetKind target() const override { return TargetKind::kHost; }
  const DeviceClass& device_class() const override { return class_; }
  const profiler::DeviceInstance& device_instance() const override { return instance_; }
  std::string toolkit() const override { return build_info().toolkit; }

  void* allocate(int64_t bytes) override {
    const int64_t available = available_bytes();
    // Asked first: an overcommitting kernel grants anything and kills the process at the touch.
    if (bytes < 0 || bytes > available) throw_oom(bytes, available);
    const bool huge = bytes >= kHugePageBytes;
    const int64_t alignment = huge ? kHugePageBytes : kAlignment;
    const int64_t size = round_up(std::max<int64_t>(bytes, 1), alignment);
    void* address = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(size));
    if (!address) throw_oom(bytes, available);
    // Asked for explicitly, so that two machines with different defaults take the same pages, and
    // none is merged into a huge one while something is timed. Advice: a refusal changes nothing.
    if (huge) madvise(address, static_cast<size_t>(size), MADV_HUGEPAGE);
    auto* touched = static_cast<volatile uint8_t*>(address);
    for (int64_t i = 0; i < size; i += kPageBytes) touched[i] = 0;
    allocated_[address] = static_cast<size_t>(size);
    return address;
  }

  void release(void* address) override {
    allocated_.erase(address);
    std::free(address);
  }
  void upload(void* target, const void* host, int64_t bytes) override { copy(target, host, bytes); }
  void download(void* host, const void* target, int64_t bytes) override {
    copy(host, target, bytes);
  }
  void put(std::span<const Put> puts) override {
    for (const Put& one : puts) {
      if (one.bytes <= 0) continue;
      if (one.source) {
        std::memcpy(one.target, one.source, static_cast<size_t>(one.bytes));
      } else {
        std::memset(one.target, one.byte, static_cast<size_t>(one.bytes));
      }
    }
  }
  std::optional<Difference> first_difference(std::span<const Compared> all) override {
    for (size_t i = 0; i < all.size(); ++i) {
      const int64_t offset = differs_at(all[i]);
      if (offset >= 0) return Difference{i, offset};
    }
    return std::nullopt;
  }
  void synchronize() override {}  // a launch has run to its end when it returns

  std::unique_ptr<Program> bind(const Candidate& candidate, const Problem& problem,
                                const Buffers& buffers, void* workspace) override {
    const Variant& variant = *candidate.variant;
    if (variant.target.kind != TargetKind::kHost || !variant.host_entry) {
      throw TrialError(Outcome::kLaunchFailed, variant.name + " has no host entry");
    }
    const Geometry geometry = variant.geometry(problem, candidate.configuration, class_);
    std::vector<Arguments> arguments;
    arguments.reserve(geometry.launches.size());
    for (size_t i = 0; i < geometry.launches.size(); ++i) {
      arguments.push_back(variant.bind(problem, candidate.configuration, buffers, workspace,
                                       TensorMapEncoder{}, static_cast<int>(i)));
    }
    return std::make_unique<HostProgram>(variant, std::move(arguments));
  }

  std::unique_ptr<Program> capture(const std::vector<Program*>&, bool, size_t) override {
    return nullptr;
  }
  DeviceLimits limits() override { return {}; }
  std::optional<CombinedPartials> combined_partials(const Problem&, const Buffers&, bool) override {
    return std::nullopt;
  }
  std::optional<TargetTruth> attention_truth(const Problem&, const Buffers&) override {
    return std::nullopt;
  }

  profiler::Sampler& sampler() override { return sampler_; }
  profiler::ClockReading read_clock() override { return profiler::read_host_clock(); }

  void flush_caches() override {
    std::vector<std::span<const std::byte>> ranges;
    for (const auto& [address, bytes] : allocated_) {
      ranges.emplace_back(static_cast<const std::byte*>(address), bytes);
    }
    cache().flush(ranges);
  }

  std::string protocol() const override {
    return fmt::format(
        "timer={}; sampler={}; cold=flush before the sample; flush={}; "
        "warm=after the predecessor, no flush; rotating=over copies of 3 caches; "
        "fill=normal, caches repeat; memory=touched, huge pages from {} bytes",
        profiler::name(sampler_.timer()), sampler_.version(),
        profiler::HostCache::recipe(last_level_bytes_), kHugePageBytes);
  }

 private:
  /// Made at the first flush: a worker that validates only needs none.
  profiler::HostCache& cache() {
    if (!cache_) cache_ = std::make_unique<profiler::HostCache>(last_level_bytes_);
    return *cache_;
  }

  DeviceClass class_;
  profiler::DeviceInstance instance_;
  profiler::HostSampler sampler_;
  int64_t last_level_bytes_;
  std::map<void*, size_t> allocated_;
  std::unique_ptr<profiler::HostCache> cache_;
};

}  // namespace

std::unique_ptr<Backend> make_host_backend() { return std::make_unique<HostBackend>(); }

}  // namespace muse::tuner
