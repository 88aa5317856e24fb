// SPDX-License-Identifier: Apache-2.0
// A step judged once more in the memory that it was timed in, on other data.
#include "tuner/revalidate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tuner/plan.h"
#include "tuner/timed_data.h"
#include "variants/registry.h"

namespace muse::tuner {
namespace {

/// The host's base, bound to memory of its own and run once, as if it had been timed.
class Revalidated : public ::testing::Test {
 protected:
  Revalidated() {
    shape_.problem = {.batch = 3,
                      .q_len = 2,
                      .num_q_heads = 4,
                      .num_kv_heads = 2,
                      .page_size = 16,
                      .max_context = 64};
    shape_.lengths.context = 48;
    shape_.lengths.pool_bytes = 1 << 16;
    arena_ = make_timed_arena(*backend_, shape_, 1);
    Handoff partials{.kind = HandoffKind::kO};
    for (const Candidate& candidate : base_) {
      const Handoff left = candidate.variant->produces(shape_.problem, candidate.configuration);
      if (left.kind == HandoffKind::kPartials) partials = left;
      const Geometry geometry = candidate.variant->geometry(shape_.problem, candidate.configuration,
                                                            backend_->device_class());
      programs_.push_back(backend_->bind(candidate, shape_.problem,
                                         arena_->buffers(partials, false),
                                         arena_->workspace(key(candidate), geometry.workspace)));
    }
    run();
  }
  void run() {
    for (const auto& program : programs_) {
      for (int launch = 0; launch < program->launches(); ++launch) program->launch(launch);
    }
  }
  ValidationReport revalidate(const std::function<void()>& step) {
    return tuner::revalidate(*backend_, *arena_, shape_, 2, step);
  }
  bool output_is_there() const {
    const std::vector<uint8_t> out = arena_->download("out");
    return std::any_of(out.begin(), out.end(), [](uint8_t byte) { return byte != kPoisonByte; });
  }

  Shape shape_;
  std::unique_ptr<Backend> backend_ = make_host_backend();
  Chain base_ = default_base(TargetKind::kHost, Registry::global()).value();
  std::unique_ptr<Arena> arena_;  // programs die before the memory they point to
  std::vector<std::unique_ptr<Program>> programs_;
};

TEST_F(Revalidated, WhoComputesIsRight) {
  const ValidationReport report = revalidate([&] { run(); });
  EXPECT_EQ(report.outcome, Outcome::kOk) << report.reason;
  ASSERT_EQ(report.gates.size(), 1U);
  EXPECT_EQ(report.gates[0].metrics.at(kOtherDataSeed), 2);
}

TEST_F(Revalidated, WhoComputesOnlyWhatIsNotThereYetIsFoundOut) {
  const ValidationReport report = revalidate([&] {
    if (!output_is_there()) run();
  });
  EXPECT_EQ(report.outcome, Outcome::kIncorrect);
  EXPECT_NE(report.reason.find("on other data"), std::string::npos) << report.reason;
}

TEST_F(Revalidated, WhoComputesNothingAnyMoreIsFoundOut) {
  EXPECT_EQ(revalidate([] {}).outcome, Outcome::kIncorrect);
}

TEST_F(Revalidated, WhoWritesOnlyOverWhatIsThereIsFoundOut) {
  EXPECT_EQ(revalidate([&] {
              if (output_is_there()) run();
            }).outcome,
            Outcome::kIncorrect);
}

}  // namespace
}  // namespace muse::tuner
