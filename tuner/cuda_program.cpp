// SPDX-License-Identifier: Apache-2.0
// Loading cubins, launching their kernels, capturing launches.
#include "tuner/cuda_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tuner/cuda_error.h"
#include "variants/runtime/launch_config_cuda.h"

namespace muse::tuner {
namespace {

constexpr int64_t kPortableCluster = 8;

std::string broken_extent(const char* what, const Dim3& dim, const int (&most)[3]) {
  const int64_t extent[3] = {dim.x, dim.y, dim.z};
  for (int i = 0; i < 3; ++i) {
    if (extent[i] >= 1 && extent[i] <= most[i]) continue;
    return fmt::format("{}.{} is {}; the device allows 1 to {}", what, "xyz"[i], extent[i],
                       most[i]);
  }
  return {};
}

std::string broken_cluster(const Launch& launch, const cudaDeviceProp& device) {
  const int64_t blocks = volume(launch.cluster);
  if (blocks == 1) return {};
  if (device.major < 9) return "clusters need compute capability 9.0";
  const auto divides = [](int64_t part, int64_t whole) { return part >= 1 && whole % part == 0; };
  if (divides(launch.cluster.x, launch.grid.x) && divides(launch.cluster.y, launch.grid.y) &&
      divides(launch.cluster.z, launch.grid.z)) {
    return {};
  }
  return fmt::format("a grid of {} x {} x {} is no multiple of a cluster of {} x {} x {}",
                     launch.grid.x, launch.grid.y, launch.grid.z, launch.cluster.x,
                     launch.cluster.y, launch.cluster.z);
}

std::string no_room(const Launch& launch) {
  return fmt::format(
      "launching {}: the device has no room for a cluster of {} CTAs, each of {} threads and {} "
      "bytes of dynamic shared memory, at once",
      launch.entry, volume(launch.cluster), volume(launch.block), launch.smem_bytes);
}

/// A graph ready to launch.
class GraphExec {
 public:
  GraphExec() = default;
  GraphExec(const GraphExec&) = delete;
  GraphExec& operator=(const GraphExec&) = delete;
  ~GraphExec() {
    if (exec_) cudaGraphExecDestroy(exec_);
    if (graph_) cudaGraphDestroy(graph_);
  }

  template <class Enqueue>
  void capture(cudaStream_t stream, const Enqueue& enqueue) {
    // Of this thread alone: what a tracing library does in its own is no part of it.
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin of a capture");
    try {
      enqueue();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph_);  // fails: it ends a capture that went wrong
      cudaGetLastError();
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph_), "end of a capture");
    check(cudaGraphInstantiate(&exec_, graph_, 0), "instantiating a graph");
    check(cudaGraphUpload(exec_, stream), "uploading a graph");
  }
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(exec_, stream), "graph launch"); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

class GraphProgram final : public Program {
 public:
  GraphProgram(cudaStream_t stream, std::vector<std::string> kernels, int turns)
      : stream_(stream), kernels_(std::move(kernels)), graphs_(static_cast<size_t>(turns)) {}
  int launches() const override { return 1; }
  void launch(int) override {
    graphs_[turn_].launch(stream_);
    turn_ = (turn_ + 1) % graphs_.size();
  }
  std::vector<std::string> kernels() const override { return kernels_; }
  std::vector<GraphExec>& graphs() { return graphs_; }

 private:
  cudaStream_t stream_;
  std::vector<std::string> kernels_;
  std::vector<GraphExec> graphs_;
  size_t turn_ = 0;
};

}  // namespace

std::string broken_limit(const Launch& launch, const cudaFuncAttributes& kernel,
                         const cudaDeviceProp& device) {
  std::string broken = broken_extent("block", launch.block, device.maxThreadsDim);
  if (broken.empty()) broken = broken_extent("grid", launch.grid, device.maxGridSize);
  if (broken.empty()) broken = broken_cluster(launch, device);
  if (!broken.empty()) return broken;
  const int64_t threads = volume(launch.block);
  if (threads > device.maxThreadsPerBlock) {
    return fmt::format("{} threads a block; the device allows {}", threads,
                       device.maxThreadsPerBlock);
  }
  if (kernel.maxThreadsPerBlock > 0 && threads > kernel.maxThreadsPerBlock) {
    return fmt::format("{} threads a block; its launch bounds and {} registers a thread allow {}",
                       threads, kernel.numRegs, kernel.maxThreadsPerBlock);
  }
  const int64_t fixed = static_cast<int64_t>(kernel.sharedSizeBytes);
  const auto most = static_cast<int64_t>(device.sharedMemPerBlockOptin);
  if (launch.smem_bytes < 0 || launch.smem_bytes > most - fixed) {
    return fmt::format(
        "{} bytes of dynamic and {} of static shared memory a block; the device "
        "allows {}",
        launch.smem_bytes, fixed, most);
  }
  return {};
}

CudaModule::CudaModule(const std::string& candidate, const Compiled& compiled)
    : candidate_(candidate) {
  const auto require = [&](cudaError_t error, const std::string& doing) {
    if (error == cudaSuccess) return;
    if (library_) cudaLibraryUnload(library_);
    throw_cuda_error(error, fmt::format("{}: {}", candidate, doing));
  };
  require(cudaLibraryLoadData(&library_, compiled.cubin.data(), nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
          "loading its cubin");
  for (const CompiledKernel& kernel : compiled.kernels) {
    cudaKernel_t handle = nullptr;
    require(cudaLibraryGetKernel(&handle, library_, kernel.symbol.c_str()),
            "finding " + kernel.symbol + " in its cubin");
    kernels_[kernel.entry] = {handle, kernel.symbol};
  }
}

// After a fault this fails like everything else, and the process ends.
CudaModule::~CudaModule() { cudaLibraryUnload(library_); }

const CudaModule::Kernel& CudaModule::kernel(const std::string& entry) const {
  const auto found = kernels_.find(entry);
  if (found != kernels_.end()) return found->second;
  throw TrialError(Outcome::kLaunchFailed,
                   fmt::format("{}: no kernel {} in its cubin", candidate_, entry));
}

CudaModules::CudaModules(std::filesystem::path cache, std::string toolkit, std::string architecture)
    : cache_(std::move(cache)),
      toolkit_(std::move(toolkit)),
      architecture_(std::move(architecture)) {}

std::shared_ptr<const CudaModule> CudaModules::get(const Candidate& candidate) {
  const std::string name = key(candidate);
  if (const auto known = loaded_.find(name); known != loaded_.end()) return known->second;
  const auto compiled = cache_.find(candidate, toolkit_, architecture_);
  if (!compiled) {
    throw TrialError(
        Outcome::kCompileFailed,
        fmt::format("no cubin of {} for {} by {} in {}: compile it first", name, architecture_,
                    toolkit_.empty() ? "any compiler" : toolkit_, cache_.folder().string()));
  }
  auto module = std::make_shared<const CudaModule>(name, *compiled);
  loaded_.emplace(name, module);
  return module;
}

CudaProgram::CudaProgram(const CudaQueue& queue, std::string candidate,
                         std::shared_ptr<const CudaModule> module, std::vector<CudaLaunch> launches)
    : queue_(queue),
      candidate_(std::move(candidate)),
      module_(std::move(module)),
      launches_(std::move(launches)) {
  for (const CudaLaunch& launch : launches_) prepare(launch);
}

/// Asking for the attributes loads the code, which the runtime else puts off to the first launch.
void CudaProgram::prepare(const CudaLaunch& launch) {
  const void* kernel = launch.kernel->handle;
  cudaFuncAttributes& attributes = attributes_[launch.kernel];
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel)) {
    throw_error(error, launch, "loading");
  }
  const auto set = [&](cudaFuncAttribute attribute, int64_t value) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, attribute, static_cast<int>(value));
    if (error != cudaSuccess) throw_error(error, launch, "opting in to");
  };
  // Raised only: programs of other shapes share the kernel.
  if (launch.shape.smem_bytes > attributes.maxDynamicSharedSizeBytes) {
    set(cudaFuncAttributeMaxDynamicSharedMemorySize, launch.shape.smem_bytes);
  }
  if (volume(launch.shape.cluster) > kPortableCluster) {
    set(cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  if (volume(launch.shape.cluster) > 1) require_room(launch);
}

/// A cluster whose CTAs do not fit into one group of SMs at once never starts: said here, where the
/// launch would say no more than that its configuration is invalid.
void CudaProgram::require_room(const CudaLaunch& launch) const {
  const LaunchConfig shape(launch.shape, false);
  const cudaLaunchConfig_t config = shape.on(queue_.stream);
  int clusters = 0;
  const cudaError_t error =
      cudaOccupancyMaxActiveClusters(&clusters, launch.kernel->handle, &config);
  if (error != cudaSuccess) throw_error(error, launch, "asking for room for clusters of");
  if (clusters > 0) return;
  throw TrialError(Outcome::kLaunchFailed, candidate_ + ": " + no_room(launch.shape));
}

void CudaProgram::throw_error(cudaError_t error, const CudaLaunch& launch,
                              const char* doing) const {
  const std::string limit =
      broken_limit(launch.shape, attributes_.at(launch.kernel), queue_.properties);
  throw_cuda_error(error, fmt::format("{}: {} {}{}{}", candidate_, doing, launch.shape.entry,
                                      limit.empty() ? "" : ": ", limit));
}

void CudaProgram::launch(int launch) {
  if (launch == 0) turn_ = (turn_ + 1) % turns();
  enqueue(launch, turn_, false);
}

std::vector<std::string> CudaProgram::kernels() const {
  std::vector<std::string> symbols;
  for (const CudaLaunch& launch : launches_) symbols.push_back(launch.kernel->symbol);
  return symbols;
}

int CudaProgram::turns() const {
  return launches_.empty() ? 1 : static_cast<int>(launches_.front().arguments.size());
}

bool CudaProgram::allows_programmatic(int launch) const {
  return launches_[static_cast<size_t>(launch)].shape.pdl && queue_.properties.major >= 9;
}

void CudaProgram::enqueue(int launch, int turn, bool programmatic) const {
  const CudaLaunch& it = launches_.at(static_cast<size_t>(launch));
  const LaunchConfig shape(it.shape, programmatic);
  const cudaLaunchConfig_t config = shape.on(queue_.stream);
  void* arguments[] = {const_cast<void*>(it.arguments[static_cast<size_t>(turn)].data())};
  const cudaError_t error = cudaLaunchKernelExC(&config, it.kernel->handle, arguments);
  if (error != cudaSuccess) throw_error(error, it, "launching");
}

std::unique_ptr<Program> capture_graph(const CudaQueue& queue,
                                       const std::vector<CudaProgram*>& programs, bool pdl,
                                       size_t chain_length) {
  std::vector<std::string> kernels;
  int turns = 1;
  for (const CudaProgram* program : programs) {
    turns = std::max(turns, program->turns());
    for (std::string& kernel : program->kernels()) kernels.push_back(std::move(kernel));
  }
  auto graph = std::make_unique<GraphProgram>(queue.stream, std::move(kernels), turns);
  for (int turn = 0; turn < turns; ++turn) {
    graph->graphs()[static_cast<size_t>(turn)].capture(queue.stream, [&] {
      for (size_t i = 0; i < programs.size(); ++i) {
        const CudaProgram& program = *programs[i];
        for (int launch = 0; launch < program.launches(); ++launch) {
          const bool first = i % chain_length == 0 && launch == 0;
          const bool programmatic = pdl && !first && program.allows_programmatic(launch);
          program.enqueue(launch, turn % program.turns(), programmatic);
        }
      }
    });
  }
  return graph;
}

}  // namespace muse::tuner
