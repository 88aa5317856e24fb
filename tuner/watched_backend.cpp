// SPDX-License-Identifier: Apache-2.0
// Forwards to a backend, with a variant's code on the clock.
#include "tuner/watched_backend.h"

#include <utility>

namespace muse::tuner {
namespace {

class WatchedProgram final : public Program {
 public:
  WatchedProgram(std::unique_ptr<Program> inner, Publisher& publisher)
      : inner_(std::move(inner)), publisher_(publisher) {}
  int launches() const override { return inner_->launches(); }
  void launch(int launch) override {
    const OnTheClock clock(publisher_);
    inner_->launch(launch);
  }
  std::vector<std::string> kernels() const override { return inner_->kernels(); }
  Program* inner() const { return inner_.get(); }

 private:
  std::unique_ptr<Program> inner_;
  Publisher& publisher_;
};

/// A GPU's launches only enqueue: the sampler waits for them.
class WatchedSampler final : public profiler::Sampler {
 public:
  WatchedSampler(Backend& inner, Publisher& publisher) : inner_(inner), publisher_(publisher) {}
  profiler::Timer timer() const override { return inner_.sampler().timer(); }
  double step_ns() const override { return inner_.sampler().step_ns(); }
  std::string version() const override { return inner_.sampler().version(); }
  void start(std::vector<profiler::Work> works) override {
    const OnTheClock clock(publisher_);
    inner_.sampler().start(std::move(works));
  }
  void wait() override {
    const OnTheClock clock(publisher_);
    inner_.sampler().wait();
  }
  std::vector<profiler::Sample> collect() override {
    const OnTheClock clock(publisher_);
    return inner_.sampler().collect();
  }

 private:
  Backend& inner_;
  Publisher& publisher_;
};

class WatchedBackend final : public Backend {
 public:
  WatchedBackend(Backend& inner, Publisher& publisher)
      : inner_(inner), publisher_(publisher), sampler_(inner, publisher) {}

  TargetKind target() const override { return inner_.target(); }
  const DeviceClass& device_class() const override { return inner_.device_class(); }
  const profiler::DeviceInstance& device_instance() const override {
    return inner_.device_instance();
  }
  std::string toolkit() const override { return inner_.toolkit(); }
  void* allocate(int64_t bytes) override { return inner_.allocate(bytes); }
  void release(void* address) override { inner_.release(address); }
  void upload(void* target, const void* host, int64_t bytes) override {
    inner_.upload(target, host, bytes);
  }
  void download(void* host, const void* target, int64_t bytes) override {
    inner_.download(host, target, bytes);
  }
  void put(std::span<const Put> puts) override { inner_.put(puts); }
  std::optional<Difference> first_difference(std::span<const Compared> all) override {
    return inner_.first_difference(all);
  }
  void synchronize() override {
    const OnTheClock clock(publisher_);
    inner_.synchronize();
  }
  std::unique_ptr<Program> bind(const Candidate& candidate, const Problem& problem,
                                const Buffers& buffers, void* workspace) override {
    const OnTheClock clock(publisher_);
    return std::make_unique<WatchedProgram>(inner_.bind(candidate, problem, buffers, workspace),
                                            publisher_);
  }
  /// All of `programs` come from bind() of this backend.
  std::unique_ptr<Program> capture(const std::vector<Program*>& programs, bool pdl,
                                   size_t chain_length) override {
    const OnTheClock clock(publisher_);
    std::vector<Program*> inner;
    for (Program* program : programs)
      inner.push_back(static_cast<WatchedProgram*>(program)->inner());
    auto graph = inner_.capture(inner, pdl, chain_length);
    if (!graph) return nullptr;
    return std::make_unique<WatchedProgram>(std::move(graph), publisher_);
  }
  std::optional<TargetTruth> attention_truth(const Problem& problem,
                                             const Buffers& buffers) override {
    return inner_.attention_truth(problem, buffers);
  }
  std::optional<CombinedPartials> combined_partials(const Problem& problem, const Buffers& buffers,
                                                    bool values) override {
    return inner_.combined_partials(problem, buffers, values);
  }
  profiler::Sampler& sampler() override { return sampler_; }
  profiler::ClockReading read_clock() override { return inner_.read_clock(); }
  DeviceLimits limits() override { return inner_.limits(); }
  void flush_caches() override { inner_.flush_caches(); }
  std::string protocol() const override { return inner_.protocol(); }

 private:
  Backend& inner_;
  Publisher& publisher_;
  WatchedSampler sampler_;
};

}  // namespace

std::unique_ptr<Backend> watch(Backend& inner, Publisher& publisher) {
  return std::make_unique<WatchedBackend>(inner, publisher);
}

}  // namespace muse::tuner
