// SPDX-License-Identifier: Apache-2.0
// What a race on a GPU must not fall for: names, places, lines that stay in the cache, output that
// is there already, first launches that take longer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
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
#include "tuner/plan.h"
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

constexpr double kLimitS = 240;  ///< that of a hang of ours
const std::string kShapes =
    "schema: 1\n"
    "defaults: {pool_bytes: 64MiB}\n"
    "shapes: [{batch: 256, q_len: 4, window: 16, rope_theta: 10000, context: 64}]\n";

std::string config(const std::string& names, const std::string& tricks) {
  return kShapes +
         "base: [prepare/fused, attention/mma, combine/separate, gate/separate]\n"
         "variants:\n"
         "  include: [gate/separate, gate/fake_trick]\n"
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
    ASSERT_TRUE(result.exit_code == 0 || result.exit_code == 5) << result.err;
  }
  db::Store store() const { return db::Store::open(folder_ / "a.db", db::Open::kRead); }

  fakes::TemporaryFolder folder_, cache_;
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
  const std::vector<db::SelectionRow> selections = db.selections(run);
  ASSERT_EQ(selections.size(), 1U);
  const auto ties = nlohmann::json::parse(selections[0].tie_set).get<std::set<std::string>>();
  // The eight that reach the final decide; whoever left before did so by an interval of ten percent
  // and more, which one kernel does not lie behind itself.
  size_t tied = 0;
  for (const auto& [trial, name] : names) tied += ties.contains(name);
  EXPECT_GE(tied, std::min<size_t>(7, names.size())) << selections[0].tie_set;

  std::vector<std::pair<double, double>> points;  // place, ns off the round's median
  std::vector<double> medians;
  for (const db::RaceRow& race : db.races(run)) {
    for (const db::RoundRow& round : db.rounds(race.id)) {
      if (!round.rejected.empty()) continue;
      std::map<db::Id, double> ns;
      for (const db::SampleRow& sample : round.samples) {
        if (names.contains(sample.trial_id)) ns[sample.trial_id] = sample.ns.at(0);
      }
      std::vector<double> all;
      for (const auto& [trial, value] : ns) {
        if (std::isfinite(value)) all.push_back(value);
      }
      if (all.size() < 2) continue;
      medians.push_back(profiler::median(all));
      for (size_t place = 0; place < round.order.size(); ++place) {
        const auto found = ns.find(round.order[place]);
        if (found == ns.end() || !std::isfinite(found->second)) continue;
        points.emplace_back(static_cast<double>(place), found->second - medians.back());
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
  ASSERT_TRUE(honest && slow);
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

// The card is real, what is said of its clock is not: three readings of half the clock.
TEST_F(OnADevice, RoundsOfAThrottledClockAreTakenAgain) {
  const std::string uuid =
      tuner::make_cuda_backend({.timer = profiler::Timer::kEvents})->device_instance().uuid;
  const char* path = std::getenv("LD_LIBRARY_PATH");
  ASSERT_NO_FATAL_FAILURE(
      sweep("0, 1, 2, 3", "0",
            {std::string("LD_LIBRARY_PATH=" MUSE_BINARY_DIR "/stubs/nvml:") + (path ? path : ""),
             "MUSE_STUB_NVML_UUID=" + uuid, "MUSE_STUB_NVML_REASONS=0x40", "MUSE_STUB_NVML_FROM=4",
             "MUSE_STUB_NVML_UNTIL=7"}));
  const db::Store db = store();
  const db::Id run = db.last_run()->id;
  int throttled = 0;
  for (const db::RaceRow& race : db.races(run)) {
    for (const db::RoundRow& round : db.rounds(race.id)) {
      if (round.number < 0) continue;
      EXPECT_EQ(round.sm_mhz < 1000, round.reason_bits == 0x40);
      if (round.reason_bits != 0x40) continue;
      ++throttled;
      EXPECT_NE(round.rejected.find("thermal"), std::string::npos) << round.rejected;
    }
  }
  EXPECT_GT(throttled, 0);
  for (const auto& t : db.run_trials(run)) EXPECT_NE(t.trial.state, "degraded") << t.candidate.key;
  ASSERT_EQ(db.selections(run).size(), 1U);
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
  Chain base = tuner::default_base(TargetKind::kCuda, Registry::global()).value();
  base.pop_back();
  const auto outcome_of = [&](Trick which) {
    const std::string chain = key(base) + " + " + trick(0, which);
    const auto timed = worker.rounds({.shape = shape,
                                      .seed = 1,
                                      .regime = "cold",
                                      .entrants = {{chain, ""}},
                                      .orders = {{0, 0, 0}}});
    EXPECT_TRUE(timed) << timed.error().reason;
    const auto report =
        worker.revalidate({.shape = shape, .seed = 1, .entrant = {chain, ""}, .other_seed = 2});
    EXPECT_TRUE(report) << report.error().reason;
    return report ? report->outcome : tuner::Outcome::kCrashed;
  };
  EXPECT_EQ(outcome_of(kHonest), tuner::Outcome::kOk);
  EXPECT_EQ(outcome_of(kKeepsOutput), tuner::Outcome::kIncorrect);
}

#if defined(MUSE_HAS_CUDA)

std::string symbol_of(const void* entry) {
  const char* name = nullptr;
  profiler::check_cuda(cudaFuncGetName(&name, entry), "cudaFuncGetName");
  return name;
}

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
  Flush plain() {
    return [&] { cache_flush_->flush(); };
  }
  /// Its lines push out those that were to stay, and are ordinary ones then.
  Flush keeping_and_demoting() {
    return [&] {
      const int64_t bytes = cache_flush_->bytes();
      profiler::launch_hinted_read(stream_->get(), other_->data(), bytes,
                                   other_->as<uint32_t>(bytes), true);
      profiler::launch_demote(stream_->get(), other_->data(), bytes);
    };
  }
  Flush demoting_the_data() {
    return [&] {
      profiler::launch_demote(stream_->get(), data_->data(), bytes_);
      cache_flush_->flush();
    };
  }
  int64_t bytes_ = 0;
  std::optional<profiler::Stream> stream_;
  std::unique_ptr<profiler::Sampler> sampler_;
  std::optional<profiler::DeviceCache> cache_flush_;
  std::optional<profiler::DeviceMemory> data_, other_;
};

TEST_F(Keeping, LinesThatAreToStayDoNotOutliveTheFlush) {
  const double cold = read_ns(false, plain()), alone = read_ns(true, plain(), false);
  const double warm = read_ns(false, [] {});
  const std::vector<std::pair<std::string, Flush>> flushes{
      {"the flush", plain()},
      {"twice the flush", [&] { plain()(), plain()(); }},
      {"a flush of lines that stay, made ordinary", keeping_and_demoting()},
      {"the data made ordinary, the flush", demoting_the_data()}};
  std::cout << bytes_ << " bytes: cold " << cold << " ns, warm " << warm
            << " ns; to stay, each alone after a reset: " << alone << " ns\n";
  std::map<std::string, double> ratio;
  for (const auto& [name, flush] : flushes) {
    const double keeps = read_ns(true, flush), twin = read_ns(false, flush);
    ratio[name] = keeps / twin;
    std::cout << "after " << name << ": to stay " << keeps << " ns, twin " << twin << " ns, ratio "
              << ratio[name] << "\n";
  }
  EXPECT_LT(warm, 0.9 * cold) << "the cache makes no difference here: nothing is shown";
  EXPECT_GE(ratio["the flush"], 0.97);
}

#endif  // MUSE_HAS_CUDA

}  // namespace
}  // namespace muse
