// SPDX-License-Identifier: Apache-2.0
// A GPU as the target of plans: kernels compiled ahead of time, by their addresses; empty in a
// build without the CUDA target.
#include "variants/runtime/target.h"

#if defined(MUSE_HAS_CUDA)
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <mutex>
#include <string_view>
#include <utility>

#include "variants/runtime/device_class_cuda.h"
#include "variants/runtime/launch_config_cuda.h"
#include "variants/runtime/tensor_map_cuda.h"

namespace muse::runtime {
namespace {

constexpr int64_t kPortableCluster = 8;

/// Of an error that is told here; the next call shall not tell it again.
LaunchError told(cudaError_t error) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  return {static_cast<int>(error), cudaGetErrorName(error), cudaGetErrorString(error)};
}

tl::unexpected<Failure> failure(cudaError_t error, std::string_view doing) {
  const LaunchError it = told(error);
  return tl::unexpected(
      Failure{MUSE_ATTENTION_DEVICE,
              fmt::format("{}: CUDA error {} ({}): {}", doing, it.code, it.name, it.text)});
}

/// Makes a device the calling thread's and lets it load code while some stream is captured, and
/// puts back what was.
class CurrentDevice {
 public:
  explicit CurrentDevice(int ordinal) {
    cudaThreadExchangeStreamCaptureMode(&mode_);
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess) error_ = cudaSetDevice(ordinal);
  }
  ~CurrentDevice() {
    if (error_ == cudaSuccess) cudaSetDevice(before_);
    cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  cudaError_t error() const { return error_; }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  int before_ = 0;
  cudaError_t error_;
};

class CudaLaunch final : public ReadyLaunch {
 public:
  CudaLaunch(const void* kernel, const Launch& shape, bool programmatic)
      : kernel_(kernel), config_(shape, programmatic) {}

  LaunchError run(const Arguments& arguments, void* stream) const override {
    const cudaLaunchConfig_t config = config_.on(static_cast<cudaStream_t>(stream));
    void* pointers[] = {const_cast<void*>(arguments.data())};
    return told(cudaLaunchKernelExC(&config, kernel_, pointers));
  }

  cudaLaunchConfig_t config() const { return config_.on(nullptr); }

 private:
  const void* kernel_;
  LaunchConfig config_;
};

const void* find(std::span<const Kernel> kernels, const std::string& candidate,
                 const std::string& entry) {
  for (const Kernel& kernel : kernels) {
    if (kernel.candidate == candidate && kernel.entry == entry) return kernel.function;
  }
  return nullptr;
}

/// Where no code fits, what to do about it.
std::string loading(const std::string& name, cudaError_t error, int ordinal) {
  const bool foreign = error == cudaErrorNoKernelImageForDevice ||
                       error == cudaErrorInvalidDeviceFunction || error == cudaErrorInvalidPtx;
  if (!foreign) return fmt::format("loading {} on cuda:{}", name, ordinal);
  return fmt::format(
      "{} was not compiled for the architecture of cuda:{}; sweep and emit on such a device, and "
      "compile muse_kernels.cu for it",
      name, ordinal);
}

class CudaTarget final : public Target {
 public:
  TargetKind kind() const override { return TargetKind::kCuda; }

  Expected<int> ordinal(int asked) const override {
    int current = asked;
    const cudaError_t error = asked < 0 ? cudaGetDevice(&current) : cudaSuccess;
    if (error != cudaSuccess) return failure(error, "asking for the current device");
    return current;
  }

  Expected<DeviceClass> device_class(int ordinal) const override {
    auto found = cuda_device_class(ordinal);
    if (found) return *std::move(found);
    return failure(static_cast<cudaError_t>(found.error()), fmt::format("cuda:{}", ordinal));
  }

  Expected<std::unique_ptr<ReadyLaunch>> load(int ordinal, const LaunchRequest& request,
                                              std::span<const Kernel> kernels) const override {
    const Launch& shape = request.launch;
    const std::string candidate = key(request.candidate);
    const std::string name = fmt::format("{} of {}", shape.entry, candidate);
    const void* kernel = find(kernels, candidate, shape.entry);
    if (kernel == nullptr) {
      return tl::unexpected(Failure{
          MUSE_ATTENTION_DEVICE,
          name + " is not among the kernels linked: compile the muse_kernels.cu that was emitted "
                 "with muse_dispatch.h"});
    }
    // One at a time: another plan must not lower what this one raises in between.
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const CurrentDevice device(ordinal);
    if (device.error() != cudaSuccess) {
      return failure(device.error(), fmt::format("using cuda:{}", ordinal));
    }
    // Asking for the attributes loads the code, which the runtime else puts off to the first
    // launch.
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return failure(error, loading(name, error, ordinal));
    // Raised only: plans for other problems share the kernel.
    if (shape.smem_bytes > attributes.maxDynamicSharedSizeBytes) {
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(shape.smem_bytes));
    }
    if (error == cudaSuccess && volume(shape.cluster) > kPortableCluster) {
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    if (error != cudaSuccess) {
      return failure(error, fmt::format("{}: opting in to {} bytes of dynamic shared memory and a "
                                        "cluster of {} CTAs on cuda:{}",
                                        name, shape.smem_bytes, volume(shape.cluster), ordinal));
    }
    auto ready = std::make_unique<CudaLaunch>(kernel, shape, request.programmatic);
    if (auto room = require_room(*ready, kernel, name, shape); !room) {
      return tl::unexpected(std::move(room.error()));
    }
    return ready;
  }

  TensorMapEncoder encoder() const override { return make_tensor_map_encoder(); }

  LaunchError zero(void* memory, size_t bytes, void* stream) const override {
    return told(cudaMemsetAsync(memory, 0, bytes, static_cast<cudaStream_t>(stream)));
  }

  LaunchError elsewhere(int ordinal) const override {
    int current = -1;
    const cudaError_t error = cudaGetDevice(&current);
    if (error != cudaSuccess) return told(error);
    if (current == ordinal) return {};
    return {static_cast<int>(cudaErrorInvalidDevice), cudaGetErrorName(cudaErrorInvalidDevice),
            "the plan is for another device than the thread's current one (cudaSetDevice)"};
  }

 private:
  /// A cluster whose CTAs do not fit into one group of SMs at once never starts.
  static Expected<void> require_room(const CudaLaunch& launch, const void* kernel,
                                     const std::string& name, const Launch& shape) {
    if (volume(shape.cluster) == 1) return {};
    int clusters = 0;
    const cudaLaunchConfig_t config = launch.config();
    const cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
    if (error != cudaSuccess) return failure(error, "asking for room for clusters of " + name);
    if (clusters > 0) return {};
    return tl::unexpected(Failure{
        MUSE_ATTENTION_DEVICE,
        fmt::format("{}: the device has no room for a cluster of {} CTAs, each of {} threads and "
                    "{} bytes of dynamic shared memory, at once",
                    name, volume(shape.cluster), volume(shape.block), shape.smem_bytes)});
  }
};

}  // namespace

const Target& cuda_target() {
  static const CudaTarget target;
  return target;
}

}  // namespace muse::runtime
#endif
