// SPDX-License-Identifier: Apache-2.0
// One host candidate on one shape, timed twice: by Google Benchmark's loop and by the sampler.
#include <benchmark/benchmark.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "profiler/statistics.h"
#include "tests/bench/bench.h"
#include "tuner/arena.h"
#include "tuner/backend.h"
#include "tuner/inputs.h"
#include "tuner/plan.h"
#include "variants/registry.h"

namespace muse::bench {
namespace {

constexpr int kSamples = 101;
constexpr int kRepetitions = 9;

Handoff handoff_of(const Problem& problem, const Candidate& candidate) {
  return candidate.variant->produces(problem, candidate.configuration);
}

/// Every host candidate of the registry that supports the problem and ends where `last` says.
std::vector<Candidate> candidates_up_to(Stage last, const Problem& problem,
                                        const DeviceClass& device) {
  std::vector<Candidate> found;
  for (const Variant* variant : Registry::global().all()) {
    if (variant->target.kind != TargetKind::kHost) continue;
    for (const Configuration& configuration : space(*variant)) {
      if (variant->span(configuration).last == last &&
          variant->supports(problem, configuration, device).ok()) {
        found.push_back({variant, configuration});
      }
    }
  }
  return found;
}

/// The chain with what has to run before it in front: base candidates where they fit.
Chain with_predecessors(Chain chain, const Chain& base, const Problem& problem,
                        const DeviceClass& device) {
  while (span(chain).first != Stage::kPrepare) {
    const auto before = static_cast<Stage>(static_cast<int>(span(chain).first) - 1);
    Chain options;
    for (const Candidate& candidate : base) {
      if (candidate.span().last == before) options.push_back(candidate);
    }
    const std::vector<Candidate> others = candidates_up_to(before, problem, device);
    options.insert(options.end(), others.begin(), others.end());
    bool found = false;
    for (size_t i = 0; i < options.size() && !found; ++i) {
      Chain longer{options[i]};
      longer.insert(longer.end(), chain.begin(), chain.end());
      found = joins(problem, longer).ok();
      if (found) chain = std::move(longer);
    }
    if (!found) throw std::runtime_error("nothing here feeds " + key(chain.front()));
  }
  return chain;
}

/// A candidate bound to its own memory, with everything before it run once.
class Bench {
 public:
  Bench(const Candidate& candidate, const Shape& shape)
      : backend_(tuner::make_host_backend()), problem_(shape.problem) {
    const auto base = tuner::default_base(TargetKind::kHost, Registry::global());
    if (!base) throw std::runtime_error(base.error());
    const Chain chain = with_predecessors({candidate}, *base, problem_, backend_->device_class());
    arena_ = std::make_unique<tuner::Arena>(*backend_,
                                            tuner::make_inputs(shape, 1, tuner::Fill::kNormal));
    Handoff partials{.kind = HandoffKind::kO};
    for (const Candidate& link : chain) {
      const Handoff produced = handoff_of(problem_, link);
      if (produced.kind == HandoffKind::kPartials) partials = produced;
    }
    for (const Candidate& link : chain) {
      program_ = bind(link, partials);
      run();
    }
  }

  void run() {
    for (int launch = 0; launch < program_->launches(); ++launch) program_->launch(launch);
    backend_->synchronize();
  }

  double sampled_median_ns() {
    std::vector<double> good;
    for (int i = 0; i < kSamples; ++i) {
      const profiler::Sample sample = backend_->sampler().take({[] {}, [this] { run(); }, {}});
      if (sample.rejected.empty()) good.push_back(sample.span_ns);
    }
    return profiler::median(good);
  }

 private:
  std::unique_ptr<tuner::Program> bind(const Candidate& candidate, const Handoff& partials) {
    const Geometry geometry =
        candidate.variant->geometry(problem_, candidate.configuration, backend_->device_class());
    void* workspace = arena_->workspace(key(candidate), geometry.workspace);
    return backend_->bind(candidate, problem_, arena_->buffers(partials, false), workspace);
  }

  std::unique_ptr<tuner::Backend> backend_;
  Problem problem_;
  std::unique_ptr<tuner::Arena> arena_;
  std::unique_ptr<tuner::Program> program_;
};

void run_candidate(benchmark::State& state, Bench& bench) {
  const double sampler_ns = bench.sampled_median_ns();
  for (auto _ : state) bench.run();
  state.counters["sampler_us"] = sampler_ns / 1000;
}

}  // namespace

void register_candidate(const std::string& candidate_key, const std::string& shape_key) {
  const auto shape = parse_shape(shape_key);
  if (!shape) throw std::runtime_error("--shape: " + shape.error());
  const auto candidate = Registry::global().parse_candidate(candidate_key);
  if (!candidate) throw std::runtime_error("--candidate: " + candidate.error());
  if (candidate->variant->target.kind != TargetKind::kHost) {
    throw std::runtime_error(candidate_key + " is not for the host");
  }
  const Support support =
      candidate->variant->supports(shape->problem, candidate->configuration, host_device_class());
  if (!support.ok()) throw std::runtime_error(candidate_key + ": " + support.reason);
  const auto bench = std::make_shared<Bench>(*candidate, *shape);
  benchmark::RegisterBenchmark(("candidate/" + key(*candidate)).c_str(),
                               [bench](benchmark::State& state) { run_candidate(state, *bench); })
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond)
      ->Repetitions(kRepetitions)
      ->ReportAggregatesOnly();
}

}  // namespace muse::bench
