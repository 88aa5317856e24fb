// SPDX-License-Identifier: Apache-2.0
// Chosen pipelines and the base, timed as published figures of whole pipelines are.
#include <benchmark/benchmark.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "db/store.h"
#include "tests/bench/bench.h"
#include "variants/registry.h"

#ifdef MUSE_HAS_CUDA
#include "tests/bench/graph_timer.h"
#endif

namespace muse::bench {

#ifdef MUSE_HAS_CUDA
namespace {

/// One iteration that lasts as long as the median; the spread stands beside it.
void report(benchmark::State& state, const profiler::Timing& timing) {
  for (auto _ : state) state.SetIterationTime(timing.median_ns / 1e9);
  state.counters["low_us"] = timing.low_ns / 1000;
  state.counters["high_us"] = timing.high_ns / 1000;
  state.counters["samples"] = timing.samples;
  if (timing.samples == 0) state.SkipWithError(timing.why.c_str());
}

void add(const std::string& name, const std::function<profiler::Timing()>& time,
         const std::string& label = "") {
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) {
                                 report(state, time());
                                 state.SetLabel(label);
                               })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

Chain chain_of(const std::string& text) {
  auto chain = Registry::global().parse_chain(text);
  if (!chain) throw std::runtime_error(chain.error());
  return *std::move(chain);
}

}  // namespace

void register_pipelines(const std::string& database, const std::string& cache) {
  const db::Store store = db::Store::open(database, db::Open::kRead);
  const auto run = store.last_run();
  if (!run) throw std::runtime_error(database + ": no run in it");
  const auto timer = std::make_shared<GraphTimer>(cache);
  add("null_kernel", [=] { return timer->null_kernel(); });
  add("read_512MiB", [=] { return timer->read_512mib(); });
  for (const db::SelectionRow& selection : store.selections(run->id)) {
    if (selection.span != name(kWholeStep)) continue;
    const std::string problem = store.problem(selection.problem_id).key;
    const auto shape = parse_shape(problem);
    if (!shape) throw std::runtime_error(problem + ": " + shape.error());
    const std::string chosen =
        store.candidate(store.trial(selection.trial_id).key.candidate_id).key;
    for (const auto& [kind, text] : {std::pair("base", run->base), {"chosen", chosen}}) {
      const Chain chain = chain_of(text);
      add(
          kind + ("/" + problem), [=] { return timer->time(chain, *shape); }, text);
    }
  }
}
#else
void register_pipelines(const std::string&, const std::string&) {
  throw std::runtime_error("--pipelines: this build has no CUDA target");
}
#endif

}  // namespace muse::bench
