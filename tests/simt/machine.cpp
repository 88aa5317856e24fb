// SPDX-License-Identifier: Apache-2.0
// Launches: clusters of blocks over OS threads.
#include "tests/simt/machine.h"

#include <link.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/simt/cluster.h"

namespace muse::simt {
namespace {

/// This thread's copy of the thread_local memory of the module that holds `code`.
struct ModuleMemory {
  uintptr_t code;
  std::byte* begin = nullptr;
  size_t bytes = 0;
  bool found = false, executable = false;
};

int find_module(dl_phdr_info* info, size_t, void* out) {
  auto& memory = *static_cast<ModuleMemory*>(out);
  size_t bytes = 0;
  bool mine = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type == PT_TLS) bytes = part.p_memsz;
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && begin <= memory.code && memory.code < begin + part.p_memsz) {
      mine = true;
    }
  }
  if (!mine) return 0;
  memory.found = true;
  memory.executable = info->dlpi_name[0] == '\0';
  memory.begin = static_cast<std::byte*>(info->dlpi_tls_data);
  memory.bytes = memory.begin ? bytes : 0;
  return 1;
}

ModuleMemory static_shared(const Kernel& kernel) {
  ModuleMemory memory{.code = reinterpret_cast<uintptr_t>(kernel.call)};
  dl_iterate_phdr(find_module, &memory);
  if (!memory.found || memory.executable) {
    throw Error("emulated kernels must lie in a shared library of their own");
  }
  return memory;
}

/// Machines are kept from one launch to the next: their stacks cost more than a small block.
class Machines {
 public:
  static Machines& instance() {
    static Machines machines;
    return machines;
  }
  std::unique_ptr<Cluster> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Cluster>();
    std::unique_ptr<Cluster> machine = std::move(idle_.back());
    idle_.pop_back();
    return machine;
  }
  void give(std::unique_ptr<Cluster> machine) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(machine));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Cluster>> idle_;
};

/// Whether this launch of the kernel takes its blocks in reverse: every other one does, so that
/// what depends on who comes last differs from run to run.
bool in_reverse(const Kernel& kernel) {
  static std::mutex mutex;
  static std::map<void (*)(const void*), bool> reverse;
  const std::lock_guard lock(mutex);
  bool& mine = reverse[kernel.call];
  mine = !mine;
  return !mine;
}

/// One launch's clusters, handed out in order.
struct Grid {
  const Kernel& kernel;
  const void* arguments;
  const LaunchShape& shape;
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex{};
  std::string error{};

  const bool reverse = in_reverse(kernel);

  uint64_t clusters() const {
    return uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z /
           (shape.cluster.x * shape.cluster.y * shape.cluster.z);
  }

  void fail(const std::string& what) {
    const std::lock_guard lock(mutex);
    if (!failed.exchange(true)) error = what;
  }

  void work() {
    std::unique_ptr<Cluster> machine = Machines::instance().take();
    const ModuleMemory shared = static_shared(kernel);
    const uint64_t count = clusters();
    for (uint64_t i = next.fetch_add(1); i < count && !failed; i = next.fetch_add(1)) {
      const std::string what = machine->run(kernel, arguments, shape, reverse ? count - 1 - i : i,
                                            {shared.begin, shared.bytes});
      if (!what.empty()) fail(what);
    }
    Machines::instance().give(std::move(machine));
  }
};

void check(const Kernel& kernel, const LaunchShape& shape) {
  const auto text = [](Index index) {
    return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " +
           std::to_string(index.z) + ")";
  };
  const Index& grid = shape.grid;
  const Index& block = shape.block;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7FFFFFFFU || grid.y > 65535 ||
      grid.z > 65535) {
    throw Error("a grid of " + text(grid) + " blocks is none");
  }
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kMaximumThreads || block.z > 64) {
    throw Error("a block of " + text(block) + " threads is none");
  }
  if (shape.dynamic_shared_bytes > kMaximumSharedBytes) {
    throw Error(std::to_string(shape.dynamic_shared_bytes) +
                " bytes of shared memory are more than " + std::to_string(kMaximumSharedBytes));
  }
  const Index& cluster = shape.cluster;
  const uint64_t blocks = uint64_t{cluster.x} * cluster.y * cluster.z;
  if (blocks == 0 || blocks > kMaximumCluster || grid.x % cluster.x != 0 ||
      grid.y % cluster.y != 0 || grid.z % cluster.z != 0) {
    throw Error("a grid of " + text(grid) + " has no clusters of " + text(cluster));
  }
  static_shared(kernel);
}

}  // namespace

void launch(const Kernel& kernel, const void* arguments, const LaunchShape& shape, int os_threads) {
  check(kernel, shape);
  static const bool caught = (catch_illegal_accesses(), true);
  (void)caught;
  Grid grid{kernel, arguments, shape};
  std::vector<std::thread> helpers;
  const uint64_t wanted = std::min<uint64_t>(static_cast<uint64_t>(os_threads), grid.clusters());
  for (uint64_t i = 1; i < wanted; ++i) helpers.emplace_back([&grid] { grid.work(); });
  grid.work();
  for (std::thread& helper : helpers) helper.join();
  if (grid.failed) throw Error(grid.error);
}

}  // namespace muse::simt
