// SPDX-License-Identifier: Apache-2.0
// Kernels of known length by the sampler of a sweep: the same under another profiler, which then
// times them itself.
#include <benchmark/benchmark.h>

#include <memory>
#include <stdexcept>

#include "tests/bench/bench.h"

#ifdef MUSE_HAS_CUDA
#include "profiler/ceilings.h"
#include "profiler/cupti_sampler.h"
#include "profiler/device_facts.h"
#include "profiler/event_sampler.h"
#include "profiler/stream.h"
#endif

namespace muse::bench {

#ifdef MUSE_HAS_CUDA
namespace {

constexpr int kSamples = 30;

struct Device {
  Device() : stream(), work(stream.get()) {
    auto cupti = profiler::make_cupti_sampler(stream.get());
    if (cupti) {
      sampler = *std::move(cupti);
    } else {
      sampler = profiler::make_event_sampler(stream.get());
      why_events = cupti.error().what;
    }
  }
  profiler::Stream stream;
  profiler::CeilingWork work;
  std::unique_ptr<profiler::Sampler> sampler;
  std::string why_events;
};

void add(const std::shared_ptr<Device>& device, const std::string& name,
         const std::function<profiler::Work(profiler::CeilingWork&)>& work) {
  benchmark::RegisterBenchmark(
      name.c_str(),
      [=](benchmark::State& state) {
        const profiler::Timing timing =
            profiler::measure(*device->sampler, work(device->work), kSamples);
        for (auto _ : state) state.SetIterationTime(timing.median_ns / 1e9);
        state.SetLabel(std::string(profiler::name(device->sampler->timer())) +
                       (device->why_events.empty() ? "" : ": " + device->why_events));
        state.counters["samples"] = timing.samples;
        if (timing.samples == 0) state.SkipWithError(timing.why.c_str());
      })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace

void register_kernels() {
  if (const profiler::DeviceCount count = profiler::count_devices(); count.devices == 0) {
    throw std::runtime_error("--kernels: no GPU here, CUDA error " + std::to_string(count.error));
  }
  profiler::use_device(0);
  const auto device = std::make_shared<Device>();
  add(device, "null", [](profiler::CeilingWork& work) { return work.null_kernel(); });
  for (const int us : {3, 10, 30, 100, 300}) {
    add(device, "spin/" + std::to_string(us) + "us",
        [us](profiler::CeilingWork& work) { return work.spin(us); });
  }
  for (const int mib : {25, 200}) {
    add(device, "read/" + std::to_string(mib) + "MiB",
        [mib](profiler::CeilingWork& work) { return work.read(int64_t{mib} << 20); });
  }
}
#else
void register_kernels() { throw std::runtime_error("--kernels: this build has no CUDA target"); }
#endif

}  // namespace muse::bench
