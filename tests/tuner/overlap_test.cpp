// SPDX-License-Identifier: Apache-2.0
// What a device does not wait for: batches that follow each other within a request, and requests
// for the rest of a block while the answer before is stored.
#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <utility>

#include "tests/tuner/mocked_sweep.h"
#include "tuner/plan.h"
#include "tuner/session.h"

namespace muse::tuner {
namespace {

/// A device whose batches run when they are waited for; `log` tells in which order it is spoken to:
/// s(tart), w(ait), k (a look at the clock), c(ollect).
class SlowSampler final : public profiler::Sampler {
 public:
  explicit SlowSampler(std::string& log) : log_(log) {}
  profiler::Timer timer() const override { return profiler::Timer::kCupti; }
  double step_ns() const override { return 1; }
  std::string version() const override { return "slow"; }
  void start(std::vector<profiler::Work> works) override {
    if (refused.contains(starts++)) {
      throw TrialError(Outcome::kLaunchFailed, "no launch today");
    }
    log_ += 's';
    under_way_.push_back(works.size());
    batches.push_back(works.size());
  }
  void wait() override {
    log_ += 'w';
    ++ended;
  }
  std::vector<profiler::Sample> collect() override {
    log_ += 'c';
    std::vector<profiler::Sample> samples;
    for (const size_t count : std::exchange(under_way_, {})) {
      for (size_t i = 0; i < count; ++i) {
        samples.push_back({.span_ns = 100.0 + taken, .device_ns = 10, .rejected = {}});
        if (taken++ == broken) samples.back() = {.rejected = "its record is missing"};
      }
    }
    return samples;
  }

  std::set<int> refused;  ///< starts that fail
  int starts = 0, ended = 0;
  std::vector<size_t> batches;  ///< samples of each that was started
  int taken = 0, broken = -1;   ///< samples

 private:
  std::string& log_;
  std::vector<size_t> under_way_;
};

/// Counts how often it is run.
class CountedProgram final : public Program {
 public:
  CountedProgram(std::unique_ptr<Program> inner, int& runs)
      : inner_(std::move(inner)), runs_(runs) {}
  int launches() const override { return inner_->launches(); }
  void launch(int launch) override {
    if (launch == 0) ++runs_;
    inner_->launch(launch);
  }
  std::vector<std::string> kernels() const override { return inner_->kernels(); }

 private:
  std::unique_ptr<Program> inner_;
  int& runs_;
};

/// The host, save for its clocks.
class SlowBackend final : public Backend {
 public:
  TargetKind target() const override { return target_kind; }
  const DeviceClass& device_class() const override { return host_->device_class(); }
  const profiler::DeviceInstance& device_instance() const override {
    return host_->device_instance();
  }
  std::string toolkit() const override { return host_->toolkit(); }
  void* allocate(int64_t bytes) override { return host_->allocate(bytes); }
  void release(void* address) override { host_->release(address); }
  void upload(void* target, const void* host, int64_t bytes) override {
    host_->upload(target, host, bytes);
  }
  void download(void* host, const void* target, int64_t bytes) override {
    host_->download(host, target, bytes);
  }
  void put(std::span<const Put> puts) override { host_->put(puts); }
  std::optional<Difference> first_difference(std::span<const Compared> all) override {
    return host_->first_difference(all);
  }
  void synchronize() override {}
  std::unique_ptr<Program> bind(const Candidate& candidate, const Problem& problem,
                                const Buffers& buffers, void* workspace) override {
    return std::make_unique<CountedProgram>(host_->bind(candidate, problem, buffers, workspace),
                                            runs.emplace_back(0));
  }
  std::unique_ptr<Program> capture(const std::vector<Program*>&, bool, size_t) override {
    return nullptr;
  }
  std::optional<TargetTruth> attention_truth(const Problem&, const Buffers&) override {
    return std::nullopt;
  }
  std::optional<CombinedPartials> combined_partials(const Problem&, const Buffers&, bool) override {
    return std::nullopt;
  }
  profiler::Sampler& sampler() override { return sampler_; }
  void flush_caches() override {}
  /// The clock is as high as batches have ended before.
  profiler::ClockReading read_clock() override {
    log += 'k';
    return {.sm_mhz = static_cast<double>(sampler_.ended)};
  }
  DeviceLimits limits() override { return {}; }
  std::string protocol() const override { return "slow"; }

  TargetKind target_kind = TargetKind::kHost;
  std::deque<int> runs;  ///< of each program; those to be timed are not run
  std::string log;
  SlowSampler sampler_{log};

 private:
  std::unique_ptr<Backend> host_ = make_host_backend();
};

class Overlap : public ::testing::Test {
 protected:
  /// Rounds of two turns.
  RoundReply rounds(int count, int placements = 1) {
    Shape shape;
    shape.problem = {.batch = 2,
                     .q_len = 1,
                     .num_q_heads = 4,
                     .num_kv_heads = 2,
                     .page_size = 16,
                     .max_context = 32};
    shape.lengths.context = 24;
    shape.lengths.pool_bytes = 1 << 16;
    const std::string base = key(default_base(TargetKind::kHost, Registry::global()).value());
    const Reply reply = session_.rounds(
        {.shape = key(shape),
         .seed = 1,
         .regime = "warm",
         .entrants = {{base, ""}, {base, ""}},
         .orders = std::vector<std::vector<int>>(static_cast<size_t>(count), {0, 1}),
         .placements = placements});
    if (const auto* good = std::get_if<RoundReply>(&reply)) return *good;
    ADD_FAILURE() << std::get<Refusal>(reply).reason;
    return {};
  }
  Progress page_;
  Publisher publisher_{page_};
  SlowBackend device_;
  Session session_{device_, publisher_, Registry::global()};
};

TEST_F(Overlap, ABatchIsStartedBeforeTheOneBeforeIsWaitedFor) {
  const RoundReply reply = rounds(40);
  ASSERT_EQ(reply.rounds.size(), 40U);
  size_t started = 0, waited = 0;
  for (const char call : device_.log) {
    started += call == 's';
    if (call != 'w') continue;
    EXPECT_EQ(started - waited,
              started == device_.sampler_.batches.size() && waited + 1 == started ? 1U : 2U)
        << device_.log;
    ++waited;
  }
  EXPECT_EQ(waited, started);
  EXPECT_TRUE(device_.log.ends_with("wc")) << device_.log;
  double expected = 100;
  for (const RoundReply::Round& round : reply.rounds) {
    ASSERT_EQ(round.samples.size(), 2U);
    for (const RoundReply::One& one : round.samples) EXPECT_EQ(one.span_ns, expected++);
  }
  EXPECT_EQ(reply.device_ns, 800);
}

TEST_F(Overlap, EachBatchHasTheClockOfItsOwnTime) {
  const RoundReply reply = rounds(40);
  ASSERT_EQ(reply.rounds.size(), 40U);
  size_t round = 0;
  for (size_t batch = 0; batch < device_.sampler_.batches.size(); ++batch) {
    for (size_t i = 0; i < device_.sampler_.batches[batch] / 2; ++i) {
      EXPECT_EQ(reply.rounds.at(round++).clock.sm_mhz, static_cast<double>(batch));
    }
  }
  EXPECT_GT(device_.sampler_.batches.size(), 2U);
}

TEST_F(Overlap, ASampleWithoutARecordIsRejectedWhereItBelongs) {
  device_.sampler_.broken = 5;
  const RoundReply reply = rounds(40);
  for (int i = 0; i < 80; ++i) {
    const RoundReply::One& one = reply.rounds.at(i / 2).samples.at(i % 2);
    EXPECT_EQ(one.rejected, i == 5 ? "its record is missing" : "") << i;
  }
}

TEST_F(Overlap, WhoThrowsCostsNoneOfTheBatchesBefore) {
  device_.sampler_.refused = {2, 3, 5};
  const RoundReply first = rounds(40);
  ASSERT_EQ(first.rounds.size(), 2U) << "two batches of one round were under way";
  for (const RoundReply::Round& round : first.rounds) {
    for (const RoundReply::One& one : round.samples) EXPECT_EQ(one.outcome, "") << one.reason;
  }
  // The next request starts with it, and finds who it is one by one.
  const RoundReply second = rounds(38);
  ASSERT_EQ(second.rounds.size(), 1U);
  EXPECT_EQ(second.rounds[0].samples[0].outcome, "");
  EXPECT_EQ(second.rounds[0].samples[1].outcome, "launch_failed");
  EXPECT_EQ(second.rounds[0].samples[1].reason, "no launch today");
  EXPECT_EQ(rounds(37).rounds.size(), 37U) << "nothing of it is left over";
}

TEST_F(Overlap, InEachPlaceAChainRunsTwiceBeforeItsFirstSampleAndThenNoMore) {
  device_.target_kind = TargetKind::kCuda;
  ASSERT_EQ(rounds(3, 8).rounds.size(), 3U);
  const std::deque<int> twice = device_.runs;
  const size_t programs = twice.size() / 2;  // two rounds to a place
  EXPECT_GT(programs, 0U);
  EXPECT_EQ(twice, std::deque<int>(2 * programs, 2));
  ASSERT_EQ(rounds(40, 8).rounds.size(), 40U);
  EXPECT_EQ(device_.runs, std::deque<int>(8 * programs, 2));
}

using RestOfABlock = MockedSweep;

std::map<std::string, std::optional<double>> medians(const db::Store& store) {
  std::map<std::string, std::optional<double>> found;
  for (const auto& one : store.run_trials(store.last_run()->id)) {
    found[one.candidate.key] = one.median_ns;
  }
  return found;
}

TEST_F(RestOfABlock, IsAskedForBeforeTheAnswerIsStoredAndChangesNothing) {
  Settings at_once, in_pieces;
  in_pieces.database = "b.db";
  fakes::MockMeasurer quick(fakes::Script{}), slow(fakes::Script{});
  slow.most_rounds = 3;
  const Swept whole = sweep(quick, at_once), pieces = sweep(slow, in_pieces);
  EXPECT_GT(slow.round_requests, quick.round_requests);
  EXPECT_EQ(slow.samples, quick.samples) << "no round is run in vain where nothing goes wrong";
  EXPECT_EQ(medians(open("a.db")), medians(open("b.db")));
  EXPECT_EQ(whole.winner("attention").chain, pieces.winner("attention").chain);
}

TEST_F(RestOfABlock, IsDroppedWhereTheAnswerBeforeSaysThatTheMachineNeedsTime) {
  fakes::Script script;
  script.clock = [](int round) {
    profiler::ClockReading clock = fakes::steady_clock_reading();
    if (round >= 6 && round < 12) clock.reason_bits = 0x40;
    return clock;
  };
  fakes::MockMeasurer measurer(script);
  measurer.most_rounds = 1;
  Settings settings;
  const Swept swept = sweep(measurer, settings);
  const db::Store store = open();
  int64_t stored = 0;
  for (const db::RaceRow& race : store.races(swept.run)) {
    for (const db::RoundRow& round : store.rounds(race.id)) {
      if (round.number >= 0) stored += static_cast<int64_t>(round.order.size());
    }
  }
  EXPECT_GT(measurer.samples, stored) << "some ran in vain";
  EXPECT_FALSE(rejections(store, swept.run).empty());
  EXPECT_FALSE(swept.winner("attention").chain.empty());
}

TEST_F(RestOfABlock, IsDroppedWhereAnEntrantHasLeft) {
  const std::vector<std::string> all = planned();
  fakes::Script script;
  script.refused = [&](const fakes::Turn& turn) {
    return turn.chain == all[5] && turn.sample == 2
               ? std::pair<std::string, std::string>("launch_failed", "refused")
               : std::pair<std::string, std::string>();
  };
  fakes::MockMeasurer measurer(script);
  measurer.most_rounds = 1;
  sweep(measurer);
  const db::Store store = open();
  EXPECT_EQ(trial(store, all[5]).trial.state, "launch_failed");
  for (const std::string& other : all) {
    if (other == all[5]) continue;
    EXPECT_EQ(trial(store, other).trial.state, "ok") << other;
  }
}

}  // namespace
}  // namespace muse::tuner
