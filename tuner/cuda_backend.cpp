// SPDX-License-Identifier: Apache-2.0
// A GPU as a target: one context, one stream, everything in order on it.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "profiler/cupti_sampler.h"
#include "profiler/device_cache.h"
#include "profiler/device_facts.h"
#include "profiler/device_kernels.h"
#include "profiler/event_sampler.h"
#include "tuner/backend.h"
#include "tuner/cuda_allocator.h"
#include "tuner/cuda_error.h"
#include "tuner/cuda_memory.h"
#include "tuner/cuda_program.h"
#include "tuner/cuda_truth.h"
#include "variants/runtime/device_class_cuda.h"
#include "variants/runtime/tensor_map_cuda.h"

namespace muse::tuner {
namespace {

constexpr int64_t kWorkspaceAlignment = 256;

[[noreturn]] void throw_no_device(cudaError_t error, int device) {
  cudaGetLastError();
  throw TargetError(
      TargetError::Kind::kDevice, error,
      fmt::format("cuda:{}: {}; {}", device, cuda_error_text(error), cuda_remedy(error)));
}

/// The first call of a process: whatever keeps CUDA from working shows here.
void require_device(int device) {
  int count = 0;
  const auto require = [device](cudaError_t error) {
    if (error != cudaSuccess) throw_no_device(error, device);
  };
  require(cudaGetDeviceCount(&count));
  if (count == 0) throw_no_device(cudaErrorNoDevice, device);
  if (device < 0 || device >= count) {
    throw TargetError(
        TargetError::Kind::kDevice, cudaErrorInvalidDevice,
        fmt::format("cuda:{}: {} visible here; use {}", device,
                    count == 1 ? "one device is" : fmt::format("{} devices are", count),
                    count == 1 ? "cuda:0" : fmt::format("cuda:0 to cuda:{}", count - 1)));
  }
  require(cudaInitDevice(device, 0, 0));
  require(cudaSetDevice(device));
}

/// The profiler's sampler, whose errors are the device's.
class CudaSampler final : public profiler::Sampler {
 public:
  explicit CudaSampler(std::unique_ptr<profiler::Sampler> inner) : inner_(std::move(inner)) {}
  profiler::Timer timer() const override { return inner_->timer(); }
  double step_ns() const override { return inner_->step_ns(); }
  std::string version() const override { return inner_->version(); }
  void start(std::vector<profiler::Work> works) override {
    with_cuda_errors([&] {
      // Not enqueued: it cannot lie between two samples, nor between batches under way.
      if (!std::exchange(under_way_, true)) profiler::reset_persisting();
      inner_->start(std::move(works));
    });
  }
  void wait() override {
    with_cuda_errors([&] { inner_->wait(); });
  }
  std::vector<profiler::Sample> collect() override {
    under_way_ = false;
    return with_cuda_errors([&] { return inner_->collect(); });
  }

 private:
  std::unique_ptr<profiler::Sampler> inner_;
  bool under_way_ = false;
};

std::unique_ptr<profiler::Sampler> make_sampler(profiler::Timer timer, cudaStream_t stream) {
  switch (timer) {
    case profiler::Timer::kCupti: {
      auto sampler = profiler::make_cupti_sampler(stream);
      if (sampler) return *std::move(sampler);
      throw TargetError(TargetError::Kind::kTimer, sampler.error().code, sampler.error().what);
    }
    case profiler::Timer::kEvents:
      return with_cuda_errors([&] { return profiler::make_event_sampler(stream); });
    case profiler::Timer::kHost:
      break;
  }
  throw TargetError(TargetError::Kind::kTimer, 0, "a GPU has no timer 'host'");
}

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Of an empty kernel, to find the least time that the sampler shows.
constexpr size_t kNullSamples = 32;

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaOptions& options)
      : device_class_(device_class_of(options.device)),
        toolkit_(options.toolkit),
        modules_(options.cache, options.toolkit, device_class_.isa) {
    queue_.stream = stream_.get();
    check(cudaGetDeviceProperties(&queue_.properties, options.device), "asking for properties");
    const profiler::DeviceFacts facts =
        with_cuda_errors([&] { return profiler::device_facts(options.device); });
    instance_ = profiler::cuda_device_instance(facts.uuid, facts.name);
    limits_ = {.dram_bytes_per_s = facts.memory_bytes_per_s, .sm_clock_hz = facts.sm_clock_hz};
    encoder_ = make_tensor_map_encoder();
    difference_ = static_cast<unsigned long long*>(allocate(sizeof *difference_));
    sampler_.emplace(make_sampler(options.timer, stream_.get()));
    with_cuda_errors([&] { cache_.emplace(stream_.get()); });
  }
  ~CudaBackend() override { release(difference_); }

  TargetKind target() const override { return TargetKind::kCuda; }
  const DeviceClass& device_class() const override { return device_class_; }
  const profiler::DeviceInstance& device_instance() const override { return instance_; }
  std::string toolkit() const override { return toolkit_; }

  void* allocate(int64_t bytes) override { return memory_.allocate(bytes); }
  void release(void* address) override { memory_.release(address); }

  void upload(void* target, const void* host, int64_t bytes) override {
    copy(target, host, bytes, cudaMemcpyHostToDevice);
  }
  void download(void* host, const void* target, int64_t bytes) override {
    copy(host, target, bytes, cudaMemcpyDeviceToHost);
    synchronize();
  }
  void put(std::span<const Put> puts) override {
    pieces_.clear();
    for (const Put& one : puts) add_pieces(one.target, one.source, one.bytes, one.byte);
    if (pieces_.empty()) return;
    check(static_cast<cudaError_t>(
              enqueue_put(upload_pieces(), static_cast<int64_t>(pieces_.size()), stream_.get())),
          "filling and copying device memory");
  }
  std::optional<Difference> first_difference(std::span<const Compared> all) override {
    pieces_.clear();
    for (const Compared& one : all) {
      add_pieces(const_cast<void*>(one.got), one.expected, one.bytes, one.byte);
    }
    if (pieces_.empty()) return std::nullopt;
    check(cudaMemsetAsync(difference_, 0xFF, sizeof *difference_, stream_.get()),
          "preparing to compare device memory");
    check(static_cast<cudaError_t>(enqueue_first_difference(
              upload_pieces(), static_cast<int64_t>(pieces_.size()), difference_, stream_.get())),
          "comparing device memory");
    int64_t position = -1;  // all bits set, as the device's word where nothing differs
    download(&position, difference_, sizeof position);
    if (position < 0) return std::nullopt;
    for (size_t i = 0; i < all.size(); ++i) {
      const int64_t bytes = std::max<int64_t>(all[i].bytes, 0);
      if (position < bytes) return Difference{i, position};
      position -= bytes;
    }
    throw std::logic_error("a difference beyond all that was compared");
  }
  /// Whatever shows here went wrong on the device, whose context is lost with it.
  void synchronize() override {
    const cudaError_t error = cudaStreamSynchronize(stream_.get());
    if (error != cudaSuccess) throw DeviceFault(cuda_error_text(error));
  }

  std::unique_ptr<Program> bind(const Candidate& candidate, const Problem& problem,
                                const Buffers& buffers, void* workspace) override;
  std::unique_ptr<Program> capture(const std::vector<Program*>& programs, bool pdl,
                                   size_t chain_length) override {
    std::vector<CudaProgram*> bound;
    for (Program* program : programs) bound.push_back(static_cast<CudaProgram*>(program));
    return capture_graph(queue_, bound, pdl, chain_length);
  }
  std::optional<TargetTruth> attention_truth(const Problem& problem,
                                             const Buffers& buffers) override {
    return cuda_attention_truth(*this, stream_.get(), problem, buffers);
  }
  std::optional<CombinedPartials> combined_partials(const Problem& problem, const Buffers& buffers,
                                                    bool values) override {
    return cuda_combined_partials(*this, stream_.get(), problem, buffers, values);
  }

  CUstream_st* stream() const override { return stream_.get(); }
  profiler::Sampler& sampler() override { return *sampler_; }
  void flush_caches() override {
    with_cuda_errors([&] { cache_->flush(); });
  }
  profiler::ClockReading read_clock() override { return profiler::read_gpu_clock(instance_.uuid); }
  DeviceLimits limits() override {
    if (limits_.launch_floor_ns > 0) return limits_;
    const profiler::Work nothing{.before = [] {},
                                 .run = [this] { profiler::launch_null(stream_.get()); },
                                 .kernels = {profiler::symbol(profiler::OwnKernel::kNull)}};
    double least = std::numeric_limits<double>::infinity();
    for (const profiler::Sample& sample :
         sampler_->take_all(std::vector(kNullSamples, nothing), [] {})) {
      if (sample.rejected.empty()) least = std::min(least, sample.span_ns);
    }
    if (std::isfinite(least)) limits_.launch_floor_ns = std::max(0.0, least - sampler_->step_ns());
    return limits_;
  }
  std::string protocol() const override {
    return fmt::format(
        "timer={}; sampler={}; cold=flush before the sample; flush={}; "
        "warm=after the predecessor, no flush; rotating=one graph over copies of 3 caches; "
        "fill=normal, caches repeat; memory=cudaMalloc, guarded; chain=one graph; two untimed runs "
        "in each place; samples back to back",
        profiler::name(sampler_->timer()), sampler_->version(), cache_->recipe());
  }

 private:
  static DeviceClass device_class_of(int device) {
    require_device(device);
    auto device_class = cuda_device_class(device);
    if (!device_class) throw_no_device(static_cast<cudaError_t>(device_class.error()), device);
    return *std::move(device_class);
  }
  void add_pieces(void* target, const void* source, int64_t bytes, uint8_t byte) {
    uint64_t position = pieces_.empty() ? 0 : pieces_.back().position + pieces_.back().bytes;
    for (int64_t at = 0; at < bytes; at += kPieceBytes) {
      const int64_t length = std::min(kPieceBytes, bytes - at);
      pieces_.push_back({static_cast<uint8_t*>(target) + at,
                         source ? static_cast<const uint8_t*>(source) + at : nullptr,
                         static_cast<uint32_t>(length), byte, position});
      position += static_cast<uint64_t>(length);
    }
  }
  /// Where the device finds them; until the next upload.
  const MemoryPiece* upload_pieces() {
    const auto bytes = static_cast<int64_t>(pieces_.size() * sizeof(MemoryPiece));
    if (bytes > pieces_bytes_) {
      release(device_pieces_);
      device_pieces_ = nullptr;
      pieces_bytes_ = 0;  // there is none if the next line throws
      device_pieces_ = static_cast<MemoryPiece*>(allocate(bytes));
      pieces_bytes_ = bytes;
    }
    upload(device_pieces_, pieces_.data(), bytes);
    return device_pieces_;
  }
  void copy(void* target, const void* source, int64_t bytes, cudaMemcpyKind kind) {
    if (bytes <= 0) return;
    check(cudaMemcpyAsync(target, source, static_cast<size_t>(bytes), kind, stream_.get()),
          "copying memory");
  }

  // Members die in reverse: modules before the stream.
  DeviceClass device_class_;
  std::string toolkit_;
  CudaAllocator memory_;
  Stream stream_;
  CudaQueue queue_;
  CudaModules modules_;
  profiler::DeviceInstance instance_;
  TensorMapEncoder encoder_;
  unsigned long long* difference_ = nullptr;
  std::vector<MemoryPiece> pieces_;
  MemoryPiece* device_pieces_ = nullptr;
  int64_t pieces_bytes_ = 0;
  std::optional<CudaSampler> sampler_;
  DeviceLimits limits_;
  std::optional<profiler::DeviceCache> cache_;
};

std::unique_ptr<Program> CudaBackend::bind(const Candidate& candidate, const Problem& problem,
                                           const Buffers& buffers, void* workspace) {
  const Variant& variant = *candidate.variant;
  const std::string name = key(candidate);
  if (variant.target.kind != TargetKind::kCuda) {
    throw TrialError(Outcome::kLaunchFailed, name + " is not for a GPU");
  }
  const Geometry geometry = variant.geometry(problem, candidate.configuration, device_class_);
  std::vector<void*> workspaces{workspace};
  if (geometry.workspace.double_buffered) {
    if (geometry.workspace.bytes % kWorkspaceAlignment != 0) {
      throw TrialError(Outcome::kLaunchFailed,
                       fmt::format("{}: its double-buffered workspace of {} bytes is no multiple "
                                   "of {}",
                                   name, geometry.workspace.bytes, kWorkspaceAlignment));
    }
    workspaces.push_back(static_cast<uint8_t*>(workspace) + geometry.workspace.bytes);
  }
  auto module = modules_.get(candidate);
  std::vector<CudaLaunch> launches;
  for (size_t i = 0; i < geometry.launches.size(); ++i) {
    CudaLaunch launch{&module->kernel(geometry.launches[i].entry), geometry.launches[i], {}};
    for (void* area : workspaces) {
      launch.arguments.push_back(variant.bind(problem, candidate.configuration, buffers, area,
                                              encoder_, static_cast<int>(i)));
    }
    launches.push_back(std::move(launch));
  }
  return std::make_unique<CudaProgram>(queue_, name, std::move(module), std::move(launches));
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
  try {
    return std::make_unique<CudaBackend>(options);
  } catch (const TrialError& error) {  // not even what the tuner itself needs can be had
    throw TargetError(TargetError::Kind::kDevice, 0, error.what());
  } catch (const DeviceFault& error) {
    throw TargetError(TargetError::Kind::kDevice, 0, error.what());
  }
}

}  // namespace muse::tuner
