// SPDX-License-Identifier: Apache-2.0
// Validation on a GPU: its reference against the host's, and planted faults, each caught by its
// gate.
#include "tuner/validate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/fakes/command.h"
#include "tests/fakes/planted_faults.h"
#include "tests/fakes/wrong_kernels.h"

namespace muse::tuner {
namespace {

class DeviceValidation : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      backend_ = make_cuda_backend({.timer = profiler::Timer::kEvents});
    } catch (const TargetError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  std::unique_ptr<Backend> backend_;
};

Shape shape_of(const Problem& problem, std::vector<int64_t> contexts, PageOrder order) {
  Shape shape{problem, {}};
  shape.lengths.profile = Profile::kList;
  shape.lengths.context = *std::max_element(contexts.begin(), contexts.end());
  shape.lengths.list = std::move(contexts);
  shape.lengths.page_order = order;
  shape.problem.max_context = default_max_context(shape);
  return shape;
}

std::vector<Shape> reference_shapes() {
  return {
      shape_of({.batch = 3}, {1, 700, 4097}, PageOrder::kRandom),
      shape_of({.batch = 3, .q_len = 8, .page_size = 16, .window = 128, .kv_scale = 1.3},
               {8, 129, 300}, PageOrder::kReversed),
      shape_of({.batch = 4,
                .q_len = 3,
                .num_q_heads = 8,
                .num_kv_heads = 1,
                .page_size = 64,
                .window = 2048},
               {3, 127, 128, 2056}, PageOrder::kContiguous),
      shape_of({.batch = 2, .q_len = 2, .num_q_heads = 4, .num_kv_heads = 4, .window = 1}, {2, 513},
               PageOrder::kStrideB),
  };
}

double distance(const std::vector<double>& got, const std::vector<double>& expected) {
  double error2 = 0, ref2 = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error2 += (got[i] - expected[i]) * (got[i] - expected[i]);
    ref2 += expected[i] * expected[i];
  }
  return std::sqrt(error2 / ref2);
}

TEST_F(DeviceValidation, ItsReferenceIsTheHosts) {
  for (const Shape& shape : reference_shapes()) {
    for (const Fill fill : {Fill::kNormal, Fill::kFlat, Fill::kMeanOne}) {
      ValidationBench bench(*backend_, shape, 1);
      const auto stand = bench.stand(fill, CaseKind::kStored);
      const auto got = backend_->attention_truth(stand->problem(), bench.reference_buffers(*stand));
      ASSERT_TRUE(got);
      const auto image = make_caches(bench.shape(), 1, fill);
      Buffers in = stand->data->inputs.view();
      in.k_cache = image->k.get();
      in.v_cache = image->v.get();
      const AttentionTruth expected =
          sampled_truth(*stand->data, in, stand->data->prepared.q8.data(), int64_t{1} << 40);
      ASSERT_EQ(got->exact.o.size(), expected.exact.o.size());
      ASSERT_EQ(got->emulated.lse.size(), expected.fa3.lse.size());
      const std::string where = fmt::format("{} {}", key(shape), name(fill));
      EXPECT_LE(distance(got->exact.o, expected.exact.o), 1e-12) << where;
      EXPECT_LE(distance(got->exact.lse, expected.exact.lse), 1e-12) << where;
      // A rounding to E4M3 or bf16 that goes the other way now and then: exp2f differs by an ulp.
      EXPECT_LE(distance(got->emulated.o, expected.fa3.o), 1e-3) << where;
      EXPECT_LE(distance(got->emulated.lse, expected.fa3.lse), 1e-6) << where;
    }
  }
}

/// A config with that shape alone, of the planted kernels.
std::string config(const Shape& shape) {
  const Problem& p = shape.problem;
  const std::string lengths = shape.lengths.profile == Profile::kList
                                  ? fmt::format("lengths: {{profile: list, values: [{}]}}",
                                                fmt::join(shape.lengths.list, ", "))
                                  : fmt::format("context: {}", shape.lengths.context);
  return fmt::format(
      "schema: 1\n"
      "shapes:\n"
      "  - {{batch: {}, q_len: {}, page_size: {}, window: {}, rope_theta: {}, kv_scale: {:.9g}, "
      "max_context: {}, {}}}\n"
      "variants: {{include: ['*/fake_planted']}}\n",
      p.batch, p.q_len, p.page_size, p.window, p.rope_theta, p.kv_scale, p.max_context, lengths);
}

using Trials = std::map<std::string, nlohmann::json>;  ///< of validate --json, by candidate

Trials validated(const Shape& shape, const fakes::TemporaryFolder& cache) {
  fakes::TemporaryFolder folder;
  fakes::write_file(folder / "wrong.yaml", config(shape));
  const fakes::CommandResult result =
      fakes::run_command({MUSE_TUNE_FAKES, "validate", "wrong.yaml", "--target", "cuda:0",
                          "--cache", cache.path(), "--json", "--quiet"},
                         {.folder = folder.path(), .limit_s = 280});
  EXPECT_EQ(result.exit_code, 5) << result.err;
  Trials trials;
  const auto json = nlohmann::json::parse(result.out, nullptr, false);
  if (json.is_discarded()) return trials;
  for (const auto& trial : json.at("trials")) trials[trial.at("candidate")] = trial;
  return trials;
}

void expect_caught(const fakes::WrongKernel& wrong, const Trials& trials) {
  ASSERT_TRUE(trials.contains(wrong.candidate)) << wrong.candidate;
  const nlohmann::json& trial = trials.at(wrong.candidate);
  ASSERT_EQ(trial.at("outcome"), name(Outcome::kIncorrect)) << wrong.kind << ": " << trial;
  // "gate attention, buffer partial_o@3_f32, index ..."
  const std::string reason = trial.at("reason");
  EXPECT_EQ(reason.rfind(fmt::format("gate {}, buffer {}", name(wrong.gate), wrong.buffer), 0), 0u)
      << wrong.kind << ": " << reason;
}

TEST_F(DeviceValidation, PlantedFaultsAreCaughtByTheirGates) {
  backend_.reset();
  const fakes::TemporaryFolder cache;
  std::map<std::string, Trials> by_shape;
  for (const fakes::WrongKernel& wrong : fakes::wrong_kernels()) {
    const auto [trials, added] = by_shape.try_emplace(key(wrong.shape));
    if (added) trials->second = validated(wrong.shape, cache);
    expect_caught(wrong, trials->second);
  }
  for (const auto& [shape, trials] : by_shape) {
    for (const std::string& right : fakes::right_kernels()) {
      const auto found = trials.find(right);
      if (found == trials.end()) continue;  // the pipeline is no candidate
      EXPECT_EQ(found->second.at("outcome"), name(Outcome::kOk)) << shape << ": " << found->second;
    }
  }
}

}  // namespace
}  // namespace muse::tuner
