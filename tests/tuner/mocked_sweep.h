// SPDX-License-Identifier: Apache-2.0
// Whole sweeps of the project's own CUDA variants on an H200 that only a script knows: what the
// tests of measuring share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/db/support.h"
#include "tests/fakes/mock_measurer.h"
#include "tuner/kernels.h"
#include "tuner/sweep.h"
#include "variants/registry.h"

namespace muse::tuner {

/// Where the times of a script come from.
using ScriptTimes = std::map<std::string, double>;  ///< candidate key -> ns

/// A chain takes what its candidates take; `other_ns` for each that is not listed.
inline std::function<double(const fakes::Turn&)> times_of(ScriptTimes times,
                                                          double other_ns = 30'000) {
  return [times = std::move(times), other_ns](const fakes::Turn& turn) {
    double sum = 0;
    for (size_t at = 0; at < turn.chain.size();) {
      const size_t end = std::min(turn.chain.find(" + ", at), turn.chain.size());
      const std::string part = turn.chain.substr(at, end - at);
      at = end + 3;
      if (part == "pdl") continue;
      const auto known = times.find(part);
      sum += known == times.end() ? other_ns : known->second;
    }
    return sum;
  };
}

inline Hello h200() {
  DeviceClass device = imagined_device(90);
  device.model = "NVIDIA H200";
  device.driver_version = 13000;
  return {.device_class = device,
          .device_instance = {.kind = "cuda",
                              .uuid = "GPU-1",
                              .name = "NVIDIA H200",
                              .driver = "580.65.06",
                              .clock_policy = "free"},
          .step_ns = 32,
          .limits = {},
          .protocol = "mock: cupti",
          .toolkit = "nvrtc 13.0"};
}

/// The heads and tiles of attention/mma under `splits`: 4 candidates for each, of one span where
/// all splits are above 1.
inline std::string attentions(const std::string& splits) {
  return "variants: {include: [attention/mma], tunables: {attention/mma: {tile_kv: [64], warps: "
         "[2, 4, 8], heads_per_cta: [1, 2], partial_bf16: [0], cluster: [1], ticket: [0], gate: "
         "[0], "
         "splits: [" +
         splits + "]}}}\n";
}
inline constexpr const char* kTwelve = "8, 32, 64";

/// One sweep.
struct Settings {
  std::string config = attentions(kTwelve);
  std::string shapes =
      "  - {batch: 2, q_len: 1, window: 0, rope_theta: 0, context: 4096, pool_bytes: 1MiB}\n";
  Filter filter{.stage = Stage::kAttention};
  SweepOptions options;
  std::string command = "sweep";
  std::string database = "a.db";
  Hello hello = h200();
  std::string timer = "cupti";
};

/// What came of it.
struct Swept {
  SweepResult result;
  db::Id run = 0;
  bool resumed = false;
  std::vector<std::string> candidates;  ///< planned, by key

  /// What was decided about a span; a test's own failure where nothing was.
  const Winner& winner(const std::string& span, const std::string& regime = "cold") const {
    static const Winner none;
    for (const Winner& w : result.winners) {
      if (w.span == span && w.regime == regime) return w;
    }
    ADD_FAILURE() << "nothing decided about " << span;
    return none;
  }
};

class MockedSweep : public ::testing::Test {
 protected:
  static Spec spec(const Settings& settings) {
    auto parsed = parse_spec("schema: 1\nshapes:\n" + settings.shapes + settings.config, "c.yaml",
                             Registry::global());
    if (parsed) return *std::move(parsed);
    for (const Diagnostic& diagnostic : parsed.error()) ADD_FAILURE() << diagnostic.text();
    return {};
  }
  static Plan plan(const Settings& settings, const Spec& spec) {
    auto made =
        make_plan(spec, Registry::global(), settings.hello.device_class, settings.filter, {});
    if (made) return *std::move(made);
    ADD_FAILURE() << made.error();
    return {};
  }
  static std::vector<std::string> planned(const Settings& settings = {}) {
    const Spec config = spec(settings);
    std::vector<std::string> keys;
    for (const PlanItem& item : plan(settings, config).items) {
      if (item.action == Action::kMeasure) keys.push_back(key(item.candidate));
    }
    return keys;
  }

  Swept sweep(fakes::MockMeasurer& measurer, const Settings& settings = {}) {
    const Spec config = spec(settings);
    const Plan made = plan(settings, config);
    db::Store store = db::Store::open(folder_ / settings.database, db::Open::kCreate);
    Records records(store, config, settings.hello,
                    {.command = settings.command,
                     .timer = settings.timer,
                     .seed = settings.options.seed,
                     .base = key(made.base)});
    ProgressLine silent(false);
    SweepOptions options = settings.options;
    options.stop_signal = &measurer.stop;
    Swept swept{
        .result = tuner::sweep(made, config, records, measurer, settings.hello, options, silent),
        .run = records.run(),
        .resumed = records.resumed(),
        .candidates = {}};
    for (const PlanItem& item : made.items) swept.candidates.push_back(key(item.candidate));
    return swept;
  }
  Swept sweep(fakes::Script script, const Settings& settings = {}) {
    fakes::MockMeasurer measurer(std::move(script));
    return sweep(measurer, settings);
  }

  db::Store open(const std::string& database = "a.db") const {
    return db::Store::open(folder_ / database, db::Open::kRead);
  }
  /// The only trial of a candidate or chain.
  db::Store::RunTrial trial(const db::Store& store, const std::string& chain,
                            db::Id run = 0) const {
    for (const auto& one : store.run_trials(run == 0 ? store.last_run()->id : run)) {
      if (one.candidate.key == chain) return one;
    }
    ADD_FAILURE() << "no trial of " << chain;
    return {};
  }
  static std::vector<std::string> ties(const db::SelectionRow& row) {
    return nlohmann::json::parse(row.tie_set).get<std::vector<std::string>>();
  }
  static db::SelectionRow selection(const db::Store& store, db::Id run, const std::string& span) {
    for (const db::SelectionRow& row : store.selections(run)) {
      if (row.span == span) return row;
    }
    ADD_FAILURE() << "no selection of " << span;
    return {};
  }
  /// Why rounds were rejected, and how often; of all races of a run.
  static std::map<std::string, int> rejections(const db::Store& store, db::Id run) {
    std::map<std::string, int> found;
    for (const db::RaceRow& race : store.races(run)) {
      for (const db::RoundRow& round : store.rounds(race.id)) {
        if (!round.rejected.empty()) ++found[round.rejected];
      }
    }
    return found;
  }
  /// Makes the last run look like one whose process has gone, so that the next sweep goes on.
  void orphan(const std::string& database = "a.db") {
    db::Store store = db::Store::open(folder_ / database, db::Open::kWrite);
    const db::RunRow run = *store.last_run();
    store.resume_run(run.id, R"({"pid": 1, "pid_start": "never"})");
    store.finish_run(run.id, run.status, run.ended);
  }

  db::TempFolder folder_;
};

}  // namespace muse::tuner
