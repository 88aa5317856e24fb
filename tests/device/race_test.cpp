// SPDX-License-Identifier: Apache-2.0
// What a race on a GPU must not fall for: names, places, lines that stay in the cache, output that
// is there already, first launches that take longer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "db/store.h"
#include "profiler/statistics.h"
#include "tests/fakes/command.h"
#include "tests/fakes/misbehaving/variants/gate/fake_trick.cuh"
#include "tuner/backend.h"
#include "tuner/compile.h"
#include "tuner/spec.h"
#include "tuner/supervisor.h"
#include "variants/registry.h"

#if defined(MUSE_HAS_CUDA)
#include <cuda_runtime_api.h>

#include "profiler/cupti_sampler.h"
#include "profiler/device_cache.h"
#include "profiler/device_error.h"
#include "profiler/device_facts.h"
#include "profiler/device_kernels.h"
#include "profiler/replay.h"
#include "profiler/stream.h"
#include "tests/device/keeping_kernels.h"
#endif

namespace muse {
namespace {

using fakes::CommandResult;
using fakes::write_file;
using gate_fake_trick::kHonest;
using gate_fake_trick::kKeepsOutput;
using gate_fake_trick::kNames;
using gate_fake_trick::kSlowStart;
using gate_fake_trick::Trick;

constexpr double kLimitS = 240;      ///< that of a hang of ours
constexpr double kStubPowerW = 123;  ///< what the stub of NVML says
const std::string kShapes =
    "schema: 1\n"
    "defaults: {pool_bytes: 64MiB}\n"
    "shapes: [{batch: 256, q_len: 4, window: 16, rope_theta: 10000, context: 64}]\n";

/// What runs before the gate.
const std::string kFeeder = "prepare/fused + attention/mma + combine/separate";

/// The base's gate is the honest one of the first name.
std::string config(const std::string& names, const std::string& tricks) {
  return kShapes +
         "base: [prepare/fused, attention/mma, combine/separate, gate/fake_trick]\n"
         "variants:\n"
         "  include: [gate/fake_trick]\n"
         "  tunables: {gate/fake_trick: {name: [" +
         names + "], trick: [" + tricks + "]}}\n";
}

std::string trick(int name, Trick trick) {
  return "gate/fake_trick:name=" + std::to_string(name) + ",trick=" + std::to_string(trick);
}

class OnADevice : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      tuner::make_cuda_backend({.timer = profiler::Timer::kEvents});
    } catch (const tuner::TargetError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  /// The gates of the config, raced to the end by the real worker.
  void sweep(const std::string& names, const std::string& tricks,
             const std::vector<std::string>& environment = {}) {
    write_file(folder_ / "a.yaml", config(names, tricks));
    const CommandResult result = fakes::run_command(
        {MUSE_TUNE_FAKES, "sweep", "a.yaml", "--target", "cuda:0", "--stage", "gate", "--db",
         "a.db", "--cache", cache_.path(), "--timer", "auto", "--json", "--quiet", "--any-build"},
        {.folder = folder_.path(), .environment = environment, .limit_s = kLimitS});
    said_ = result.err;
    ASSERT_TRUE(result.exit_code == 0 || result.exit_code == 5) << said_;
  }
  db::Store store() const { return db::Store::open(folder_ / "a.db", db::Open::kRead); }
  /// Of the gates; the whole step, of which the base is the only pipeline, has one of its own.
  static std::vector<db::SelectionRow> gate_selections(const db::Store& db, db::Id run) {
    std::vector<db::SelectionRow> found;
    for (const db::SelectionRow& row : db.selections(run)) {
      if (row.span == name(Span{Stage::kGate, Stage::kGate})) found.push_back(row);
    }
    return found;
  }

  fakes::TemporaryFolder folder_, cache_;
  std::string said_;  ///< by the last sweep
};

/// The line that fits best, ns a place, and its standard error.
struct Trend {
  double slope = 0, error = 0;
};
Trend trend_of(const std::vector<std::pair<double, double>>& points) {
  const auto count = static_cast<double>(points.size());
  double x = 0, y = 0, xx = 0, xy = 0, rest = 0;
  for (const auto& [px, py] : points) x += px / count, y += py / count;
  for (const auto& [px, py] : points) xx += (px - x) * (px - x), xy += (px - x) * (py - y);
  const double slope = xy / xx;
  for (const auto& [px, py] : points) rest += std::pow(py - y - slope * (px - x), 2);
  return {slope, std::sqrt(rest / (count - 2) / xx)};
}

TEST_F(OnADevice, OneKernelUnderTwelveNamesIsOneTieSetWithoutATrendOverThePlaces) {
  ASSERT_NO_FATAL_FAILURE(sweep("0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11", "0"));
  const db::Store db = store();
  const db::Id run = db.last_run()->id;
  std::map<db::Id, std::string> names;
  for (const auto& t : db.run_trials(run)) {
    if (t.candidate.key.starts_with("gate/fake_trick")) names[t.trial.id] = t.candidate.key;
  }
  ASSERT_EQ(names.size(), size_t{kNames});
  const std::vector<db::SelectionRow> selections = gate_selections(db, run);
  ASSERT_EQ(selections.size(), 1U) << said_;
  const auto ties = nlohmann::json::parse(selections[0].tie_set).get<std::set<std::string>>();
  // The eight that reach the final decide; whoever left before lay surely two percent and more
  // behind, which one kernel does not lie behind itself.
  size_t tied = 0;
  for (const auto& [trial, name] : names) tied += ties.contains(name);
  EXPECT_GE(tied, std::min<size_t>(7, names.size())) << selections[0].tie_set;

  std::vector<std::pair<double, double>> points;  // place, ns off the round's median
  std::vector<double> medians;
  for (const db::RaceRow& race : db.races(run)) {
    for (const db::RoundRow& round : db.rounds(race.id)) {
      if (!round.rejected.empty()) continue;
      std::map<db::Id, std::vector<double>> ns;  // of each, in the order of its places
      std::vector<double> all;
      for (const db::SampleRow& sample : round.samples) {
        if (!names.contains(sample.trial_id)) continue;
        ns[sample.trial_id] = sample.ns;
        std::copy_if(sample.ns.begin(), sample.ns.end(), std::back_inserter(all),
                     [](double value) { return std::isfinite(value); });
      }
      if (all.size() < 2) continue;
      medians.push_back(profiler::median(all));
      std::map<db::Id, size_t> turns;
      for (size_t place = 0; place < round.order.size(); ++place) {
        const db::Id trial = round.order[place];
        if (!ns.contains(trial)) continue;
        const double value = ns[trial].at(turns[trial]++);
        if (!std::isfinite(value)) continue;
        points.emplace_back(static_cast<double>(place), value - medians.back());
      }
    }
  }
  ASSERT_GT(points.size(), 100U);
  const Trend trend = trend_of(points);
  const double median = profiler::median(medians);
  std::cout << "trend " << trend.slope << " +- " << trend.error << " ns a place, of " << median
            << " ns\n";
  // Neither sure nor, over all places, as much as half a percent.
  EXPECT_TRUE(std::abs(trend.slope) < 3 * trend.error ||
              std::abs(trend.slope) * kNames < 0.005 * median);
}

TEST_F(OnADevice, ASlowFirstLaunchIsNotInTheMedian) {
  ASSERT_NO_FATAL_FAILURE(sweep("0", "0, 2"));
  std::map<std::string, std::optional<double>> medians;
  const db::Store db = store();
  for (const auto& t : db.run_trials(db.last_run()->id)) medians[t.candidate.key] = t.median_ns;
  const auto honest = medians[trick(0, kHonest)], slow = medians[trick(0, kSlowStart)];
  ASSERT_TRUE(honest && slow) << said_;
  // It counts its launches besides, which costs an atomic of one thread.
  EXPECT_NEAR(*slow, *honest, std::max(0.05 * *honest, 1000.0));
}

// Whether code is loaded at its first launch or before, no time is of it.
TEST_F(OnADevice, NoWayToLoadCodeShowsInTheTimes) {
  std::vector<double> medians;
  for (const std::string mode : {"", "LAZY", "EAGER"}) {
    std::filesystem::remove(folder_ / "a.db");
    std::vector<std::string> environment;
    if (!mode.empty()) environment.push_back("CUDA_MODULE_LOADING=" + mode);
    ASSERT_NO_FATAL_FAILURE(sweep("0, 1", "0", environment));
    const db::Store db = store();
    for (const auto& t : db.run_trials(db.last_run()->id)) {
      if (!t.candidate.key.starts_with("gate/fake_trick")) continue;
      ASSERT_TRUE(t.median_ns) << mode << ": " << t.trial.reason;
      medians.push_back(*t.median_ns);
    }
  }
  ASSERT_EQ(medians.size(), 6U);
  for (const double median : medians) EXPECT_NEAR(median, medians[0], 0.05 * medians[0]);
}

// The card is real, what is said of its clock is not: three readings of half the clock. One reading
// is of a batch; the race asks for a batch at least before each decision, after 2, 4, 8, ...
// rounds, and takes in no more than two bad rounds of each, fewer than it takes to keep them.
TEST_F(OnADevice, RoundsOfAThrottledClockAreTakenAgain) {
  const std::string uuid =
      tuner::make_cuda_backend({.timer = profiler::Timer::kEvents})->device_instance().uuid;
  const char* path = std::getenv("LD_LIBRARY_PATH");
  const std::string stub = MUSE_BINARY_DIR "/stubs/nvml";
  ASSERT_TRUE(std::filesystem::exists(stub + "/libnvidia-ml.so.1")) << stub << " is not built";
  ASSERT_NO_FATAL_FAILURE(
      sweep("0, 1, 2, 3", "0",
            {"LD_LIBRARY_PATH=" + stub + ":" + (path ? path : ""), "MUSE_STUB_NVML_UUID=" + uuid,
             "MUSE_STUB_NVML_REASONS=0x40", "MUSE_STUB_NVML_FROM=4", "MUSE_STUB_NVML_UNTIL=7"}));
  const db::Store db = store();
  const db::Id run = db.last_run()->id;
  int throttled = 0;
  for (const db::RaceRow& race : db.races(run)) {
    for (const db::RoundRow& round : db.rounds(race.id)) {
      if (round.number < 0) continue;
      ASSERT_EQ(round.power_w, kStubPowerW) << "another NVML than the stub was asked";
      EXPECT_EQ(round.sm_mhz < 1000, round.reason_bits == 0x40);
      if (round.reason_bits != 0x40) continue;
      ++throttled;
      EXPECT_NE(round.rejected.find("thermal"), std::string::npos) << round.rejected;
    }
  }
  EXPECT_GT(throttled, 0);
  for (const auto& t : db.run_trials(run)) EXPECT_NE(t.trial.state, "degraded") << t.candidate.key;
  ASSERT_EQ(gate_selections(db, run).size(), 1U) << said_;
}

TEST_F(OnADevice, WhoComputesOnlyWhatIsNotThereYetIsFoundOutOnOtherData) {
  ASSERT_NO_FATAL_FAILURE(sweep("0", "0, 1"));  // compiles them, too
  const auto spec = tuner::parse_spec(kShapes, "shapes.yaml", Registry::global());
  ASSERT_TRUE(spec);
  const std::string shape = key(spec->shapes.at(0).shape);
  const auto toolkit = tuner::compiler_toolkit(MUSE_TUNE_FAKES);
  ASSERT_TRUE(toolkit) << toolkit.error();
  tuner::Supervisor worker({.executable = MUSE_TUNE_FAKES,
                            .target = "cuda:0",
                            .timer = "events",
                            .cache = cache_.path(),
                            .toolkit = *toolkit});
  const auto feeder = Registry::global().parse_chain(kFeeder);
  ASSERT_TRUE(feeder) << feeder.error();
  const auto report_of = [&](Trick which) {
    const std::string chain = key(*feeder) + " + " + trick(0, which);
    const auto timed = worker.rounds({.shape = shape,
                                      .seed = 1,
                                      .regime = "cold",
                                      .entrants = {{chain, ""}},
                                      .orders = {{0, 0, 0}}});
    EXPECT_TRUE(timed) << timed.error().reason;
    if (timed) {
      EXPECT_EQ(timed->rounds.at(0).samples.at(0).reason, "");
    }
    const auto report =
        worker.revalidate({.shape = shape, .seed = 1, .entrant = {chain, ""}, .other_seed = 2});
    EXPECT_TRUE(report) << report.error().reason;
    return report.value_or(tuner::ValidationReport{});
  };
  const tuner::ValidationReport honest = report_of(kHonest), keeps = report_of(kKeepsOutput);
  EXPECT_EQ(honest.outcome, tuner::Outcome::kOk) << honest.reason;
  EXPECT_EQ(keeps.outcome, tuner::Outcome::kIncorrect) << keeps.reason;
}

#if defined(MUSE_HAS_CUDA)

std::string symbol_of(const void* entry) {
  const char* name = nullptr;
  profiler::check_cuda(cudaFuncGetName(&name, entry), "cudaFuncGetName");
  return name;
}

class Event {
 public:
  Event() { profiler::check_cuda(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A read of a sixth of the L2, with and without the wish that its lines stay, after the flush of
/// candidates and after others.
class Keeping : public OnADevice {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(OnADevice::SetUp());
    if (IsSkipped()) return;
    profiler::use_device(0);
    stream_.emplace();
    auto sampler = profiler::make_cupti_sampler(stream_->get());
    if (!sampler) GTEST_SKIP() << sampler.error().what;
    sampler_ = *std::move(sampler);
    cache_flush_.emplace(stream_->get());
    bytes_ = cache_flush_->bytes() / 12 / 128 * 128;
    data_.emplace(bytes_ + 128);
    profiler::launch_write(stream_->get(), data_->data(), bytes_ + 128);
    other_.emplace(cache_flush_->bytes() + 128);
    profiler::launch_write(stream_->get(), other_->data(), other_->bytes());
  }
  using Flush = std::function<void()>;
  /// Median of 64 reads; in a batch, or each alone after lines that stay were made ordinary.
  double read_ns(bool keep, const Flush& flush, bool in_a_batch = true) {
    const profiler::Work work{.before = flush,
                              .run =
                                  [&, keep] {
                                    profiler::launch_hinted_read(stream_->get(), data_->data(),
                                                                 bytes_,
                                                                 data_->as<uint32_t>(bytes_), keep);
                                  },
                              .kernels = {symbol_of(profiler::hinted_read_entry(keep))}};
    profiler::reset_persisting();
    std::vector<double> ns;
    for (int i = 0; i < (in_a_batch ? 1 : 64); ++i) {
      for (const profiler::Sample& sample :
           sampler_->take_all(std::vector(in_a_batch ? 64 : 1, work))) {
        if (sample.rejected.empty()) ns.push_back(sample.span_ns);
      }
      profiler::reset_persisting();
    }
    if (ns.empty()) throw std::runtime_error("no sample");
    return profiler::median(ns);
  }
  /// What the flush takes where the device has always work.
  double time_us(const Flush& flush) {
    constexpr int kFlushes = 64;
    flush();
    const Event begin, end;
    profiler::check_cuda(cudaEventRecord(begin.get(), stream_->get()), "cudaEventRecord");
    for (int i = 0; i < kFlushes; ++i) flush();
    profiler::check_cuda(cudaEventRecord(end.get(), stream_->get()), "cudaEventRecord");
    profiler::check_cuda(cudaEventSynchronize(end.get()), "cudaEventSynchronize");
    float ms = 0;
    profiler::check_cuda(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
    return 1e3 * ms / kFlushes;
  }
  Flush production() {
    return [&] { cache_flush_->flush(); };
  }
  /// A read of as much without a hint.
  Flush ordinary() {
    return [&] {
      const int64_t bytes = cache_flush_->bytes();
      profiler::launch_read(stream_->get(), other_->data(), bytes, other_->as<uint32_t>(bytes));
    };
  }
  Flush demoting_the_data() {
    return [&] {
      profiler::launch_demote(stream_->get(), data_->data(), bytes_);
      ordinary()();
    };
  }
  int64_t bytes_ = 0;
  std::optional<profiler::Stream> stream_;
  std::unique_ptr<profiler::Sampler> sampler_;
  std::optional<profiler::DeviceCache> cache_flush_;
  std::optional<profiler::DeviceMemory> data_, other_;
};

TEST_F(Keeping, LinesThatAreToStayDoNotOutliveTheFlush) {
  const double cold = read_ns(false, production()), alone = read_ns(true, production(), false);
  const double warm = read_ns(false, [] {});
  const std::vector<std::pair<std::string, Flush>> flushes{
      {"the flush", production()},
      {"an ordinary read", ordinary()},
      {"two ordinary reads", [&] { ordinary()(), ordinary()(); }},
      {"the data made ordinary, an ordinary read", demoting_the_data()}};
  std::cout << bytes_ << " bytes: cold " << cold << " ns, warm " << warm
            << " ns; to stay, each alone after a reset: " << alone << " ns\n";
  std::map<std::string, double> ratio;
  for (const auto& [name, flush] : flushes) {
    const double keeps = read_ns(true, flush), twin = read_ns(false, flush);
    ratio[name] = keeps / twin;
    std::cout << "after " << name << " of " << time_us(flush) << " us: to stay " << keeps
              << " ns, twin " << twin << " ns, ratio " << ratio[name] << "\n";
  }
  EXPECT_LT(warm, 0.9 * cold) << "the cache makes no difference here: nothing is shown";
  EXPECT_GE(ratio["the flush"], 0.97);
}

#endif  // MUSE_HAS_CUDA

}  // namespace
}  // namespace muse
