// SPDX-License-Identifier: Apache-2.0
// What a plan is made of or refused for: arguments, shapes that were never measured, devices that
// are not the one that was tuned; and what is said about it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <tuple>

#include "tests/variants/runtime_table.h"
#include "variants/runtime/plan.h"

namespace muse::runtime {

const LinkedTable& linked_table() {
  static const SmallTable table;
  return table.linked;
}

namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min();

/// As the table's rows have it, for contexts up to 4096.
muse_attention_problem measured_problem(int64_t batch) {
  muse_attention_problem problem = attention_problem();
  problem.batch = batch;
  problem.page_size = 16;
  problem.max_pages = 256;
  return problem;
}

muse_attention_explanation explained(const AttentionPlan& plan) {
  muse_attention_explanation explanation;
  EXPECT_TRUE(plan.explain(explanation)) << muse_attention_last_error();
  return explanation;
}

muse_attention_status status_of(const muse_attention_problem& problem, int64_t context = kContext) {
  AttentionPlan plan;
  const Status status = plan.create(problem, context);
  EXPECT_EQ(plan.get() == nullptr, !status);
  return status.code;
}

TEST(RuntimeChoice, AnswersBatchesThatWereNeverMeasured) {
  struct Case {
    int64_t batch;
    const char* match;
    const char* pipeline;
    double distance;
  };
  for (const Case& it :
       {Case{1, "exact", kPhasedPipeline, 0}, Case{8, "exact", kGatePipeline, 0},
        Case{3, "near", kPhasedPipeline, std::log2(4.0 / 3)},
        Case{9, "near", kGatePipeline, std::log2(9.0 / 8)}, Case{4096, "base", kBasePipeline, 9}}) {
    AttentionPlan plan;
    ASSERT_TRUE(plan.create(measured_problem(it.batch), kContext)) << muse_attention_last_error();
    const muse_attention_explanation how = explained(plan);
    EXPECT_STREQ(how.match, it.match) << it.batch;
    EXPECT_STREQ(how.pipeline, it.pipeline) << it.batch;
    EXPECT_NEAR(how.distance, it.distance, 1e-3) << it.batch;
  }
  for (const int64_t batch : {int64_t{0}, int64_t{-1}, kLargest}) {
    EXPECT_EQ(status_of(measured_problem(batch)), MUSE_ATTENTION_INVALID) << batch;
  }
}

TEST(RuntimeChoice, TakesTheBaseWhereTheWinnerDoesNotTakeTheHeads) {
  muse_attention_problem problem = measured_problem(1);
  problem.head_dim = 96;
  AttentionPlan plan;
  ASSERT_TRUE(plan.create(problem, kContext)) << muse_attention_last_error();
  const muse_attention_explanation how = explained(plan);
  EXPECT_STREQ(how.pipeline, kBasePipeline);
  EXPECT_STREQ(how.match, "base");
  EXPECT_STREQ(how.why, "no pipeline of the shapes within the table's limit runs here");
}

TEST(RuntimeChoice, SaysWhyNotEvenTheBaseTakesAProblem) {
  muse_attention_problem problem = measured_problem(1);
  problem.head_dim = 512;
  EXPECT_EQ(status_of(problem), MUSE_ATTENTION_UNSUPPORTED);
  EXPECT_STREQ(
      muse_attention_last_error(),
      "muse_attention_plan_create: no shape with these heads, head_dim, page size, window or "
      "none, RoPE or none, scales or none "
      "was measured, and the base does not run here: prepare/scalar: head_dim 512: only "
      "multiples of 2 up to 256");
}

TEST(RuntimeChoice, ExplainsAMeasuredChoice) {
  AttentionPlan plan;
  ASSERT_TRUE(plan.create(measured_problem(8), kContext));
  const muse_attention_explanation how = explained(plan);
  EXPECT_STREQ(how.guard, "tuned");
  EXPECT_STREQ(how.why, "this shape was measured");
  EXPECT_EQ(how.expected_us, 12.5);
  EXPECT_EQ(how.low_us, 12.25);
  EXPECT_EQ(how.high_us, 12.75);
  EXPECT_EQ(how.base_us, 25);
  EXPECT_STREQ(how.measured, "as measured");
  EXPECT_STREQ(how.date, "2030-01-02T03:04:05Z");
  EXPECT_EQ(how.launches, 2);
}

TEST(RuntimeChoice, ExplainsANeighbourAndABaseThatWasNotMeasured) {
  AttentionPlan plan;
  ASSERT_TRUE(plan.create(measured_problem(3), kContext));
  EXPECT_STREQ(explained(plan).why,
               "the nearest measured shape whose pipeline runs here is 0.42 doublings away");
  ASSERT_TRUE(plan.create(measured_problem(4096), kContext));
  const muse_attention_explanation how = explained(plan);
  EXPECT_STREQ(how.why,
               "the nearest measured shape of this structure is 9.00 doublings away, the table's "
               "limit is 1.60");
  EXPECT_TRUE(std::isnan(how.expected_us) && std::isnan(how.low_us) && std::isnan(how.high_us) &&
              std::isnan(how.base_us));
  EXPECT_STREQ(how.measured, "");
  EXPECT_STREQ(how.date, "");
  EXPECT_EQ(how.launches, 4);
}

TEST(RuntimeChoice, NamesTheSizesThatHadToBeMetExactly) {
  muse_attention_problem problem = measured_problem(1);
  problem.q_len = 3;
  AttentionPlan plan;
  ASSERT_TRUE(plan.create(problem, kContext));
  const muse_attention_explanation how = explained(plan);
  EXPECT_EQ(how.distance, 0);
  EXPECT_STREQ(how.why,
               "no measured shape of this structure has the q_len asked for, which the table's "
               "rules want exactly");
}

/// Measured: batch 2, where kGatePipeline won, and 8, where kPhasedPipeline did; the base loses a
/// tenth and a fifth.
TEST(RuntimeChoice, ExplainsWhatIsExpectedToBeLostBetweenMeasuredShapes) {
  SmallTable table;
  std::vector<dispatch::Row> rows(2, table.linked.contexts->rows[0]);
  rows[0].key.batch = 2;
  rows[0].pipeline = dispatch::Pipeline{2};
  rows[1].key.batch = 8;
  rows[1].pipeline = dispatch::Pipeline{1};
  const tuner::DispatchIndex index = tuner::index_rows(
      rows, true, {{{0, 1000}, {1, 9000}, {2, 0}}, {{0, 2000}, {1, 0}, {2, 9000}}});
  const dispatch::Table between = index.table();
  table.linked.contexts = &between;
  Catalogue catalogue(table.linked);
  const Here& here = **catalogue.here(MUSE_ATTENTION_CURRENT_DEVICE);
  const auto choose = [&](int64_t batch) {
    return *catalogue.choose({.batch = batch, .page_size = 16, .max_context = 4096}, kContext,
                             here);
  };
  const Chosen four = choose(4);
  EXPECT_EQ(key(*four.chain), kBasePipeline);
  EXPECT_EQ(four.choice.match, dispatch::Match::kNear);
  EXPECT_EQ(catalogue.why_text(four.choice),
            "the nearest measured shape is 1.00 doublings away; by the measured shapes around, "
            "this pipeline is expected to lose about 15.0 % against the best");
}

// A table of another device is used by one documented rule, and never as if it were of this one.
TEST(RuntimeChoice, NeverTakesTheTableOfAnotherDeviceForItsOwn) {
  const auto choice_of = [](const SmallTable& table) {
    Catalogue catalogue(table.linked);
    const Here& here = **catalogue.here(MUSE_ATTENTION_CURRENT_DEVICE);
    const Problem problem{.page_size = 16, .max_context = 4096};
    const Chosen chosen = *catalogue.choose(problem, kContext, here);
    return std::tuple(chosen.choice.guard, chosen.choice.match, key(*chosen.chain));
  };
  SmallTable other_capability;
  other_capability.device.host = false;
  other_capability.device.cc = 90;
  EXPECT_EQ(choice_of(other_capability),
            std::tuple(dispatch::Guard::kForeign, dispatch::Match::kBase, kBasePipeline));
  SmallTable other_label;
  other_label.device.model = "the same chip by another name";
  EXPECT_EQ(choice_of(other_label), std::tuple(dispatch::Guard::kNearDevice,
                                               dispatch::Match::kOtherDevice, kPhasedPipeline));
  for (const char* nothing : {"", static_cast<const char*>(nullptr)}) {
    SmallTable empty;
    empty.device.model = empty.device.isa = nothing;
    EXPECT_EQ(choice_of(empty),
              std::tuple(dispatch::Guard::kForeign, dispatch::Match::kBase, kBasePipeline));
  }
}

TEST(RuntimeChoice, SaysWhatATableNamesThatThisBuildLacks) {
  SmallTable table;
  const int only[1] = {0};
  const dispatch::PipelineInfo unknown[3] = {
      {"attention/unheard_of", 1, only}, {"gate/scalar", 1, only}, {"gate/scalar", 1, only}};
  table.linked.pipelines = unknown;
  Catalogue catalogue(table.linked);
  const Here& here = **catalogue.here(0);
  const auto chosen = catalogue.choose({.page_size = 16, .max_context = 4096}, kContext, here);
  ASSERT_FALSE(chosen);
  EXPECT_EQ(chosen.error().status, MUSE_ATTENTION_UNSUPPORTED);
  EXPECT_NE(chosen.error().what.find("unknown variant 'attention/unheard_of'"), std::string::npos)
      << chosen.error().what;
}

TEST(RuntimeArguments, RefusesNullPointers) {
  muse_attention_problem problem = measured_problem(1);
  muse_attention_plan* plan = nullptr;
  EXPECT_EQ(muse_attention_plan_create(nullptr, 1, 0, &plan), MUSE_ATTENTION_INVALID);
  EXPECT_EQ(muse_attention_plan_create(&problem, kContext, 0, nullptr), MUSE_ATTENTION_INVALID);
  muse_attention_plan_destroy(nullptr);
  muse_attention_problem_init(nullptr);
  EXPECT_EQ(muse_attention_workspace_bytes(nullptr), 0u);
  EXPECT_EQ(muse_attention_workspace_init(nullptr, nullptr, 0, nullptr), MUSE_ATTENTION_INVALID);
  muse_attention_explanation explanation = {.struct_bytes = sizeof explanation};
  EXPECT_EQ(muse_attention_explain(nullptr, &explanation), MUSE_ATTENTION_INVALID);
  ASSERT_EQ(muse_attention_plan_create(&problem, kContext, 0, &plan), MUSE_ATTENTION_OK);
  EXPECT_EQ(muse_attention_explain(plan, nullptr), MUSE_ATTENTION_INVALID);
  EXPECT_EQ(muse_attention_run(plan, nullptr, nullptr, 0, nullptr), MUSE_ATTENTION_INVALID);
  muse_attention_plan_destroy(plan);
}

TEST(RuntimeArguments, RefusesStructsOfAnotherSize) {
  Served served(uniform_shape(1, 64), 64);
  muse_attention_problem problem = measured_problem(1);
  muse_attention_buffers buffers = served.buffers();
  muse_attention_explanation explanation;
  for (const int64_t off : {-8, 8}) {
    problem.struct_bytes = sizeof problem + static_cast<size_t>(off);
    EXPECT_EQ(status_of(problem), MUSE_ATTENTION_INVALID);
    EXPECT_NE(std::string(muse_attention_last_error()).find("struct_bytes"), std::string::npos);
    buffers.struct_bytes = sizeof buffers + static_cast<size_t>(off);
    EXPECT_EQ(muse_attention_run(served.plan.get(), &buffers, served.workspace->get(),
                                 served.plan.workspace_bytes(), nullptr),
              MUSE_ATTENTION_INVALID);
    explanation.struct_bytes = sizeof explanation + static_cast<size_t>(off);
    EXPECT_EQ(muse_attention_explain(served.plan.get(), &explanation), MUSE_ATTENTION_INVALID);
  }
}

TEST(RuntimeArguments, RefusesSizesThatAreNone) {
  using Problem = muse_attention_problem;
  for (int64_t Problem::*field :
       {&Problem::batch, &Problem::q_len, &Problem::num_q_heads, &Problem::num_kv_heads,
        &Problem::head_dim, &Problem::page_size, &Problem::max_pages}) {
    for (const int64_t value : {int64_t{0}, int64_t{-1}, kSmallest, kLargest, kLargest / 2}) {
      Problem problem = measured_problem(1);
      problem.*field = value;
      EXPECT_EQ(status_of(problem), MUSE_ATTENTION_INVALID) << value;
    }
  }
  for (const int64_t window : {int64_t{-1}, kSmallest, kLargest}) {
    Problem problem = measured_problem(1);
    problem.window = window;
    EXPECT_EQ(status_of(problem), MUSE_ATTENTION_INVALID) << window;
  }
  for (const int64_t context : {int64_t{-1}, kSmallest, kLargest, int64_t{4097}}) {
    EXPECT_EQ(status_of(measured_problem(1), context), MUSE_ATTENTION_INVALID) << context;
  }
  Problem verify = measured_problem(1);
  verify.q_len = 8;
  EXPECT_EQ(status_of(verify, 7), MUSE_ATTENTION_INVALID);
  EXPECT_EQ(status_of(verify, 8), MUSE_ATTENTION_OK);
}

TEST(RuntimeArguments, RefusesScalesThatAreNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  using Problem = muse_attention_problem;
  for (double Problem::*field :
       {&Problem::rope_theta, &Problem::qk_scale_factor, &Problem::sm_scale}) {
    for (const double value : {nan, infinity, -infinity, -1.0, 1e300}) {
      Problem problem = measured_problem(1);
      problem.*field = value;
      EXPECT_EQ(status_of(problem), MUSE_ATTENTION_INVALID) << value;
    }
  }
}

TEST(RuntimeArguments, RefusesAWorkspaceThatIsTooSmallOrNotAligned) {
  Served served(uniform_shape(2, 64), 64);
  const size_t needed = served.plan.workspace_bytes();
  Memory memory(needed + 256);
  const muse_attention_buffers buffers = served.buffers();
  const auto status = [&](std::byte* address, size_t bytes) {
    const muse_attention_status run =
        muse_attention_run(served.plan.get(), &buffers, address, bytes, nullptr);
    EXPECT_EQ(run, muse_attention_workspace_init(served.plan.get(), address, bytes, nullptr));
    return run;
  };
  EXPECT_EQ(status(memory.get(), needed), MUSE_ATTENTION_OK);
  EXPECT_EQ(status(memory.get(), needed - 1), MUSE_ATTENTION_WORKSPACE);
  EXPECT_EQ(status(memory.get() + 128, needed + 128), MUSE_ATTENTION_WORKSPACE);
  EXPECT_NE(std::string(muse_attention_last_error()).find("not aligned to 256"), std::string::npos);
  EXPECT_EQ(status(nullptr, needed), MUSE_ATTENTION_WORKSPACE);
}

TEST(RuntimeArguments, RefusesBuffersThatAreMissingOrNotAligned) {
  Served served(uniform_shape(1, 64, "l1", "h16x2_d64_ps16", "w32_rope500000_kv1"), 64);
  const auto status = [&](const muse_attention_buffers& buffers) {
    return muse_attention_run(served.plan.get(), &buffers, served.workspace->get(),
                              served.plan.workspace_bytes(), nullptr);
  };
  const muse_attention_buffers good = served.buffers();
  // All members but the first are pointers.
  const size_t pointers = sizeof good / sizeof(void*) - 1;
  EXPECT_EQ(status(good), MUSE_ATTENTION_OK);
  for (size_t i = 1; i <= pointers; ++i) {
    for (const uintptr_t address : {uintptr_t{0}, uintptr_t{0x1002}}) {
      muse_attention_buffers bad = good;
      std::memcpy(reinterpret_cast<std::byte*>(&bad) + i * sizeof(void*), &address, sizeof address);
      EXPECT_EQ(status(bad), MUSE_ATTENTION_INVALID) << i << ' ' << address;
    }
  }
}

TEST(RuntimeArguments, NeedsNeitherPositionsNorAnglesWithoutRope) {
  Served served(uniform_shape(1, 64), 64);
  muse_attention_buffers buffers = served.buffers();
  buffers.positions = nullptr;
  buffers.cos_sin = nullptr;
  EXPECT_EQ(muse_attention_run(served.plan.get(), &buffers, served.workspace->get(),
                               served.plan.workspace_bytes(), nullptr),
            MUSE_ATTENTION_OK)
      << muse_attention_last_error();
  EXPECT_EQ(served.failure(), "");
}

TEST(RuntimeTexts, NameLibraryTableAndEveryStatus) {
  const std::string version = muse_attention_version();
  const DeviceClass here = host_device_class();
  EXPECT_NE(version.find(", ABI 1, table of " + here.model + " (" + here.isa + "), "),
            std::string::npos)
      << version;
  EXPECT_NE(version.find("2030-01-02T03:04:05Z"), std::string::npos) << version;
  EXPECT_EQ(muse_attention_abi(), MUSE_ATTENTION_ABI);
  std::set<std::string> texts;
  for (int status = MUSE_ATTENTION_OK; status <= MUSE_ATTENTION_INTERNAL; ++status) {
    texts.insert(muse_attention_status_text(static_cast<muse_attention_status>(status)));
  }
  EXPECT_EQ(texts.size(), 7u);
  EXPECT_EQ(texts.count("unknown status"), 0u);
  EXPECT_STREQ(muse_attention_status_text(static_cast<muse_attention_status>(7)), "unknown status");
}

}  // namespace
}  // namespace muse::runtime
