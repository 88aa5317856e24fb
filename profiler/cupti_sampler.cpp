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
      : stream_(stream), tracer_(std::move(tracer)), step_ns_(measure_step()) {}
  Timer timer() const override { return Timer::kCupti; }
  double step_ns() const override { return step_ns_; }
  std::string version() const override { return "cupti-1 " + tracer_->version(); }
  std::vector<Sample> take_all(const std::vector<Work>& works,
                               const std::function<void()>& meanwhile) override {
    std::vector<Sample> samples;
    for (const Work& work : works) samples.push_back(take_one(work));
    meanwhile();
    return samples;
  }

 private:
  Sample take_one(const Work& work) {
    tracer_->clear();
    const uint64_t earlier = run(work.before);
    const uint64_t timed = run(work.run);
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return sample_of(tracer_->collect(timed, work.kernels.size()), earlier, timed, work.kernels);
  }

  uint64_t run(const std::function<void()>& part) {
    const Region region(*tracer_);
    part();
    return region.id;
  }

  double measure_step() {
    // Kernels of ever so slightly different length: their times show what the clock can tell apart.
    constexpr size_t kLengths = 256;
    constexpr int64_t kCyclesApart = 8;
    tracer_->clear();
    const uint64_t region = run([&] {
      for (size_t i = 0; i < kLengths; ++i) {
        launch_spin(stream_, static_cast<int64_t>(i) * kCyclesApart);
      }
    });
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    std::vector<double> durations;
    for (const KernelRecord& record : tracer_->collect(region, kLengths).records) {
      if (record.end_ns > record.start_ns) {
        durations.push_back(static_cast<double>(record.end_ns - record.start_ns));
      }
    }
    return timestamp_step(std::move(durations));
  }

  CUstream_st* stream_;
  std::shared_ptr<CuptiTracer> tracer_;
  double step_ns_;
};

}  // namespace

tl::expected<std::unique_ptr<Sampler>, TracingError> make_cupti_sampler(CUstream_st* stream) {
  auto tracer = CuptiTracer::open();
  if (!tracer) return tl::unexpected(std::move(tracer.error()));
  return std::make_unique<CuptiSampler>(stream, *std::move(tracer));
}

}  // namespace muse::profiler
