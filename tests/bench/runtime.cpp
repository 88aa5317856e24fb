// SPDX-License-Identifier: Apache-2.0
// What the C interface costs on the host beyond the launches that it makes: runs beside the bare
// launches of the same step with everything bound before, in turns; and making a plan.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/bench/bench.h"
#include "tests/variants/runtime_table.h"
#include "variants/registry.h"
#include "variants/runtime/workspace.h"

#if defined(MUSE_HAS_CUDA)
#include "tests/device/aot/gpu_table.h"
#include "variants/runtime/launch_config_cuda.h"
#endif

namespace muse::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kCalls = 32;  ///< timed together; fewer than a stream's queue takes

/// What is launched, and what waits for it without being timed.
struct Work {
  std::function<void()> run, bare, wait;
};

double ns_each(const std::function<void()>& call, const std::function<void()>& wait) {
  const auto start = Clock::now();
  for (int i = 0; i < kCalls; ++i) call();
  const std::chrono::duration<double, std::nano> taken = Clock::now() - start;
  wait();
  return taken.count() / kCalls;
}

void require_ok(muse_attention_status status) {
  if (status != MUSE_ATTENTION_OK) throw std::runtime_error(muse_attention_last_error());
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The time is a run's; counters: the medians of both and of what a run takes more.
void beside_bare(benchmark::State& state, const Work& work) {
  std::vector<double> runs, bare, more;
  for (auto _ : state) {
    bare.push_back(ns_each(work.bare, work.wait));
    runs.push_back(ns_each(work.run, work.wait));
    more.push_back(runs.back() - bare.back());
    state.SetIterationTime(runs.back() * 1e-9);
  }
  state.counters["run_ns"] = median(runs);
  state.counters["bare_ns"] = median(bare);
  state.counters["more_ns"] = median(more);
}

/// Everything of a chain's launches but the launching, in a workspace as a plan lays it out.
struct Bound {
  const Variant* variant;
  Launch launch;
  int index;
  std::string candidate;
  Arguments arguments;
};
std::vector<Bound> bound_launches(const Chain& chain, const Problem& problem, Buffers buffers,
                                  std::byte* workspace, const DeviceClass& device,
                                  const TensorMapEncoder& encode) {
  std::vector<Geometry> geometries;
  for (const Candidate& it : chain) {
    geometries.push_back(it.variant->geometry(problem, it.configuration, device));
  }
  const auto layout = runtime::workspace_layout(problem, chain, geometries).value();
  const auto at = [&](int64_t offset) { return offset < 0 ? nullptr : workspace + offset; };
  buffers.q8 = reinterpret_cast<uint8_t*>(at(layout.q8));
  buffers.partial_o = at(layout.partial_o);
  buffers.partial_lse = reinterpret_cast<float*>(at(layout.partial_lse));
  buffers.n_splits = reinterpret_cast<int32_t*>(at(layout.n_splits));
  buffers.o = reinterpret_cast<uint16_t*>(at(layout.o));
  buffers.split_capacity = layout.partials.split_capacity;
  buffers.partial_type = layout.partials.partial_type;
  std::vector<Bound> bound;
  for (size_t i = 0; i < chain.size(); ++i) {
    const Candidate& it = chain[i];
    for (size_t n = 0; n < geometries[i].launches.size(); ++n) {
      const int index = static_cast<int>(n);
      bound.push_back({it.variant, geometries[i].launches[n], index, key(it),
                       it.variant->bind(problem, it.configuration, buffers,
                                        at(layout.candidates[i]), encode, index)});
    }
  }
  return bound;
}

Buffers as_buffers(const muse_attention_buffers& given) {
  Buffers buffers;
  buffers.qkv = static_cast<const uint16_t*>(given.qkv);
  buffers.positions = given.positions;
  buffers.cache_loc = given.cache_loc;
  buffers.seq_lens = given.seq_lens;
  buffers.cache_seqlens = given.cache_seqlens;
  buffers.cu_seqlens_q = given.cu_seqlens_q;
  buffers.page_table = given.page_table;
  buffers.k_scale = given.k_scale;
  buffers.v_scale = given.v_scale;
  buffers.cos_sin = given.cos_sin;
  buffers.k_cache = static_cast<uint8_t*>(given.k_cache);
  buffers.v_cache = static_cast<uint8_t*>(given.v_cache);
  buffers.out = static_cast<uint16_t*>(given.out);
  return buffers;
}

void plan_of(benchmark::State& state, const muse_attention_problem& problem, int64_t context) {
  for (auto _ : state) {
    AttentionPlan plan;
    if (!plan.create(problem, context)) state.SkipWithError(muse_attention_last_error());
    benchmark::DoNotOptimize(plan);
  }
}

/// A step of one token and one key, so that little but the calls is timed.
void run_on_host(benchmark::State& state) {
  runtime::Served served(fakes::uniform_shape(1, 1, "l1", "h1x1_d64_ps16"), 1);
  const Chain chain = Registry::global().parse_chain(runtime::kBasePipeline).value();
  const std::vector<Bound> bound =
      bound_launches(chain, served.step.problem, as_buffers(served.buffers()),
                     served.workspace->get(), host_device_class(), {});
  const muse_attention_buffers buffers = served.buffers();
  beside_bare(state, {.run =
                          [&] {
                            require_ok(muse_attention_run(served.plan.get(), &buffers,
                                                          served.workspace->get(),
                                                          served.plan.workspace_bytes(), nullptr));
                          },
                      .bare =
                          [&] {
                            for (const Bound& it : bound) {
                              it.variant->host_entry(it.arguments, it.index);
                            }
                          },
                      .wait = [] {}});
}

#if defined(MUSE_HAS_CUDA)

/// One launch, ready to go.
struct BareLaunch {
  const void* kernel;
  LaunchConfig config;
  const Arguments* arguments;
};
std::unique_ptr<BareLaunch> bare_launch(const Bound& it, bool programmatic) {
  const void* function = nullptr;
  for (int i = 0; i < runtime::kKernelCount; ++i) {
    const runtime::Kernel& kernel = runtime::kKernels[i];
    if (it.candidate == kernel.candidate && it.launch.entry == kernel.entry) {
      function = kernel.function;
    }
  }
  if (function == nullptr) throw std::runtime_error(it.candidate + " is not compiled ahead");
  return std::unique_ptr<BareLaunch>(
      new BareLaunch{function, {it.launch, programmatic}, &it.arguments});
}

void run_on_gpu(benchmark::State& state, size_t number) {
  std::string reason;
  const std::string shape = fakes::uniform_shape(int64_t{1} << number, 512);
  const auto step = reference::make_step(shape, int64_t{1} << 28, 1, reason);
  if (!step) return state.SkipWithError(reason.c_str());
  const aot::GpuStep data(*step);
  const aot::Stream stream;
  AttentionPlan plan;
  aot::require(plan.create(fakes::problem_of(step->problem), 512));
  const size_t bytes = plan.workspace_bytes();
  const aot::Block workspace(bytes);
  aot::require(plan.init_workspace(workspace.as<void>(), bytes, stream.get()));
  const muse_attention_buffers buffers = data.buffers();

  const Chain chain =
      Registry::global().parse_chain(aot::GpuTable::shared().keys()[number]).value();
  const std::vector<Bound> bound =
      bound_launches(chain, step->problem, as_buffers(buffers), workspace.as<std::byte>(),
                     cuda_device_class(0).value(), runtime::cuda_target().encoder());
  std::vector<std::unique_ptr<BareLaunch>> bare;
  for (const Bound& it : bound) {
    bare.push_back(bare_launch(it, chain.pdl && it.launch.pdl && !bare.empty()));
  }
  beside_bare(state, {.run =
                          [&] {
                            require_ok(muse_attention_run(
                                plan.get(), &buffers, workspace.as<void>(), bytes, stream.get()));
                          },
                      .bare =
                          [&] {
                            for (const auto& it : bare) {
                              const cudaLaunchConfig_t config = it->config.on(stream.get());
                              void* arguments[] = {const_cast<void*>(it->arguments->data())};
                              aot::require(cudaLaunchKernelExC(&config, it->kernel, arguments));
                            }
                          },
                      .wait = [&] { aot::require(cudaStreamSynchronize(stream.get())); }});
}

/// Whether a GPU is here that the kernels are compiled for: its table is linked then.
bool has_gpu() {
  static const bool has = [] {
    const auto device = cuda_device_class(0);
    return device && device->cc == 90;
  }();
  return has;
}

#endif

}  // namespace

void register_runtime() {
#if defined(MUSE_HAS_CUDA)
  if (has_gpu()) {
    for (size_t i = 0; i < aot::GpuTable::shared().keys().size(); ++i) {
      const std::string name = "runtime/run/" + aot::GpuTable::shared().keys()[i];
      benchmark::RegisterBenchmark(name.c_str(),
                                   [i](benchmark::State& state) { run_on_gpu(state, i); })
          ->UseManualTime()
          ->Iterations(200);
    }
    const Problem problem{.page_size = 16, .max_context = 4096};
    benchmark::RegisterBenchmark("runtime/plan/cuda", [problem](benchmark::State& state) {
      plan_of(state, fakes::problem_of(problem), 512);
    });
    return;
  }
#endif
  benchmark::RegisterBenchmark("runtime/run/host", run_on_host)->UseManualTime();
  const Problem problem{.page_size = 16, .max_context = 4096};
  benchmark::RegisterBenchmark("runtime/plan/host", [problem](benchmark::State& state) {
    plan_of(state, fakes::problem_of(problem), runtime::kContext);
  });
}

}  // namespace muse::bench

namespace muse::runtime {

const LinkedTable& linked_table() {
#if defined(MUSE_HAS_CUDA)
  if (bench::has_gpu()) return aot::GpuTable::shared().linked;
#endif
  static const SmallTable table;
  return table.linked;
}

}  // namespace muse::runtime
