// SPDX-License-Identifier: Apache-2.0
// Traces what runs before and what is timed as two regions, so that records find their part.
#include "profiler/cupti_sampler.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

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

/// Where on the stream a batch ends.
class EndMark {
 public:
  EndMark() {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
  }
  ~EndMark() { cudaEventDestroy(event_); }
  EndMark(const EndMark&) = delete;
  EndMark& operator=(const EndMark&) = delete;
  void record(CUstream_st* stream) {
    check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  void wait() { check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

 private:
  cudaEvent_t event_ = nullptr;
};

class CuptiSampler final : public Sampler {
 public:
  CuptiSampler(CUstream_st* stream, std::shared_ptr<CuptiTracer> tracer)
      : stream_(stream), tracer_(std::move(tracer)) {}
  Timer timer() const override { return Timer::kCupti; }
  double step_ns() const override { return step_ns_; }
  std::string version() const override { return "cupti-2 " + tracer_->version(); }
  void start(std::vector<Work> works) override {
    if (taken_.batches.empty()) tracer_->begin();
    const size_t number = taken_.batches.size();
    if (ends_.size() == number) ends_.push_back(std::make_unique<EndMark>());
    Batch batch{std::move(works), {}};
    for (const Work& work : batch.works) {
      const uint64_t before = run(work.before);
      batch.parts.push_back({.before = before, .work = run(work.run), .kernels = &work.kernels});
    }
    ends_[number]->record(stream_);
    taken_.batches.push_back(std::move(batch));
  }
  void wait() override { wait(taken_); }
  // Records are held back while a neighbour's kernel runs, so who lacks one is known only now.
  std::vector<Sample> collect() override {
    Taken taken = std::exchange(taken_, {});
    while (taken.ended < taken.batches.size()) wait(taken);
    if (!taken.complete()) taken.add(tracer_->take(CuptiTracer::Flush::kLast));
    tracer_->end();
    std::vector<Sample> samples;
    for (const Batch& batch : taken.batches) {
      for (const SampleParts& parts : batch.parts) samples.push_back(sample_of(taken.index, parts));
    }
    return samples;
  }

  /// False where the library gives no record of what was launched.
  bool measure_step() {
    // Kernels of ever so slightly different length: their times show what the clock can tell apart.
    constexpr size_t kLengths = 256;
    constexpr int64_t kCyclesApart = 8;
    tracer_->begin();
    const uint64_t region = run([&] {
      for (size_t i = 0; i < kLengths; ++i) {
        launch_spin(stream_, static_cast<int64_t>(i) * kCyclesApart);
      }
    });
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    const Trace trace = tracer_->take(CuptiTracer::Flush::kLast);
    tracer_->end();
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
  struct Batch {
    std::vector<Work> works;
    std::vector<SampleParts> parts;
  };
  /// Since the samples were collected last.
  struct Taken {
    std::vector<Batch> batches;
    size_t ended = 0;          ///< of the batches
    std::deque<Trace> traces;  ///< what the index points into
    TraceIndex index;

    void add(Trace trace) { index.add(traces.emplace_back(std::move(trace))); }
    bool complete() const {
      return std::all_of(batches.begin(), batches.end(), [&](const Batch& batch) {
        return std::all_of(batch.parts.begin(), batch.parts.end(), [&](const SampleParts& parts) {
          return profiler::complete(index, parts);
        });
      });
    }
  };

  void wait(Taken& taken) {
    ends_[taken.ended]->wait();
    ++taken.ended;
    taken.add(tracer_->take(CuptiTracer::Flush::kComplete));
  }

  uint64_t run(const std::function<void()>& part) {
    const Region region(*tracer_);
    part();
    return region.id;
  }

  CUstream_st* stream_;
  std::shared_ptr<CuptiTracer> tracer_;
  double step_ns_ = 0;
  Taken taken_;
  std::vector<std::unique_ptr<EndMark>> ends_;  ///< as many as there ever were batches at once
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
