// SPDX-License-Identifier: Apache-2.0
// What the tables lose on shapes that they were not made of, from known times.
#include "tuner/held_out.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/fakes/command.h"
#include "tests/tuner/stored_sweep.h"

namespace muse::tuner {
namespace {

using dispatch::Guard;
using dispatch::Match;

/// A table of four shapes, one of them windowed; each of its pipelines has a name that says what
/// for.
DispatchTable tuned() {
  const std::vector<MeasuredShape> shapes{
      measured(shape(1, 1000), "short", {{"base", 200}, {"short", 100}, {"long", 150}}),
      measured(shape(1, 8000), "long", {{"base", 900}, {"short", 800}, {"long", 500}}),
      measured(shape(4, 1000), "many", {{"base", 400}, {"short", 390}, {"many", 200}}),
      measured(shape(1, 8000, 2048), "window", {{"base", 300}, {"window", 100}})};
  DispatchTable table;
  table.base = "base";
  table.rules = dispatch_rules({{"batch", "log2"}, {"context", "log2"}}, 1.6);
  fill_rows(table, shapes, std::nullopt);
  return table;
}

const std::vector<MeasuredShape> kHeldOut{
    measured(shape(1, 1000), "short", {{"base", 200}, {"short", 100}}),
    measured(shape(1, 5000), "short", {{"base", 800}, {"short", 400}, {"long", 500}}),
    measured(shape(64, 1000), "new", {{"base", 600}, {"new", 300}}),
    measured(shape(3, 1000), "short", {{"base", 310}, {"short", 300}}),
    // As far back as the window sees: found exactly though the context is another one.
    measured(shape(1, 5000, 2048), "base", {{"base", 100}, {"window", 125}})};

const HeldOutShape& of_shape(const std::vector<HeldOutShape>& shapes, const Shape& wanted) {
  return *std::find_if(shapes.begin(), shapes.end(),
                       [&](const HeldOutShape& one) { return one.shape == key(wanted); });
}

TEST(HeldOut, EachShapeIsLookedUpAndHeldAgainstItsBest) {
  const HeldOut result = held_out(tuned(), kHeldOut, Guard::kTuned);
  ASSERT_EQ(result.shapes.size(), 5u);
  const auto eager = [&](const Shape& s) { return of_shape(result.shapes, s); };
  EXPECT_EQ(eager(shape(1, 1000)).match, Match::kExact);
  EXPECT_EQ(regret(eager(shape(1, 1000))), 0);

  const HeldOutShape near = eager(shape(1, 5000));
  EXPECT_EQ(near.match, Match::kNear);
  EXPECT_NEAR(near.distance, std::log2(8.0 / 5), 1e-3);
  EXPECT_EQ(near.pick, "long") << "5000 is nearer to 8000 than to 1000";
  EXPECT_EQ(near.best, "short");
  EXPECT_EQ(near.best_ns, 400);
  EXPECT_NEAR(*regret(near), 0.25, 1e-12);

  const HeldOutShape base = eager(shape(64, 1000));
  EXPECT_EQ(base.match, Match::kBase);
  EXPECT_EQ(base.pick, "base");
  EXPECT_NEAR(*regret(base), 1, 1e-12);

  const HeldOutShape unmeasured = eager(shape(3, 1000));
  EXPECT_EQ(unmeasured.match, Match::kNear);
  EXPECT_EQ(unmeasured.pick, "many");
  EXPECT_EQ(regret(unmeasured), std::nullopt) << "never guessed";

  const HeldOutShape windowed = eager(shape(1, 5000, 2048));
  EXPECT_EQ(windowed.match, Match::kExact);
  EXPECT_EQ(windowed.pick, "window");
  EXPECT_NEAR(*regret(windowed), 0.25, 1e-12);
}

TEST(HeldOut, TheSumsAreOfWhatWasMeasured) {
  const HeldOut result = held_out(tuned(), kHeldOut, Guard::kTuned);
  const HeldOutSummary eager = summary(result.shapes);
  EXPECT_EQ(eager.shapes, 5);
  EXPECT_EQ(eager.measured, 4);
  EXPECT_EQ(eager.exact, 2);
  EXPECT_EQ(eager.near, 2);
  EXPECT_EQ(eager.base, 1);
  EXPECT_EQ(eager.unmeasured, std::vector<std::string>{key(shape(3, 1000))});
  EXPECT_NEAR(eager.regret->worst, 1, 1e-12);
  EXPECT_NEAR(eager.regret->mean, std::pow(1.25 * 1.25 * 2, 0.25) - 1, 1e-12);
  EXPECT_EQ(eager.worst, key(shape(64, 1000)));

  // Without context: batch 1 has "long" (50 % of 100 and none of 500), batch 3 is near 4.
  const HeldOutSummary captured = summary(result.captured);
  EXPECT_EQ(captured.shapes, 5);
  EXPECT_EQ(captured.exact, 3);
  EXPECT_EQ(of_shape(result.captured, shape(1, 1000)).pick, "long");
  EXPECT_EQ(captured.measured, 3) << "nor was \"long\" measured on the first";
  EXPECT_NEAR(captured.regret->mean, std::cbrt(1.25 * 1.25 * 2) - 1, 1e-12);
}

TEST(HeldOut, WhereNothingWasMeasuredNoRegretIsKnown) {
  const HeldOutSummary nothing = summary(
      held_out(tuned(), {measured(shape(3, 1000), "base", {{"base", 310}})}, Guard::kTuned).shapes);
  EXPECT_EQ(nothing.shapes, 1);
  EXPECT_EQ(nothing.measured, 0);
  EXPECT_FALSE(nothing.regret);
  EXPECT_EQ(nothing.worst, "");
}

TEST(HeldOut, MakesNoRow) {
  DispatchTable table = tuned();
  const std::string before = dispatch_header(table);
  table.held_out = held_out(table, kHeldOut, Guard::kTuned);
  const std::string after = dispatch_header(table);
  EXPECT_EQ(before.find("HeldOut"), std::string::npos);
  const auto rows = [](const std::string& text) {
    return text.substr(text.find("kCandidateCount"));
  };
  EXPECT_EQ(rows(before), rows(after));
}

// --- emit --heldout ---------------------------------------------------------------------------

/// A table of one shape in a database, held against others.
class EmitHeldOut : public testing::Test, protected StoredSweep {
 protected:
  EmitHeldOut() { measure(shape(2, 64), {kFast, kBase}); }
  fakes::CommandResult emit(const std::string& held_out, std::vector<std::string> more = {}) const {
    std::vector<std::string> words{MUSE_TUNE, "emit", "--db",      file(),
                                   "--out",   out(),  "--heldout", held_out};
    words.insert(words.end(), more.begin(), more.end());
    return fakes::run_command(words);
  }
  std::string out() const { return (folder_ / "out").string(); }
  void expect_refused(const std::string& held_out, int code,
                      const std::vector<std::string>& parts) const {
    const fakes::CommandResult result = emit(held_out);
    EXPECT_EQ(result.exit_code, code) << result.err;
    for (const std::string& part : parts) {
      EXPECT_NE(result.err.find(part), std::string::npos) << part << " not in " << result.err;
    }
    EXPECT_FALSE(std::filesystem::exists(out())) << "no file was touched";
  }
};

TEST_F(EmitHeldOut, SaysWhatTheTablesLoseOnTheShapesOfAnotherSweep) {
  StoredSweep other;
  other.measure(shape(2, 64), {kFast, kBase});
  other.measure(shape(4, 64), {kBase, kFast});   // near: 2.0 us for 1.0
  other.measure(shape(3, 64), {kBase});          // near, not measured
  other.measure(shape(64, 64), {kFast, kBase});  // too far
  const fakes::CommandResult result = emit(other.file());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string loss =
      "regret 99.70 % at worst (" + key(shape(4, 64)) + "), 58.58 % in the mean";
  for (const char* table : {"rows with context", "one choice for every context"}) {
    for (const std::string& line :
         {": 4 shapes, 1 exact, 2 near, 1 by default; 3 measured, " + loss,
          ": 1 not measured, as what the table picks was not raced on them: " +
              key(shape(3, 64))}) {
      EXPECT_NE(result.err.find("held out, " + (table + line) + "\n"), std::string::npos)
          << table << line << " not in " << result.err;
    }
  }
  const std::string header = fakes::read_file(folder_ / "out" / "muse_dispatch.h");
  for (const char* line : {"int kHeldOutShapes = 4;", "int kHeldOutMeasured = 3;",
                           "double kCapturedHeldOutRegretPctWorst = 99.7", "int kRowCount = 1;"}) {
    EXPECT_NE(header.find(line), std::string::npos) << line;
  }
  const auto evidence =
      nlohmann::json::parse(fakes::read_file(folder_ / "out" / "muse_dispatch.json"));
  EXPECT_EQ(evidence["held_out"]["provenance"]["database"], other.file());
  EXPECT_EQ(evidence["held_out"]["entries"]["lookups"].size(), 4u);
  const auto counts = nlohmann::json::parse(emit(other.file(), {"--json"}).out)["held_out"];
  EXPECT_EQ(counts["captured"]["measured"], 3);
  EXPECT_EQ(counts["entries"]["worst_shape"], key(shape(4, 64)));
}

TEST_F(EmitHeldOut, NamesFiveOfTheShapesThatWereNotMeasured) {
  StoredSweep other;
  for (int64_t context = 60; context < 67; ++context) other.measure(shape(3, context), {kBase});
  const fakes::CommandResult result = emit(other.file());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("0 measured, no regret is known"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(key(shape(3, 64)) + " and 2 more\n"), std::string::npos) << result.err;
}

TEST_F(EmitHeldOut, SaysWherePicksWereOtherCodeThere) {
  StoredSweep other;
  const db::Id fast = other.trial(kFast, "a+b+c");
  other.race({fast});
  other.select(fast);
  const fakes::CommandResult result = emit(other.file());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("warning: held out: other sources or another compiler there: " + kFast),
            std::string::npos)
      << result.err;
}

TEST_F(EmitHeldOut, RefusesWhatCannotBeHeldAgainstTheTables) {
  expect_refused(file(), 2, {"the database the tables are made of"});
  const std::string link = (folder_ / "link.db").string();
  std::filesystem::create_symlink(file(), link);
  expect_refused(link, 2, {"the database the tables are made of"});
  expect_refused((folder_ / "none.db").string(), 3, {"none.db"});
  StoredSweep device("another CPU"), protocol("a CPU", "two"), empty;
  device.measure(shape(4, 64), {kFast});
  expect_refused(device.file(), 7, {"another device class (another CPU, avx2, 8 CPUs", "(a CPU, "});
  protocol.measure(shape(4, 64), {kFast});
  expect_refused(protocol.file(), 7, {"another protocol (two, timer host)", "(one, timer host)"});
  expect_refused(empty.file(), 4, {"no whole pipeline", "regime cold"});
}

}  // namespace
}  // namespace muse::tuner
