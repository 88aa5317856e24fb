// SPDX-License-Identifier: Apache-2.0
// Binding CUDA candidates to the kernels compiled for the emulator; memory is the host's.
#include "tests/simt/simt_backend.h"

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/simt/kernel_table.h"
#include "tests/simt/tensor_map.h"

namespace muse::simt {
namespace {

using tuner::Backend;
using tuner::Compared;
using tuner::DeviceLimits;
using tuner::Outcome;
using tuner::Program;
using tuner::Put;
using tuner::TrialError;

unsigned narrow(int64_t extent) { return extent > 0xFFFFFFFF || extent < 0 ? 0 : extent; }

Index index(const Dim3& dim) { return {narrow(dim.x), narrow(dim.y), narrow(dim.z)}; }

const Kernel& find(const std::vector<CompiledKernel>& kernels, const std::string& candidate,
                   const std::string& entry) {
  for (const CompiledKernel& compiled : kernels) {
    if (compiled.candidate == candidate && compiled.entry == entry) return compiled.kernel;
  }
  throw TrialError(Outcome::kLaunchFailed,
                   fmt::format("{} of {} is not compiled for the emulator", entry, candidate));
}

/// Bytes in four dimensions, as a driver would have it.
Support encode_tensor_map(const TensorMapRequest& request, void* map128) {
  constexpr size_t kRank = 4;
  const bool bytes = request.element == Element::kE4m3 || request.element == Element::kByte;
  if (!bytes || request.rank != kRank)
    return Support::no("the emulator has tensor maps of bytes in 4 dimensions");
  if (request.swizzle_bytes != 0 && request.swizzle_bytes != 64) {
    return Support::no("the emulator has swizzles of 64 bytes");
  }
  TensorMap map{};
  map.base = static_cast<const unsigned char*>(request.base);
  map.stride[0] = 1;
  for (size_t i = 0; i < kRank; ++i) {
    const int64_t stride = i == 0 ? 16 : request.stride_bytes[i - 1];
    if (request.box[i] < 1 || request.box[i] > 256 || request.extent[i] < 1 ||
        request.extent[i] > int64_t{1} << 32 || stride % 16 != 0) {
      return Support::no("a tensor map's box, extent or stride that a driver refuses");
    }
    map.extent[i] = request.extent[i];
    if (i > 0) map.stride[i] = stride;
    map.box[i] = request.box[i];
  }
  if (request.box[0] % 16 != 0 || (request.swizzle_bytes != 0 && request.box[0] > 64)) {
    return Support::no("rows of a tensor map's box that a driver refuses");
  }
  map.swizzle_bytes = request.swizzle_bytes;
  map.valid = kTensorMap;
  std::memcpy(map128, &map, sizeof map);
  return Support::yes();
}

struct BoundLaunch {
  std::string label;
  const Kernel& kernel;
  LaunchShape shape;
  Arguments arguments;
};

class SimtProgram final : public Program {
 public:
  SimtProgram(std::vector<BoundLaunch> bound, int os_threads)
      : bound_(std::move(bound)), os_threads_(os_threads) {}
  int launches() const override { return static_cast<int>(bound_.size()); }
  void launch(int launch) override {
    const BoundLaunch& bound = bound_.at(static_cast<size_t>(launch));
    try {
      simt::launch(bound.kernel, bound.arguments.data(), bound.shape, os_threads_);
    } catch (const Error& error) {
      throw TrialError(Outcome::kLaunchFailed, bound.label + ": " + error.what());
    }
  }
  std::vector<std::string> kernels() const override {
    std::vector<std::string> labels;
    for (const BoundLaunch& bound : bound_) labels.push_back(bound.label);
    return labels;
  }

 private:
  std::vector<BoundLaunch> bound_;
  int os_threads_;
};

class SimtBackend final : public Backend {
 public:
  SimtBackend(int os_threads, const std::vector<CompiledKernel>& kernels)
      : host_(tuner::make_host_backend()),
        class_(emulated_device_class()),
        os_threads_(os_threads),
        kernels_(kernels) {}

  TargetKind target() const override { return TargetKind::kCuda; }
  const DeviceClass& device_class() const override { return class_; }
  const profiler::DeviceInstance& device_instance() const override {
    return host_->device_instance();
  }
  std::string toolkit() const override { return "emulator, " + host_->toolkit(); }

  void* allocate(int64_t bytes) override { return host_->allocate(bytes); }
  void release(void* address) override { host_->release(address); }
  void upload(void* target, const void* host, int64_t bytes) override {
    host_->upload(target, host, bytes);
  }
  void download(void* host, const void* target, int64_t bytes) override {
    host_->download(host, target, bytes);
  }
  void put(std::span<const Put> puts) override { host_->put(puts); }
  std::optional<Difference> first_difference(std::span<const Compared> all) override {
    return host_->first_difference(all);
  }
  void synchronize() override { host_->synchronize(); }

  std::unique_ptr<Program> bind(const Candidate& candidate, const Problem& problem,
                                const Buffers& buffers, void* workspace) override {
    const Variant& variant = *candidate.variant;
    const Geometry geometry = variant.geometry(problem, candidate.configuration, class_);
    std::vector<BoundLaunch> bound;
    for (size_t i = 0; i < geometry.launches.size(); ++i) {
      const Launch& launch = geometry.launches[i];
      bound.push_back({fmt::format("{} of {}", launch.entry, key(candidate)),
                       find(kernels_, key(candidate), launch.entry),
                       {index(launch.grid), index(launch.block),
                        static_cast<size_t>(launch.smem_bytes), index(launch.cluster)},
                       variant.bind(problem, candidate.configuration, buffers, workspace,
                                    encode_tensor_map, static_cast<int>(i))});
      check(bound.back());
    }
    return std::make_unique<SimtProgram>(std::move(bound), os_threads_);
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

  profiler::Sampler& sampler() override { return host_->sampler(); }
  void flush_caches() override { host_->flush_caches(); }
  profiler::ClockReading read_clock() override { return host_->read_clock(); }
  std::string protocol() const override { return "emulator; " + host_->protocol(); }

 private:
  static void check(const BoundLaunch& bound) {
    if (bound.arguments.size() != bound.kernel.argument_bytes) {
      throw TrialError(
          Outcome::kLaunchFailed,
          fmt::format("{}: bind gives an argument block of {} bytes, the kernel takes {}",
                      bound.label, bound.arguments.size(), bound.kernel.argument_bytes));
    }
  }

  std::unique_ptr<Backend> host_;
  DeviceClass class_;
  int os_threads_;
  const std::vector<CompiledKernel>& kernels_;
};

}  // namespace

DeviceClass emulated_device_class() {
  return {.model = "emulated",
          .host = false,
          .cc = 90,
          .sm_count = 132,
          .memory_bytes = int64_t{64} << 30,
          .l2_bytes = int64_t{50} << 20,
          .smem_per_block_bytes = 232448,
          .driver_version = 13000,
          .isa = "sm_90a"};
}

std::unique_ptr<Backend> make_simt_backend(int os_threads) {
  return make_simt_backend(os_threads, compiled_kernels());
}

std::unique_ptr<Backend> make_simt_backend(int os_threads,
                                           const std::vector<CompiledKernel>& kernels) {
  return std::make_unique<SimtBackend>(os_threads, kernels);
}

}  // namespace muse::simt
