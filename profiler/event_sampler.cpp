// SPDX-License-Identifier: Apache-2.0
// Takes samples between two CUDA events and measures the step of their clock.
#include "profiler/event_sampler.h"

#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "profiler/device_error.h"
#include "profiler/device_kernels.h"
#include "profiler/kernel_records.h"

namespace muse::profiler {
namespace {

class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(CUstream_st* stream) {
    check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  void wait() const { check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  double ns_since(const Event& start) const {
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, start.event_, event_), "cudaEventElapsedTime");
    return double{ms} * 1e6;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class EventSampler final : public Sampler {
 public:
  explicit EventSampler(CUstream_st* stream) : stream_(stream), step_ns_(measure_step()) {}
  Timer timer() const override { return Timer::kEvents; }
  double step_ns() const override { return step_ns_; }
  std::string version() const override { return "events-2"; }
  void start(std::vector<Work> works) override {
    const size_t first = taken_.ends.empty() ? 0 : taken_.ends.back();
    // All made before anything is enqueued: making one takes the host longer than a kernel.
    while (marks_.size() < first + works.size()) marks_.push_back(std::make_unique<Marks>());
    for (size_t i = 0; i < works.size(); ++i) {
      Marks& marks = *marks_[first + i];
      marks.first.record(stream_);
      works[i].before();
      marks.start.record(stream_);
      works[i].run();
      marks.end.record(stream_);
    }
    taken_.ends.push_back(first + works.size());
  }
  void wait() override { wait(taken_); }
  std::vector<Sample> collect() override {
    Taken taken = std::exchange(taken_, {});
    while (taken.ended < taken.ends.size()) wait(taken);
    return std::move(taken.samples);
  }

 private:
  /// Around what runs before, and around what is timed.
  struct Marks {
    Event first, start, end;
  };

  /// Since the samples were collected last.
  struct Taken {
    std::vector<size_t> ends;  ///< of each batch among the marks
    size_t ended = 0;          ///< of the batches
    std::vector<Sample> samples;
  };

  void wait(Taken& taken) {
    const size_t end = taken.ends[taken.ended++];
    if (taken.samples.size() < end) marks_[end - 1]->end.wait();
    while (taken.samples.size() < end) {
      taken.samples.push_back(sample_between(*marks_[taken.samples.size()]));
    }
  }

  static Sample sample_between(const Marks& marks) {
    const double span = marks.end.ns_since(marks.start);
    if (!(span > 0)) return {.rejected = "zero duration"};
    return {.span_ns = span,
            .kernel_ns = span,
            .device_ns = marks.end.ns_since(marks.first),
            .rejected = {}};
  }

  double measure_step() {
    // Work of ever so slightly different length: the times show what the clock can tell apart.
    constexpr int kLengths = 256;
    constexpr int64_t kCyclesApart = 8;
    std::vector<double> durations;
    for (int i = 0; i < kLengths; ++i) {
      const Sample sample = take(
          {.before = [] {}, .run = [&] { launch_spin(stream_, i * kCyclesApart); }, .kernels = {}});
      if (sample.rejected.empty()) durations.push_back(sample.span_ns);
    }
    return timestamp_step(std::move(durations));
  }

  CUstream_st* stream_;
  std::vector<std::unique_ptr<Marks>> marks_;  ///< as many as there ever were samples at once
  Taken taken_;
  double step_ns_;
};

}  // namespace

std::unique_ptr<Sampler> make_event_sampler(CUstream_st* stream) {
  return std::make_unique<EventSampler>(stream);
}

}  // namespace muse::profiler
