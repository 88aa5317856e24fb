// SPDX-License-Identifier: Apache-2.0
// A CPU as the target of plans: a launch is a call.
#include <algorithm>
#include <cstring>

#include "variants/host/parallel.h"
#include "variants/runtime/target.h"

namespace muse::runtime {
namespace {

class HostLaunch final : public ReadyLaunch {
 public:
  HostLaunch(void (*entry)(const Arguments&, int), int index) : entry_(entry), index_(index) {}
  LaunchError run(const Arguments& arguments, void* /*stream*/) const override {
    entry_(arguments, index_);
    return {};
  }

 private:
  void (*entry_)(const Arguments&, int);
  int index_;
};

class HostTarget final : public Target {
 public:
  TargetKind kind() const override { return TargetKind::kHost; }
  Expected<int> ordinal(int /*asked*/) const override { return 0; }
  Expected<DeviceClass> device_class(int /*ordinal*/) const override { return host_device_class(); }

  Expected<std::unique_ptr<ReadyLaunch>> load(int /*ordinal*/, const LaunchRequest& request,
                                              std::span<const Kernel> /*kernels*/) const override {
    // Its threads start here, not in the first run.
    const auto threads = static_cast<int>(request.launch.block.x);
    if (threads > 1) {
      host::run_parallel(
          threads, 0, [](const void*, int, int64_t) {}, nullptr);
    }
    return std::make_unique<HostLaunch>(request.candidate.variant->host_entry, request.index);
  }

  TensorMapEncoder encoder() const override { return {}; }

  LaunchError zero(void* memory, size_t bytes, void* /*stream*/) const override {
    std::memset(memory, 0, bytes);
    return {};
  }
  LaunchError elsewhere(int /*ordinal*/) const override { return {}; }
};

}  // namespace

const Target& host_target() {
  static const HostTarget target;
  return target;
}

}  // namespace muse::runtime
