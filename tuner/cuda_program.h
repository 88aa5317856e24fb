// SPDX-License-Identifier: Apache-2.0
// Machine code on the device, and launches of it: one by one or as a captured graph.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tuner/backend.h"
#include "tuner/compile.h"

namespace muse::tuner {

/// Where launches go, and what the device allows.
struct CudaQueue {
  cudaStream_t stream = nullptr;
  cudaDeviceProp properties{};
};

/// One candidate's cubin, loaded.
class CudaModule {
 public:
  struct Kernel {
    cudaKernel_t handle;
    std::string symbol;
  };

  /// Throws TrialError(kLaunchFailed) where the device does not take the code.
  CudaModule(const std::string& candidate, const Compiled& compiled);
  ~CudaModule();
  CudaModule(const CudaModule&) = delete;
  CudaModule& operator=(const CudaModule&) = delete;

  /// By the name in Variant::entries; throws TrialError(kLaunchFailed) where the cubin has none.
  const Kernel& kernel(const std::string& entry) const;

 private:
  std::string candidate_;
  cudaLibrary_t library_ = nullptr;
  std::map<std::string, Kernel> kernels_;
};

/// Loads cubins once and keeps them: the tracing library names a kernel by its handle, which the
/// driver gives out again after an unload, and then a sample shows the name of another kernel.
class CudaModules {
 public:
  CudaModules(std::filesystem::path cache, std::string toolkit, std::string architecture);
  /// Throws TrialError(kCompileFailed) where the cache does not have it.
  std::shared_ptr<const CudaModule> get(const Candidate& candidate);

 private:
  CubinCache cache_;
  std::string toolkit_, architecture_;
  std::map<std::string, std::shared_ptr<const CudaModule>> loaded_;  ///< by candidate key
};

/// One kernel launch, ready to go.
struct CudaLaunch {
  const CudaModule::Kernel* kernel;
  Launch shape;
  std::vector<Arguments> arguments;  ///< two where the workspace is double-buffered
};

/// A candidate bound to buffers. With a double-buffered workspace one run after the other takes
/// turns.
class CudaProgram final : public Program {
 public:
  /// Loads the kernels now, so that no launch does. Throws TrialError(kLaunchFailed) where one
  /// breaks a limit of the device that shows before a launch.
  CudaProgram(const CudaQueue& queue, std::string candidate,
              std::shared_ptr<const CudaModule> module, std::vector<CudaLaunch> launches);

  int launches() const override { return static_cast<int>(launches_.size()); }
  void launch(int launch) override;
  std::vector<std::string> kernels() const override;

  int turns() const;
  /// `programmatic`: may start before its predecessor in the stream has ended.
  void enqueue(int launch, int turn, bool programmatic) const;
  bool allows_programmatic(int launch) const;

 private:
  void prepare(const CudaLaunch& launch);
  void require_room(const CudaLaunch& launch) const;
  [[noreturn]] void throw_error(cudaError_t error, const CudaLaunch& launch,
                                const char* doing) const;

  const CudaQueue& queue_;
  std::string candidate_;
  std::shared_ptr<const CudaModule> module_;
  std::vector<CudaLaunch> launches_;
  std::map<const CudaModule::Kernel*, cudaFuncAttributes> attributes_;
  int turn_ = 0;
};

/// The programs' launches in order as one graph; two graphs that take turns where a workspace does.
/// Kernels copy their arguments into it.
std::unique_ptr<Program> capture_graph(const CudaQueue& queue,
                                       const std::vector<CudaProgram*>& programs, bool pdl,
                                       size_t chain_length);

/// What of a launch the device does not allow; empty where everything is within its limits.
std::string broken_limit(const Launch& launch, const cudaFuncAttributes& kernel,
                         const cudaDeviceProp& device);

}  // namespace muse::tuner
