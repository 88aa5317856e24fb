// SPDX-License-Identifier: Apache-2.0
// The gates proved by planted faults: each is caught by the gate that should catch it, and nothing
// that is right is refused.
#include "tuner/validate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "tests/fakes/planted_faults.h"
#include "tuner/arena.h"
#include "tuner/cases.h"
#include "tuner/partly_attended.h"
#include "variants/registry.h"

namespace muse::tuner {
namespace {

using fakes::Fault;
using fakes::planted;
using fakes::planted_fused;
using fakes::planted_pipeline;

Backend& host() {
  static const std::unique_ptr<Backend> backend = make_host_backend();
  return *backend;
}

ValidationReport judge(const Chain& chain, const Shape& shape = fakes::fault_shape()) {
  return validate(host(), chain, shape, ValidateOptions{});
}

/// The gate that failed; a result without failure where none has.
GateResult failed(const ValidationReport& report) {
  for (const GateResult& gate : report.gates) {
    if (gate.failure) return gate;
  }
  return {};
}

Shape uniform_shape(const Problem& problem, int64_t context) {
  Shape shape{problem, {}};
  shape.lengths.context = context;
  shape.problem.max_context =
      (context + problem.page_size - 1) / problem.page_size * problem.page_size;
  return shape;
}

TEST(PlantedFaults, AreOfTwentySixKinds) {
  std::set<std::string> kinds;
  for (const fakes::PlantedFault& fault : fakes::planted_faults()) kinds.insert(fault.kind);
  EXPECT_EQ(kinds.size(), 26u);
}

class Planted : public testing::TestWithParam<fakes::PlantedFault> {};

void expect_caught(const fakes::PlantedFault& fault, const ValidationReport& report) {
  ASSERT_EQ(report.outcome, Outcome::kIncorrect) << report.reason;
  EXPECT_EQ(name(failed(report).gate), name(fault.gate)) << report.reason;
  ASSERT_TRUE(failed(report).failure.has_value());
  const std::string buffer = failed(report).failure->buffer;
  EXPECT_EQ(buffer.substr(0, buffer.find('@')), fault.buffer.empty() ? buffer : fault.buffer)
      << report.reason;
  EXPECT_EQ(report.reason, failed(report).failure->text(fault.gate));
}

TEST_P(Planted, IsCaughtInThePipeline) {
  const fakes::PlantedFault& fault = GetParam();
  expect_caught(fault,
                judge(planted_pipeline(fault.stage, fault.fault, fault.buffer), fault.shape));
}

TEST_P(Planted, IsCaughtInTheStageAlone) {
  const fakes::PlantedFault& fault = GetParam();
  expect_caught(fault, judge({planted(fault.stage, fault.fault, fault.buffer)}, fault.shape));
}

INSTANTIATE_TEST_SUITE_P(Faults, Planted, testing::ValuesIn(fakes::planted_faults()));

TEST(PlantedFaults, AreCaughtInsideAFusedSpanThroughItsTaps) {
  for (const fakes::PlantedFault& fault : fakes::planted_faults()) {
    if (fault.fault == Fault::kStoreBefore || fault.fault == Fault::kStoreBehind) continue;
    const ValidationReport report = judge({planted_fused(fault.fault, fault.buffer)}, fault.shape);
    ASSERT_EQ(report.outcome, Outcome::kIncorrect) << fault.kind;
    EXPECT_EQ(name(failed(report).gate), name(fault.gate)) << report.reason;
  }
}

TEST(PlantedFaults, AStoreBesideTheWorkspaceIsCaught) {
  for (const Fault fault : {Fault::kStoreBefore, Fault::kStoreBehind}) {
    const ValidationReport report = judge({planted_fused(fault, "workspace")});
    ASSERT_EQ(report.outcome, Outcome::kIncorrect);
    EXPECT_EQ(failed(report).failure->buffer.substr(0, 10), "workspace@") << report.reason;
  }
}

/// Every chain of planted stages without a fault.
std::vector<Chain> right_chains() {
  std::vector<Chain> chains{
      planted_pipeline(Stage::kGate, Fault::kNone),
      {planted_fused(Fault::kNone)},
      {planted(Stage::kAttention, Fault::kNone), planted(Stage::kCombine, Fault::kNone)}};
  for (const Stage stage : {Stage::kPrepare, Stage::kAttention, Stage::kCombine, Stage::kGate}) {
    chains.push_back({planted(stage, Fault::kNone)});
  }
  return chains;
}

void expect_ok(const Chain& chain, const Shape& shape) {
  ASSERT_EQ(check(shape), "");
  const ValidationReport report = judge(chain, shape);
  EXPECT_EQ(report.outcome, Outcome::kOk)
      << key(chain) << " on " << key(shape) << ": " << report.reason;
  for (const GateResult& gate : report.gates) EXPECT_TRUE(gate.passed);
}

TEST(Validate, AcceptsWhatIsRightOverTheGrid) {
  struct Heads {
    int64_t q, kv;
  };
  int64_t turn = 0;  // head counts and scales take turns; lengths meet every window
  const std::vector<Heads> heads{{16, 2}, {8, 1}, {16, 4}, {4, 4}};
  const std::vector<double> scales{1, 0.5, 1.3, 0.7, 0.523809493};
  for (const int64_t q_len : {1, 2, 8}) {
    for (const int64_t page_size : {1, 16, 64}) {
      for (const int64_t window : {0, 1, 2, 128}) {
        ++turn;
        const Heads& h = heads[static_cast<size_t>(turn) % heads.size()];
        Shape shape;
        shape.problem = {.batch = 5,
                         .q_len = q_len,
                         .num_q_heads = h.q,
                         .num_kv_heads = h.kv,
                         .page_size = page_size,
                         .window = window,
                         .rope_theta = turn % 2 ? 500000.0 : 0.0,
                         .kv_scale = scales[static_cast<size_t>(turn) % scales.size()]};
        shape.lengths.profile = Profile::kList;
        shape.lengths.list = {q_len, std::max(q_len, window), window + q_len, 65 + q_len, 160};
        shape.lengths.context =
            *std::max_element(shape.lengths.list.begin(), shape.lengths.list.end());
        shape.lengths.page_order = static_cast<PageOrder>(turn % 4);
        shape.problem.max_context = default_max_context(shape);
        const std::vector<Chain> chains = right_chains();
        for (size_t i = 0; i < 3; ++i) expect_ok(chains[i], shape);
        expect_ok(chains[3 + static_cast<size_t>(turn) % 4], shape);
      }
    }
  }
}

TEST(Validate, AcceptsWhatIsRightAtOneLongRequestAmongShortOnes) {
  Shape shape = fakes::fault_shape();
  shape.problem.q_len = 1;
  shape.problem.window = 0;
  shape.lengths = {.profile = Profile::kOutlier, .context = 4097, .rest = 1};
  shape.problem.max_context = default_max_context(shape);
  for (const Chain& chain : right_chains()) expect_ok(chain, shape);
}

TEST(Validate, SeesAWindowOfTwoThousandThatIsOneShort) {
  const Shape shape = uniform_shape({.window = 2048, .rope_theta = 500000}, 2300);
  const ValidationReport report =
      judge({planted(Stage::kAttention, Fault::kWindowTooNarrow)}, shape);
  ASSERT_EQ(report.outcome, Outcome::kIncorrect);
  EXPECT_EQ(failed(report).gate, Gate::kAttention) << report.reason;
  expect_ok({planted(Stage::kAttention, Fault::kNone)}, shape);
}

TEST(Validate, EveryRegisteredHostVariantIsRightAtItsDefault) {
  Shape shape = fakes::fault_shape(16);
  shape.problem.kv_scale = 1;
  for (const Variant* variant : Registry::global().all()) {
    if (variant->target.kind != TargetKind::kHost) continue;
    expect_ok({{variant, default_configuration(*variant)}}, fakes::fault_shape());
    expect_ok({{variant, default_configuration(*variant)}}, shape);
  }
}

// Two roundings in a row, of the Partials and of O, are no fault of either stage.
TEST(Validate, AcceptsBf16PartialsInAWholePipeline) {
  for (const int64_t q_len : {1, 8}) {
    Problem problem;
    problem.q_len = q_len;
    problem.window = 2048;
    problem.rope_theta = 500000;
    const Shape shape = uniform_shape(problem, 512);
    for (const char* splits : {"2", "4", "8"}) {
      const auto chain = Registry::global().parse_chain(
          std::string("prepare/scalar + attention/simd:partial_bits=16,splits=") + splits +
          ",threads=1,tile_kv=64 + combine/scalar + gate/scalar");
      ASSERT_TRUE(chain) << chain.error();
      for (const uint64_t seed : {1, 2, 3}) {
        const ValidationReport report = validate(host(), *chain, shape, {.seed = seed});
        EXPECT_EQ(report.outcome, Outcome::kOk) << report.reason;
      }
    }
  }
}

TEST(Validate, JudgesTheGatesThatTheSpanTouchesWithEachFillThatMatters) {
  const auto judged = [](const Chain& chain) {
    std::string text;
    for (const GateResult& gate : judge(chain).gates) {
      text += std::string(name(gate.gate)) + "/" + std::string(name(gate.fill)) + " ";
    }
    return text;
  };
  EXPECT_EQ(judged({planted(Stage::kPrepare, Fault::kNone)}), "poison/normal prepare/normal ");
  EXPECT_EQ(judged({planted(Stage::kAttention, Fault::kNone)}),
            "poison/normal attention/normal poison/flat attention/flat poison/mean_one "
            "attention/mean_one ");
  EXPECT_EQ(judged({planted(Stage::kCombine, Fault::kNone)}), "poison/normal attention/normal ");
  EXPECT_EQ(judged({planted(Stage::kGate, Fault::kNone)}), "poison/normal gate/normal ");
  const std::string whole = judged({planted_fused(Fault::kNone)});
  for (const char* gate : {"poison", "prepare", "attention", "gate", "end_to_end"}) {
    for (const char* fill : {"normal", "flat", "mean_one"}) {
      EXPECT_NE(whole.find(std::string(gate) + "/" + fill), std::string::npos) << whole;
    }
  }
}

TEST(Validate, FeedsACombineMoreSplitsThanALoopTakesInOnePass) {
  const ValidationReport report = judge({planted(Stage::kCombine, Fault::kLateSplitsLost)});
  EXPECT_EQ(report.outcome, Outcome::kIncorrect);
  EXPECT_EQ(report.reason.find("gate attention"), 0u) << report.reason;
}

TEST(Validate, AFusedSpanWithoutTapsIsUnmeasurable) {
  const ValidationReport report = judge({planted_fused(Fault::kSilentTaps)});
  EXPECT_EQ(report.outcome, Outcome::kUnmeasurable);
  EXPECT_NE(report.reason.find("q8_tap"), std::string::npos) << report.reason;
}

TEST(Validate, AnExceptionOfAnyTypeIsALaunchFailure) {
  for (const Fault fault : {Fault::kThrows, Fault::kThrowsInt}) {
    const ValidationReport report = judge({planted(Stage::kGate, fault)});
    EXPECT_EQ(report.outcome, Outcome::kLaunchFailed);
    EXPECT_NE(report.reason.find("gate/planted"), std::string::npos) << report.reason;
    EXPECT_TRUE(report.gates.empty());
  }
  EXPECT_NE(judge({planted(Stage::kGate, Fault::kThrows)}).reason.find("planted exception"),
            std::string::npos);
  EXPECT_EQ(judge({planted(Stage::kGate, Fault::kOutOfMemory)}).outcome, Outcome::kOom);
}

TEST(Validate, AnExceptionWhileSettingUpIsALaunchFailure) {
  Variant broken = *planted(Stage::kGate, Fault::kNone).variant;
  broken.geometry = [](const Problem&, const Configuration&, const DeviceClass&) -> Geometry {
    throw std::runtime_error("no geometry today");
  };
  const Chain chain{{&broken, planted(Stage::kGate, Fault::kNone).configuration}};
  EXPECT_EQ(judge(chain).outcome, Outcome::kLaunchFailed);
  EXPECT_NE(judge(chain).reason.find("no geometry today"), std::string::npos);
  broken.supports = [](const Problem&, const Configuration&, const DeviceClass&) -> Support {
    throw 3;
  };
  EXPECT_EQ(judge(chain).outcome, Outcome::kLaunchFailed);
  broken.supports = [](const Problem&, const Configuration&, const DeviceClass&) {
    return Support::no("never on a Monday");
  };
  EXPECT_EQ(judge(chain).outcome, Outcome::kUnsupported);
  EXPECT_NE(judge(chain).reason.find("never on a Monday"), std::string::npos);
}

TEST(Validate, RunsThatDifferFailOnlyWhereDeterminismIsDeclared) {
  const Candidate drifting = planted(Stage::kGate, Fault::kDrifts);
  const ValidationReport report = judge({drifting});
  ASSERT_EQ(report.outcome, Outcome::kIncorrect);
  EXPECT_EQ(failed(report).failure->index, 1) << report.reason;
  Variant modest = *drifting.variant;
  modest.declared.deterministic = modest.declared.batch_invariant = false;
  const ValidationReport again = judge({{&modest, drifting.configuration}});
  EXPECT_EQ(again.outcome, Outcome::kOk) << again.reason;
}

TEST(Validate, ARequestThatDependsOnItsBatchFailsOnlyWhereInvarianceIsDeclared) {
  const Candidate dependent = planted(Stage::kGate, Fault::kReadsTheBatch);
  const ValidationReport report = judge({dependent});
  ASSERT_EQ(report.outcome, Outcome::kIncorrect);
  EXPECT_NE(report.reason.find("alone"), std::string::npos) << report.reason;
  Variant modest = *dependent.variant;
  modest.declared.batch_invariant = false;
  EXPECT_EQ(judge({{&modest, dependent.configuration}}).outcome, Outcome::kOk);
}

TEST(Validate, WrongValuesOfEveryKindFailWithIndexGotAndExpected) {
  for (const Fault fault : {Fault::kNan, Fault::kAllNan, Fault::kInfinite}) {
    const ValidationReport report = judge({planted(Stage::kGate, fault)});
    ASSERT_EQ(report.outcome, Outcome::kIncorrect);
    EXPECT_GE(failed(report).failure->index, 0);
    EXPECT_NE(report.reason.find("got "), std::string::npos);
    EXPECT_NE(report.reason.find("expected "), std::string::npos);
  }
}

TEST(Validate, AHalfWriterFailsWhateverRanBeforeIt) {
  const Chain good{planted(Stage::kGate, Fault::kNone)},
      half{planted(Stage::kGate, Fault::kHalfWritten)};
  for (const std::vector<Chain>& sweep : {std::vector<Chain>{good, half}, {half, good}, {half}}) {
    for (const Chain& chain : sweep) {
      const ValidationReport report = judge(chain);
      EXPECT_EQ(report.outcome, chain == good ? Outcome::kOk : Outcome::kIncorrect);
      if (chain == half) {
        EXPECT_EQ(failed(report).failure->what, "never written, or a NaN that was read");
      }
    }
  }
}

TEST(Validate, AnInPlaceCacheIsRestoredBetweenRuns) {
  // Every run of the same candidate starts from the same bytes: a second validation sees nothing of
  // the first, and the case it was fed with is untouched.
  const Shape shape = validation_shape(fakes::fault_shape());
  const auto image = make_caches(shape, 1, Fill::kNormal);
  const auto bytes = [&](const std::unique_ptr<uint8_t[]>& cache) {
    return std::vector<uint8_t>(cache.get(), cache.get() + image->bytes);
  };
  const std::vector<uint8_t> k = bytes(image->k), v = bytes(image->v);
  for (int i = 0; i < 3; ++i)
    expect_ok(planted_pipeline(Stage::kGate, Fault::kNone), fakes::fault_shape());
  EXPECT_EQ(bytes(image->k), k);
  EXPECT_EQ(bytes(image->v), v);
}

TEST(Validate, AnnouncesEachLaunchAndMarksReferenceWork) {
  ValidateOptions options;
  std::vector<std::pair<int, int>> announced;
  int depth = 0, phases = 0;
  options.announce = [&](int candidate, int launch) {
    EXPECT_EQ(depth, 0) << "a launch inside reference work";
    announced.emplace_back(candidate, launch);
  };
  options.phase = [&](bool reference) {
    depth += reference ? 1 : -1;
    ++phases;
    EXPECT_TRUE(depth == 0 || depth == 1);
  };
  const Chain chain = planted_pipeline(Stage::kGate, Fault::kNone);
  EXPECT_EQ(validate(host(), chain, fakes::fault_shape(), options).outcome, Outcome::kOk);
  EXPECT_EQ(depth, 0);
  EXPECT_GT(phases, 0);
  ASSERT_GE(announced.size(), 4u);
  for (int c = 0; c < 4; ++c) EXPECT_EQ(announced[static_cast<size_t>(c)], std::pair(c, 0));
}

TEST(Cases, EveryRowThatNoQueryAttendsIsPoison) {
  for (const CaseKind kind : {CaseKind::kServed, CaseKind::kStored, CaseKind::kIndependent}) {
    const Shape shape = validation_shape(fakes::fault_shape(16));
    const auto data = make_case(shape, 1, Fill::kNormal, kind);
    const auto image = make_caches(shape, 1, Fill::kNormal);
    const Inputs& in = data->inputs;
    const Problem& p = shape.problem;
    const int64_t width = p.num_kv_heads * p.head_dim;
    const std::vector<int64_t> poisoned = poisoned_rows(*data, kind);
    EXPECT_EQ(poisoned, kind == CaseKind::kStored ? std::vector<int64_t>() : in.cache_loc);
    std::set<int64_t> attended, step(in.cache_loc.begin(), in.cache_loc.end());
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t j = first_attended(in, b, 0); j < in.cache_seqlens[static_cast<size_t>(b)];
           ++j) {
        attended.insert(in.row(b, j));
      }
    }
    EXPECT_EQ(step.size(), static_cast<size_t>(p.tokens()));
    for (int64_t row = 0; row < in.cache_pages * p.page_size; ++row) {
      for (const auto* cache : {&image->k, &image->v}) {
        const uint8_t byte = (*cache)[static_cast<size_t>(row * width)];
        if (!attended.count(row)) {
          EXPECT_EQ(byte, kForeignRowByte);
        } else {
          EXPECT_NE(byte & 0x7F, 0x7F);
        }
      }
    }
    EXPECT_EQ(std::count(data->redirected.begin(), data->redirected.end(), -1), 0);
    EXPECT_GT(std::count(in.page_table.begin(), in.page_table.end(), -1), 0);
  }
}

TEST(PartlyAttended, RowsAreThoseOfTheLastTokenAndOfTheKeyThatTheWindowLeavesBehind) {
  const Shape shape = validation_shape(fakes::fault_shape());
  const Problem& p = shape.problem;
  const auto data = make_case(shape, 1, Fill::kNormal, CaseKind::kStored);
  const Inputs& in = data->inputs;
  const auto values = partly_attended(in);
  ASSERT_EQ(values.size(), static_cast<size_t>(p.batch * p.num_kv_heads));
  int64_t of_last = 0, of_first = 0;
  for (const NanValues& v : values) {
    of_last += v.key == in.cache_seqlens[static_cast<size_t>(v.request)] - 1;
    of_first += v.key == first_attended(in, v.request, 0) && v.key > 0;
  }
  EXPECT_EQ(of_last + of_first, p.batch * p.num_kv_heads);
  EXPECT_GT(of_first, 0);
  const auto heads = static_cast<size_t>(p.tokens() * p.num_q_heads);
  const auto dim = static_cast<size_t>(p.head_dim);
  const std::vector<double> o = with_nan(in, values, false, std::vector<double>(heads * dim, 1));
  size_t marked = 0;
  for (size_t head = 0; head < heads; ++head) {
    marked += std::isnan(o[head * dim]);
    EXPECT_FALSE(std::isnan(o[(head + 1) * dim - 1]));
  }
  EXPECT_EQ(marked, heads / 3);  // of three tokens the last or the first

  Shape decode = fakes::fault_shape();
  decode.problem.q_len = 1;
  const auto one = make_case(validation_shape(decode), 1, Fill::kNormal, CaseKind::kStored);
  EXPECT_TRUE(partly_attended(one->inputs).empty());
}

TEST(PartlyAttended, ANaNIsExpectedExactlyWhereItBelongs) {
  const double nan = std::nan("");
  const std::vector<double> expected{1, nan, -1, 2};
  EXPECT_FALSE(judge_with_nan("o", 4, expected, std::vector<double>{1, nan, -1, 2.01}));
  const auto index = [&](const std::vector<double>& got) {
    const auto failure = judge_with_nan("o", 4, expected, got);
    return failure ? failure->index : -1;
  };
  EXPECT_EQ(index({1, 0, -1, 2}), 1);
  EXPECT_EQ(index({1, nan, -1, nan}), 3);
  EXPECT_EQ(index({1, nan, -0.9, 2}), 2);
}

TEST(Cases, AWidePoolKeepsItsSizeAndANarrowOneShrinks) {
  Shape shape = fakes::fault_shape();
  shape.lengths.pool_bytes = int64_t{1} << 30;
  EXPECT_LT(pool_pages(validation_shape(shape)), 2000);
  shape.lengths.pool_bytes = int64_t{8} << 30;
  EXPECT_EQ(pool_pages(validation_shape(shape)), pool_pages(shape));
}

}  // namespace
}  // namespace muse::tuner
