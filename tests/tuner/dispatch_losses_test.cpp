// SPDX-License-Identifier: Apache-2.0
// Between the rows of a table: what pipelines lose around a key decides, not the nearest row alone.
#include "tuner/dispatch_losses.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/fakes/command.h"
#include "tests/tuner/stored_sweep.h"
#include "tuner/dispatch_file.h"
#include "tuner/dispatch_index.h"
#include "tuner/held_out.h"

namespace muse::tuner {
namespace {

using dispatch::Choice;
using dispatch::Guard;
using dispatch::Key;
using dispatch::Match;
using dispatch::Pipeline;
using dispatch::Why;

Key key_of(int64_t batch, int64_t context) {
  Key key;
  key.batch = batch;
  key.context = context;
  return key;
}

struct MadeRow {
  int64_t batch, context;
  int pipeline;
  RowLosses losses;
};

/// A table of made-up rows, near up to 1.6 doublings away.
class Made {
 public:
  explicit Made(const std::vector<MadeRow>& made) {
    std::vector<dispatch::Row> rows;
    std::vector<RowLosses> losses;
    for (const MadeRow& one : made) {
      dispatch::Row row{};
      row.key = key_of(one.batch, one.context);
      row.pipeline = static_cast<Pipeline>(one.pipeline);
      row.regret_pct = 0.25;
      row.status = row.shape = row.date = "";
      rows.push_back(row);
      losses.push_back(one.losses);
    }
    index_ = index_rows(rows, true, losses);
  }
  template <class Feasible = dispatch::Anything>
  Choice find(const Key& key, const Feasible& feasible = {}) const {
    return dispatch::find(index_.table(), rules_, key, Guard::kTuned, feasible);
  }
  Choice without(const Key& key, std::vector<int> refused, std::vector<int>& asked) const {
    return find(key, [&](Pipeline p) noexcept {
      asked.push_back(static_cast<int>(p));
      return std::find(refused.begin(), refused.end(), static_cast<int>(p)) == refused.end();
    });
  }

 private:
  DispatchIndex index_;
  dispatch::Rules rules_ = dispatch_rules({{"batch", "log2"}, {"context", "log2"}}, 1.6);
};

int number(const Choice& choice) { return static_cast<int>(choice.pipeline); }

/// Four rows, each with a pipeline that loses half its time on the others; the fifth loses two to
/// five percent everywhere; the base twice the best time.
const std::vector<MadeRow> kCell{
    {4, 4096, 1, {{0, 10000}, {1, 0}, {2, 5000}, {3, 5000}, {4, 5000}, {5, 200}}},
    {4, 16384, 2, {{0, 10000}, {1, 5000}, {2, 0}, {3, 5000}, {4, 5000}, {5, 300}}},
    {16, 4096, 3, {{0, 10000}, {1, 5000}, {2, 5000}, {3, 0}, {4, 5000}, {5, 400}}},
    {16, 16384, 4, {{0, 10000}, {1, 5000}, {2, 5000}, {3, 5000}, {4, 0}, {5, 500}}}};

TEST(BetweenRows, WhatLosesLeastAroundAnswersAndTheNearestRowIsTold) {
  const Made table(kCell);
  const Choice exact = table.find(key_of(4, 16384));
  EXPECT_EQ(exact.match, Match::kExact);
  EXPECT_EQ(number(exact), 2);
  EXPECT_EQ(exact.expected_loss_pct, 0.25) << "the row's own regret";
  const Choice between = table.find(key_of(7, 7000));
  EXPECT_EQ(between.match, Match::kNear);
  EXPECT_EQ(between.why, Why::kMeasured);
  EXPECT_EQ(number(between), 5);
  EXPECT_EQ(between.row->key.batch, 4);
  EXPECT_EQ(between.row->key.context, 4096);
  EXPECT_NEAR(between.distance, std::log2(7.0 / 4) + std::log2(7000.0 / 4096), 1e-4);
  EXPECT_GT(between.expected_loss_pct, 2);
  EXPECT_LT(between.expected_loss_pct, 3.5) << "the mean of four, near ones counting more";
  EXPECT_EQ(table.find(key_of(4, 8192)).expected_loss_pct, 2.5) << "the mean of two as near";
  EXPECT_EQ(table.find(key_of(3, 3000)).expected_loss_pct, 0) << "one corner has a row";
  EXPECT_EQ(number(table.find(key_of(3, 3000))), 1);
}

TEST(BetweenRows, TheFarSideOfAGapCountsUpToTwiceTheLimit) {
  const auto of = [](int64_t batch) {
    return number(Made({{1, 4096, 1, {{1, 0}, {2, 3000}, {3, 100}}},
                        {batch, 4096, 2, {{1, 65534}, {2, 0}, {3, 100}}}})
                      .find(key_of(2, 4096)));
  };
  EXPECT_EQ(of(18), 3) << "3.17 doublings away";
  EXPECT_EQ(of(19), 1) << "3.25";
}

TEST(BetweenRows, AGapInWhatWasMeasuredCountsAsTheBasesLoss) {
  const auto with_base = [](uint16_t loss) {
    return Made({{4, 4096, 1, {{0, 9000}, {1, 0}, {2, 100}}}, {8, 4096, 2, {{0, loss}, {2, 0}}}})
        .find(key_of(5, 4096));
  };
  EXPECT_EQ(number(with_base(1)), 1);
  EXPECT_EQ(number(with_base(9000)), 2);
  // Nothing is known of what the first would lose.
  const Made none({{4, 4096, 1, {{1, 0}, {2, 6000}}}, {8, 4096, 2, {{2, 0}}}});
  EXPECT_EQ(number(none.find(key_of(5, 4096))), 2);
  // Of nobody.
  const Made nothing({{4, 4096, 1, {{1, 0}}}, {8, 4096, 2, {{2, 0}}}});
  const Choice nearest = nothing.find(key_of(5, 4096));
  EXPECT_EQ(number(nearest), 1);
  EXPECT_EQ(nearest.expected_loss_pct, -1);
  // The third was measured on neither.
  const Made elsewhere({{4, 4096, 1, {{0, 9000}, {1, 0}}},
                        {8, 4096, 1, {{0, 9000}, {1, 0}}},
                        {64, 4096, 3, {{0, 0}, {3, 0}}}});
  std::vector<int> asked;
  EXPECT_EQ(number(elsewhere.without(key_of(5, 4096), {0, 1, 3}, asked)), 0);
  EXPECT_EQ(asked, (std::vector<int>{1, 0}));
}

TEST(BetweenRows, OfEqualsTheNearestRowsOwnThenTheLowerNumber) {
  const RowLosses same{{1, 100}, {2, 100}, {3, 100}};
  const Made table({{4, 4096, 3, same}, {8, 4096, 2, same}});
  EXPECT_EQ(number(table.find(key_of(5, 4096))), 3);
  std::vector<int> asked;
  EXPECT_EQ(table.without(key_of(7, 4096), {1, 2, 3}, asked).why, Why::kInfeasible);
  EXPECT_EQ(asked, (std::vector<int>{2, 1, 3})) << "each once";
}

TEST(BetweenRows, WhatTheCallerRefusesIsAskedOnceInTheOrderOfLosses) {
  const Made table(kCell);
  std::vector<int> asked;
  const Choice second = table.without(key_of(5, 4500), {5}, asked);
  EXPECT_EQ(number(second), 1);
  EXPECT_EQ(asked, (std::vector<int>{5, 1}));
  asked.clear();
  const Choice row = table.without(key_of(4, 16384), {2}, asked);
  EXPECT_EQ(row.match, Match::kExact) << "it was measured under this key, too";
  EXPECT_EQ(number(row), 5);
  EXPECT_EQ(row.expected_loss_pct, 3);
  EXPECT_EQ(asked, (std::vector<int>{2, 5}));
  asked.clear();
  const Choice none = table.without(key_of(4, 16384), {0, 1, 2, 3, 4, 5}, asked);
  EXPECT_EQ(none.why, Why::kInfeasible);
  EXPECT_EQ(none.expected_loss_pct, -1);
  EXPECT_EQ(asked.size(), 6u);
}

TEST(BetweenRows, RefusesLossesOfOtherRows) {
  EXPECT_THROW(index_rows({}, true, {RowLosses{}}), std::invalid_argument);
}

// --- out of what was measured ------------------------------------------------------------------

/// "all" is never the fastest, and nearly so everywhere.
const std::vector<MeasuredShape> kMeasured{
    measured(shape(1, 1000), "short",
             {{"base", 900}, {"short", 100}, {"long", 150}, {"all", 103}, {"some", 101}}),
    measured(shape(4, 1000), "long", {{"base", 900}, {"short", 300}, {"long", 200}, {"all", 206}}),
    measured(shape(1, 64000), "short", {{"base", 90000}, {"short", 100}, {"all", 102}})};

DispatchTable filled(bool with_generalists,
                     const std::optional<std::vector<std::string>>& among = std::nullopt) {
  DispatchTable table;
  table.base = "base";
  table.rules = dispatch_rules({{"batch", "log2"}, {"context", "log2"}}, 1.6);
  fill_rows(table, kMeasured, among);
  fill_losses(table, kMeasured, with_generalists);
  return table;
}

TEST(Losses, AreThoseOfTheTablesPipelinesAgainstTheBestThatWasMeasured) {
  const DispatchTable table = filled(false);
  using Losses = std::map<std::string, uint16_t>;
  EXPECT_EQ(table.rows[0].losses, (Losses{{"base", 65534}, {"short", 0}, {"long", 5000}}));
  EXPECT_EQ(table.rows[1].losses, (Losses{{"base", 35000}, {"short", 5000}, {"long", 0}}));
  EXPECT_EQ(table.rows[2].losses, (Losses{{"base", 65534}, {"short", 0}})) << "as much as it holds";
  EXPECT_TRUE(generalists(table).empty());
}

TEST(Losses, AGeneralistJoinsWhereItSavesEnoughBetweenRows) {
  const DispatchTable table = filled(true);
  EXPECT_EQ(generalists(table), std::vector<std::string>{"all"});
  EXPECT_EQ(named_pipelines(table), (std::vector<std::string>{"base", "all", "long", "short"}));
  EXPECT_EQ(table.rows[0].losses.at("all"), 300);
  ASSERT_EQ(table.captured[0].over.size(), 2u);
  EXPECT_EQ(table.captured[0].losses.at("all"), 300) << "3 and 2 %: at worst";
  EXPECT_FALSE(table.captured[0].losses.contains("long")) << "not measured on both";
}

TEST(Losses, FewPipelinesStayFew) {
  const DispatchTable table = filled(false, std::vector<std::string>{"base", "short"});
  EXPECT_EQ(named_pipelines(table), (std::vector<std::string>{"base", "short"}));
  EXPECT_EQ(table.rows[1].losses.at("short"), 5000) << "against the best of all";
}

TEST(Losses, HeldOutShapesAreAnsweredByThem) {
  const std::vector<MeasuredShape> unseen{
      measured(shape(2, 1000), "all", {{"base", 900}, {"all", 150}, {"short", 170}})};
  EXPECT_EQ(held_out(filled(true), unseen, Guard::kTuned).shapes.front().pick, "all");
}

/// Two shapes, on each of which the other's winner is the slowest of four and one pipeline second.
class EmitBetween : public testing::Test, protected StoredSweep {
 protected:
  EmitBetween() {
    measure(shape(2, 64), {kFast, kSecond, kThird, kBase});
    measure(shape(8, 64), {kBase, kSecond, kThird, kFast});
  }
  fakes::CommandResult emit(std::vector<std::string> more = {}) const {
    std::vector<std::string> words{MUSE_TUNE, "emit", "--db", file(), "--out", out().string()};
    words.insert(words.end(), more.begin(), more.end());
    return fakes::run_command(words);
  }
  std::filesystem::path out() const { return folder_ / "out"; }
  std::string text(const char* name) const { return fakes::read_file(out() / name); }

  const std::string kSecond = "fused/phased:gate=1,threads=1";
  const std::string kThird = "fused/phased:gate=0,threads=1 + gate/scalar";
};

TEST_F(EmitBetween, CountsAndWritesPipelinesThatNoRowHasChosen) {
  const fakes::CommandResult result = emit();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("3 pipelines, the base among them\n"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("1 of the pipelines won on no shape"), std::string::npos) << result.err;
  EXPECT_EQ(nlohmann::json::parse(emit({"--json"}).out)["generalists"], 1);
  EXPECT_EQ(nlohmann::json::parse(text("muse_dispatch.json"))["generalists"],
            std::vector<std::string>{kSecond});
  const std::string header = text("muse_dispatch.h");
  EXPECT_NE(header.find("{\"fused/phased\", "), std::string::npos) << "held against the library";
  EXPECT_NE(header.find("X(fused, phased)"), std::string::npos) << "and linked";
  const auto file = parse_dispatch_json(text("muse_dispatch.json"));
  ASSERT_TRUE(file) << file.error();
  EXPECT_EQ(dispatch_header(file->table), header) << "the evidence has all of it";
}

TEST_F(EmitBetween, NoneWherePipelinesAreLimited) {
  const fakes::CommandResult result = emit({"--max-variants", "3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(text("muse_dispatch.json"))["generalists"].size(), 0u);
}

}  // namespace
}  // namespace muse::tuner
