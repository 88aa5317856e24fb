// SPDX-License-Identifier: Apache-2.0
// Traces what runs before and what is timed as two regions, so that records find their part.
#include "profiler/cupti_sampler.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "profiler/cupti.h"
#include "profiler/device_error.h"
#include "profiler/device_kernels.h"

namespace muse::profiler {
namespace {

/// While it lives, what this thread launches lies in a region of its own.
class Region {
 public:
  explicit Region(CuptiTracer& tracer) : tracer_(tracer), id(tracer.enter()) {}
  ~Region() { tracer_.leave(); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  CuptiTracer& tracer_;

 public:
  const uint64_t id;
};

class CuptiSampler final : public Sampler {
 public:
  CuptiSampler(CUstream_st* stream, std::shared_ptr<CuptiTracer> tracer)
      : stream_(stream), tracer_(std::move(tracer)) {}
  Timer timer() const override { return Timer::kCupti; }
  double step_ns() const override { return step_ns_; }
  std::string version() const override { return "cupti-2 " + tracer_->version(); }
  std::vector<Sample> take_all(const std::vector<Work>& works,
                               const std::function<void()>& meanwhile) override {
    tracer_->clear();
    std::vector<SampleParts> parts;
    for (const Work& work : works) {
      const uint64_t before = run(work.before);
      parts.push_back({.before = before, .work = run(work.run), .kernels = &work.kernels});
    }
    meanwhile();
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    const Trace trace = tracer_->collect(parts);
    const TraceIndex index(trace);
    std::vector<Sample> samples;
    for (const SampleParts& sample : parts) samples.push_back(sample_of(index, sample));
    return samples;
  }

  /// False where the library gives no record of what was launched.
  bool measure_step() {
    // Kernels of ever so slightly different length: their times show what the clock can tell apart.
    constexpr size_t kLengths = 256;
    constexpr int64_t kCyclesApart = 8;
    const std::vector<std::string> kernels(kLengths, symbol(OwnKernel::kSpin));
    tracer_->clear();
    const uint64_t region = run([&] {
      for (size_t i = 0; i < kLengths; ++i) {
        launch_spin(stream_, static_cast<int64_t>(i) * kCyclesApart);
      }
    });
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    const Trace trace = tracer_->collect({{.work = region, .kernels = &kernels}});
    const TraceIndex index(trace);
    std::vector<double> durations;
    for (const KernelRecord* record : index[region].records) {
      if (record->end_ns > record->start_ns) {
        durations.push_back(static_cast<double>(record->end_ns - record->start_ns));
      }
    }
    step_ns_ = timestamp_step(durations);
    return !durations.empty();
  }

 private:
  uint64_t run(const std::function<void()>& part) {
    const Region region(*tracer_);
    part();
    return region.id;
  }

  CUstream_st* stream_;
  std::shared_ptr<CuptiTracer> tracer_;
  double step_ns_ = 0;
};

}  // namespace

tl::expected<std::unique_ptr<Sampler>, TracingError> make_cupti_sampler(CUstream_st* stream) {
  auto tracer = CuptiTracer::open();
  if (!tracer) return tl::unexpected(std::move(tracer.error()));
  auto sampler = std::make_unique<CuptiSampler>(stream, *std::move(tracer));
  if (!sampler->measure_step()) {
    return tl::unexpected(TracingError{
        0, fmt::format("{} has no times of what it was told was launched; use the CUPTI of the "
                       "newest CUDA Toolkit 13 and a driver from 580 on",
                       sampler->version())});
  }
  return sampler;
}

}  // namespace muse::profiler
