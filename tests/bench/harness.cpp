// SPDX-License-Identifier: Apache-2.0
// How fast the harness itself is: what it does per call, per round and per sweep.
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <filesystem>
#include <optional>
#include <stdexcept>
#include <vector>

#include "db/store.h"
#include "profiler/statistics.h"
#include "tests/bench/bench.h"
#include "tuner/plan.h"
#include "tuner/spec.h"

namespace muse::bench {
namespace {

namespace fs = std::filesystem;

/// A database in a folder of its own, with a race of `trials` entrants under way.
class RaceStore {
 public:
  explicit RaceStore(int trials) : folder_(make_folder()) {
    store_.emplace(db::Store::open(folder_ / "bench.db", db::Open::kCreate));
    store_->transaction([&] { fill(trials); });
  }
  RaceStore(const RaceStore&) = delete;
  RaceStore& operator=(const RaceStore&) = delete;
  ~RaceStore() {
    store_.reset();
    std::error_code ignored;  // a folder that is gone is what is wanted
    fs::remove_all(folder_, ignored);
  }

  void insert_round(int64_t number) {
    db::RoundRow round{.race_id = race_,
                       .number = number,
                       .order = trials_,
                       .rejected = {},
                       .at = kDate,
                       .samples = {}};
    for (const db::Id trial : trials_) {
      round.samples.push_back({.trial_id = trial, .ns = {1000.0 + static_cast<double>(number)}});
    }
    store_->transaction([&] { store_->insert(round); });
  }

 private:
  static constexpr const char* kDate = "2030-01-01T00:00:00Z";

  static fs::path make_folder() {
    std::string name = (fs::temp_directory_path() / "muse_bench_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder " + name);
    return name;
  }

  void fill(int trials) {
    db::DeviceRow device;
    device.kind = "host";
    device.uuid = "bench";
    db::RunRow run;
    run.device_id = store_->upsert(device);
    run.build_id = store_->upsert(db::BuildRow{});
    run.status = "running";
    run.started = kDate;
    run.environment = "{}";
    const db::Id run_id = store_->insert(run);
    const db::Id problem = store_->upsert(db::ProblemRow{.id = 0, .key = "bench", .fields = "{}"});
    for (int i = 0; i < trials; ++i) {
      db::CandidateRow candidate;
      candidate.key = "attention/bench:tile_kv=" + std::to_string(i);
      candidate.span = "attention";
      candidate.variant = "attention/bench";
      db::TrialKey key;
      key.device_id = run.device_id;
      key.candidate_id = store_->upsert(candidate);
      key.problem_id = problem;
      key.regime = "cold";
      trials_.push_back(store_->trial(key, run_id, false).id);
    }
    db::RaceRow race;
    race.run_id = run_id;
    race.problem_id = problem;
    race.span = "attention";
    race.regime = "cold";
    race.timer = "host";
    race.rules = "{}";
    race.status = "running";
    race_ = store_->insert(race);
  }

  fs::path folder_;
  std::optional<db::Store> store_;
  std::vector<db::Id> trials_;
  db::Id race_ = 0;
};

void round_insertion(benchmark::State& state) {
  RaceStore store(static_cast<int>(state.range(0)));
  int64_t number = 0;
  for (auto _ : state) store.insert_round(number++);
  state.SetItemsProcessed(number * state.range(0));
}

tuner::Spec load(const std::string& config) {
  auto spec = tuner::load_spec(config, Registry::global());
  if (!spec) throw std::runtime_error(spec.error().front().text());
  return *std::move(spec);
}

void config_parsing(benchmark::State& state, const std::string& config) {
  const tuner::Spec spec = load(config);
  for (auto _ : state) {
    benchmark::DoNotOptimize(tuner::parse_spec(spec.text, spec.path, Registry::global()));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * spec.text.size()));
}

void plan_expansion(benchmark::State& state, const std::string& config) {
  const tuner::Spec spec = load(config);
  const DeviceClass device = host_device_class();
  const tuner::Known none = [](const auto&...) { return std::nullopt; };
  size_t items = 0;
  for (auto _ : state) {
    const auto plan = tuner::make_plan(spec, Registry::global(), device, {}, none);
    if (!plan) throw std::runtime_error(plan.error());
    items = plan->items.size();
  }
  state.counters["items"] = static_cast<double>(items);
}

void bootstrap(benchmark::State& state) {
  profiler::SplitMix random(1);
  std::vector<double> a(static_cast<size_t>(state.range(0))), b(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = 1000 + 20 * random.uniform();
    b[i] = 1000 + 20 * random.uniform();
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(profiler::paired_median_interval(a, b, {}));
  }
}

}  // namespace

void register_harness(const std::string& source_dir) {
  const std::string config = source_dir + "/configs/h200.yaml";
  benchmark::RegisterBenchmark("round_insertion", round_insertion)
      ->Arg(12)
      ->Arg(64)
      ->UseRealTime()  // mostly the disk's
      ->Unit(benchmark::kMicrosecond);
  benchmark::RegisterBenchmark("config_parsing/h200", config_parsing, config)
      ->Unit(benchmark::kMicrosecond);
  benchmark::RegisterBenchmark("plan_expansion/h200", plan_expansion, config)
      ->Unit(benchmark::kMicrosecond);
  benchmark::RegisterBenchmark("bootstrap", bootstrap)
      ->Arg(32)
      ->Arg(64)
      ->Arg(256)
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace muse::bench
