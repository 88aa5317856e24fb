// SPDX-License-Identifier: Apache-2.0
// Captured steps replayed on other data: back to back with nothing in between but new inputs,
// and at lengths far from those that they were captured at.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/chain.h"
#include "tests/fakes/command.h"
#include "tuner/arena.h"
#include "tuner/backend.h"
#include "tuner/compile.h"
#include "tuner/inputs.h"
#include "variants/registry.h"

namespace muse::tuner {
namespace {

struct Step {
  std::string chain;
  int64_t most_query_tokens;
  bool pdl;
};
/// The families, each with another end.
const std::vector<Step> kSteps = {
    {"fused/one_launch", 2, false},
    {"fused/one_launch:cluster=8,depth=1,heads_per_cta=1,splits=64,ticket=1,warps=4,"
     "warps_per_sm=12",
     2, false},
    {"fused/one_launch:cluster=1,depth=2,fill=1,splits=64,ticket=1,warps_per_sm=8", 2, false},
    {"prepare/warp:early=1,tokens=4,warps=5 + attention/register_direct:cluster=1,depth=2,gate=1,"
     "splits=4,ticket=1,tokens=16,warps=4",
     2, true},
    {"prepare/warp:early=1 + attention/register_direct:cluster=1,gate=0,partial_bf16=1,splits=32,"
     "ticket=0,warps=8 + combine/gated",
     2, true},
    {"prepare/fused + attention/register_dealt + combine/dealt", 2, true},
    {"prepare/fused + attention/swapped", 2, true},
    {"prepare/fused + attention/async_ring + combine/gated", 8, true},
    {"prepare/fused + attention/async_ring:fill=2,partial_bf16=1,splits=64 + combine/dealt", 8,
     true},
    {"prepare/fused + attention/mma + combine/separate + gate/separate", 8, true}};

Shape shape_of(int64_t q_len, int64_t page_size, int64_t window, int64_t capacity,
               std::vector<int64_t> contexts) {
  Shape shape;
  shape.problem = {.batch = static_cast<int64_t>(contexts.size()),
                   .q_len = q_len,
                   .num_q_heads = 16,
                   .num_kv_heads = 2,
                   .page_size = page_size,
                   .window = window,
                   .rope_theta = 500000,
                   .max_context = capacity};
  shape.lengths.profile = Profile::kList;
  shape.lengths.context = *std::max_element(contexts.begin(), contexts.end());
  shape.lengths.list = std::move(contexts);
  shape.lengths.pool_bytes = 2 * capacity * shape.problem.batch * 128;
  return shape;
}

class Replays : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    try {
      make_cuda_backend({.timer = profiler::Timer::kEvents});
    } catch (const TargetError& error) {
      why_not_ = error.what();
      return;
    }
    folder_ = std::make_unique<fakes::TemporaryFolder>();
    auto backend = make_cuda_backend({.timer = profiler::Timer::kEvents});
    const auto toolkit = compiler_toolkit(MUSE_TUNE);
    ASSERT_TRUE(toolkit) << toolkit.error();
    std::vector<Candidate> all;
    for (const Step& step : kSteps) {
      chains_.push_back(fakes::chain_of(step.chain));
      all.insert(all.end(), chains_.back().begin(), chains_.back().end());
    }
    const auto results = compile_all(all, *toolkit,
                                     {.architecture = backend->device_class().isa,
                                      .cache = folder_->path(),
                                      .executable = MUSE_TUNE});
    for (const auto& [name, result] : results) {
      ASSERT_EQ(result.outcome, Outcome::kOk) << name << ": " << result.reason;
    }
    options_ = {.timer = profiler::Timer::kEvents, .cache = folder_->path(), .toolkit = *toolkit};
  }
  static void TearDownTestSuite() { folder_.reset(); }
  void SetUp() override {
    if (!folder_) GTEST_SKIP() << why_not_;
    backend_ = make_cuda_backend(options_);
  }

  static inline std::unique_ptr<fakes::TemporaryFolder> folder_;
  static inline std::vector<Chain> chains_;
  static inline CudaOptions options_;
  static inline std::string why_not_;
  std::unique_ptr<Backend> backend_;
};

/// A chain bound to buffers of its own.
class BoundStep {
 public:
  BoundStep(Backend& backend, const Chain& chain, const Inputs& inputs)
      : backend_(backend), arena(backend, inputs) {
    const Problem& problem = inputs.shape.problem;
    Handoff partials{.kind = HandoffKind::kO};
    for (const Candidate& candidate : chain) {
      const Handoff left = candidate.variant->produces(problem, candidate.configuration);
      if (left.kind == HandoffKind::kPartials) partials = left;
    }
    for (const Candidate& candidate : chain) {
      const Geometry geometry =
          candidate.variant->geometry(problem, candidate.configuration, backend.device_class());
      programs_.push_back(backend.bind(candidate, problem, arena.buffers(partials, false),
                                       arena.workspace(key(candidate), geometry.workspace)));
    }
  }

  void run_one_by_one() {
    for (const auto& program : programs_) {
      for (int launch = 0; launch < program->launches(); ++launch) program->launch(launch);
      backend_.synchronize();
    }
  }
  std::unique_ptr<Program> capture(bool pdl) {
    std::vector<Program*> all;
    for (const auto& program : programs_) all.push_back(program.get());
    return backend_.capture(all, pdl, all.size());
  }
  /// Enqueues the copies of all inputs and caches from there, and poison over the output.
  void take(const Arena& from) {
    std::vector<Put> puts;
    for (const Arena::Area& area : arena.areas()) {
      if (area.role == BufferRole::kInput || area.role == BufferRole::kInOut) {
        const Arena::Area& source = from.area(area.name);
        puts.push_back({.target = area.address,
                        .source = source.address,
                        .bytes = std::min(area.bytes, source.bytes)});
      }
    }
    const Arena::Area& out = arena.area("out");
    puts.push_back({.target = out.address, .bytes = out.bytes, .byte = kPoisonByte});
    backend_.put(puts);
  }

 private:
  Backend& backend_;

 public:
  Arena arena;

 private:
  std::vector<std::unique_ptr<Program>> programs_;
};

/// Data of one replay, on the device, and what the step makes of it: launches one by one, each
/// after the end of the one before.
struct State {
  std::unique_ptr<Arena> inputs;
  std::vector<uint8_t> out;
};
State state_of(Backend& backend, const Inputs& inputs, BoundStep& step) {
  State state{std::make_unique<Arena>(backend, inputs), {}};
  step.take(*state.inputs);
  step.run_one_by_one();
  state.out = step.arena.download("out");
  return state;
}

TEST(ReplayedSteps, AreLegal) {
  const Problem problem = shape_of(1, 1, 0, 1024, {1024}).problem;
  for (const Step& step : kSteps) {
    const Support joined = joins(problem, fakes::chain_of(step.chain));
    EXPECT_TRUE(joined.ok()) << step.chain << ": " << joined.reason;
  }
}

TEST_F(Replays, AThousandBackToBackOnChangingInputsGiveWhatSingleRunsGive) {
  constexpr int kReplays = 1000;
  constexpr int64_t kCapacity = 3072;
  // The first is the longest: what it is bound to has room for all.
  const std::vector<std::vector<int64_t>> lengths = {{3072, 3072, 3072}, {8, 8, 8},
                                                     {9, 3000, 64},      {513, 40, 2047},
                                                     {3071, 8, 1025},    {128, 129, 127}};
  for (size_t s = 0; s < kSteps.size(); ++s) {
    for (const int64_t q_len : {int64_t{1}, kSteps[s].most_query_tokens}) {
      for (const int64_t window : {0, 200}) {
        SCOPED_TRACE(kSteps[s].chain + ", q_len " + std::to_string(q_len) + ", window " +
                     std::to_string(window));
        std::vector<Inputs> inputs;
        for (size_t i = 0; i < lengths.size(); ++i) {
          inputs.push_back(
              make_inputs(shape_of(q_len, 1, window, kCapacity, lengths[i]), i + 1, Fill::kNormal));
        }
        BoundStep step(*backend_, chains_[s], inputs[0]);
        std::vector<State> states;
        for (const Inputs& in : inputs) {
          states.push_back(state_of(*backend_, in, step));
        }
        const auto graph = step.capture(kSteps[s].pdl);
        const Arena::Area& out = step.arena.area("out");
        auto* results = static_cast<uint8_t*>(backend_->allocate(kReplays * out.bytes));
        for (int i = 0; i < kReplays; ++i) {  // nothing waits in between
          step.take(*states[static_cast<size_t>(i) * 5 / 3 % states.size()].inputs);
          graph->launch(0);
          backend_->copy(results + i * out.bytes, out.address, out.bytes);
        }
        backend_->synchronize();
        std::vector<uint8_t> got(static_cast<size_t>(out.bytes));
        for (int i = 0; i < kReplays; ++i) {
          backend_->download(got.data(), results + i * out.bytes, out.bytes);
          const size_t state = static_cast<size_t>(i) * 5 / 3 % states.size();
          ASSERT_EQ(got, states[state].out) << "replay " << i << ", lengths number " << state;
        }
        backend_->release(results);
      }
    }
  }
}

TEST_F(Replays, AStepCapturedAtOneTokenIsRightAtManyThousands) {
  constexpr int64_t kCapacity = 131072;
  for (const int64_t window : {0, 2048}) {
    const Inputs longest =
        make_inputs(shape_of(1, 1, window, kCapacity, {131072, 70001}), 1, Fill::kNormal);
    const Inputs shortest =
        make_inputs(shape_of(1, 1, window, kCapacity, {1, 1}), 2, Fill::kNormal);
    for (size_t s = 0; s < kSteps.size(); ++s) {
      SCOPED_TRACE(kSteps[s].chain + ", window " + std::to_string(window));
      BoundStep step(*backend_, chains_[s], longest);
      const State far = state_of(*backend_, longest, step);
      const State near = state_of(*backend_, shortest, step);
      const auto graph = step.capture(kSteps[s].pdl);  // at one token
      for (const State* state : {&near, &far, &near, &far}) {
        step.take(*state->inputs);
        graph->launch(0);
        backend_->synchronize();
        ASSERT_EQ(step.arena.download("out"), state->out);
      }
    }
  }
}

}  // namespace
}  // namespace muse::tuner
