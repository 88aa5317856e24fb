// SPDX-License-Identifier: Apache-2.0
// What muse-bench --decode makes of figures: pieces of a gather, cases of a database, verdicts.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/bench/decode_cases.h"
#include "tests/bench/decode_table.h"
#include "tests/bench/gather_pieces.h"
#include "tests/bench/seed_figures.h"
#include "tests/bench/seed_pipeline.h"
#include "tests/db/support.h"
#include "tuner/plan.h"
#include "tuner/spec.h"

namespace muse::bench {
namespace {

const std::string kSource = MUSE_SOURCE_DIR;

/// How often each token of each request is in a piece.
std::map<std::pair<int64_t, int64_t>, int> covered(const std::vector<GatherPiece>& pieces) {
  std::map<std::pair<int64_t, int64_t>, int> times;
  for (const GatherPiece& piece : pieces) {
    for (int32_t t = 0; t < piece.count; ++t) ++times[{piece.request, piece.first + t}];
  }
  return times;
}

TEST(GatherPieces, HoldEveryAttendedTokenOnceAndNoOther) {
  for (const int64_t window : {0, 1, 2, 100, 2048}) {
    for (const int64_t blocks : {1, 7, 132, 1056}) {
      const std::vector<int64_t> contexts{1, 2, 31, 33, 999, 4097};
      const std::vector<TokenRange> ranges = attended(contexts, 1, window);
      const auto times = covered(cut(ranges, blocks, 32));
      for (const auto& [token, count] : times) EXPECT_EQ(count, 1);
      ASSERT_EQ(static_cast<int64_t>(times.size()), tokens(ranges));
      for (size_t b = 0; b < contexts.size(); ++b) {
        const int64_t context = contexts[b];
        const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, context - window);
        EXPECT_TRUE(times.contains({b, first})) << context << " " << window;
        EXPECT_TRUE(times.contains({b, context - 1}));
      }
    }
  }
}

TEST(GatherPieces, OfSeveralQueriesBeginWhereTheFirstOneSees) {
  EXPECT_EQ(attended({100}, 8, 16).front().first, 100 - 8 + 1 - 16);
  EXPECT_EQ(attended({100}, 8, 0).front().count(), 100);
}

TEST(GatherPieces, AreNoMoreThanTheChipHoldsAndEqualWhereTheRequestsAre) {
  const auto pieces = cut(attended(std::vector<int64_t>(128, 32768), 1, 0), 1056, 32);
  EXPECT_EQ(pieces.size(), 1024u);
  for (const GatherPiece& piece : pieces) EXPECT_EQ(piece.count, 4096);
}

TEST(GatherPieces, GiveALongRequestAmongShortOnesItsShare) {
  std::vector<int64_t> contexts(128, 512);
  contexts.front() = 131072;
  const auto pieces = cut(attended(contexts, 1, 0), 1056, 32);
  EXPECT_LE(pieces.size(), 1056u);
  for (const GatherPiece& piece : pieces) EXPECT_LE(piece.count, 256);
}

TEST(GatherPieces, AreNoSmallerThanWhatABlockReadsAtOnce) {
  EXPECT_EQ(cut(attended({2048}, 1, 0), 1056, 32).size(), 64u);
  EXPECT_TRUE(cut({{5, 5}}, 1056, 32).empty());
}

TEST(SeedFigures, AreThoseThatArePublished) {
  const std::vector<SeedFigure> figures = parse_seed_figures(kSeedPipeline);
  EXPECT_EQ(figures.size(), 32u);
  const auto shape = parse_shape("b128_l1_h16x2_d64_ps1_w0_rope0_kv1_t32768_uniform_random_s1");
  ASSERT_TRUE(shape);
  EXPECT_EQ(seed_us(figures, *shape), 720.86);
  Shape paged = *shape, ragged = *shape;
  paged.problem.page_size = 64;
  ragged.lengths.profile = Profile::kOutlier;
  EXPECT_FALSE(seed_us(figures, paged));
  EXPECT_FALSE(seed_us(figures, ragged));
}

TEST(SeedFigures, NameTheLineThatIsNone) {
  const auto error = [](const std::string& text) -> std::string {
    try {
      parse_seed_figures(text);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  const std::string head = "B,L,window,ctx,page_size,total_us\n";
  EXPECT_EQ(error(head + "1,1,0,4096,1,20\n1,1,0,4096,1,fast\n"),
            "line 3: total_us is 'fast', no number");
  EXPECT_EQ(error(head + "1,1,0,4096,1\n"), "line 2: 5 cells");
  EXPECT_EQ(error("B,L\n1,1\n"), "line 2: no column window");
  EXPECT_EQ(error(head), "line 1: no row below it");
}

/// Every shape of decode.yaml with figures that meet every target, if only just.
DecodeFigures just_met() {
  DecodeFigures figures{
      .device = "card", .null_us = 10, .read_us = kSeedReadUs, .seed_shapes = 16, .shapes = {}};
  const auto spec = tuner::load_spec(kSource + "/configs/decode.yaml", Registry::global());
  if (!spec) throw std::runtime_error(spec.error().front().text());
  const auto seed =
      parse_seed_figures(db::read_file(kSource + "/reports/published/peer/seed_pipeline_h200.csv"));
  for (const tuner::ShapeEntry& entry : spec->shapes) {
    ShapeFigures f;
    f.shape = entry.shape;
    f.pipeline = f.unknown_context = Timed{"chosen", 20};
    f.gather = Timed{"gather", 96};
    f.attention = Timed{"attention", 98.6};
    f.complete = Timed{"complete", 100};
    if (seed_us(seed, f.shape)) f.seed_us = 2.71 * 20;
    f.spill_bytes = 0;
    figures.shapes.push_back(f);
  }
  return figures;
}

std::vector<std::string> lines_that_are(Verdict verdict, const DecodeFigures& figures) {
  std::vector<std::string> found;
  for (const Line& line : decode_lines(figures)) {
    if (line.verdict == verdict) found.push_back(line.what);
  }
  return found;
}

ShapeFigures& at(DecodeFigures& figures, const std::string& shape_key) {
  for (ShapeFigures& f : figures.shapes) {
    if (key(f.shape) == shape_key) return f;
  }
  throw std::runtime_error(shape_key);
}

TEST(DecodeLines, AreAllMetWhereEveryShapeOfTheConfigIsFastEnough) {
  const DecodeFigures figures = just_met();
  EXPECT_EQ(lines_that_are(Verdict::kMet, figures).size(), decode_lines(figures).size());
  EXPECT_EQ(decode_lines(figures).size(), 12u);
}

TEST(DecodeLines, AreNotMeasuredWhereAShapeIsMissing) {
  const DecodeFigures all = just_met();
  EXPECT_EQ(lines_that_are(Verdict::kNotMeasured, {}).size(), 12u);
  // Each shape of the config is there for some line.
  for (size_t i = 0; i < all.shapes.size(); ++i) {
    DecodeFigures fewer = all;
    fewer.shapes[i].pipeline = fewer.shapes[i].complete = fewer.shapes[i].unknown_context = {};
    EXPECT_FALSE(lines_that_are(Verdict::kNotMeasured, fewer).empty()) << key(all.shapes[i].shape);
  }
}

TEST(DecodeLines, AreMissedEachByWhatItIsAbout) {
  const std::string kLong = "b128_l1_h16x2_d64_ps1_w0_rope0_kv1_t32768_uniform_random_s1";
  const std::string kPaged = "b8_l1_h16x2_d64_ps64_w0_rope0_kv1_t4096_uniform_random_s1";
  const std::string kSmall = "b4_l1_h16x2_d64_ps1_w2048_rope500000_kv1_t2048_uniform_random_s1";
  const std::string kEnd = "b1_l1_h16x2_d64_ps1_w2048_rope500000_kv1_t131072_uniform_random_s1";
  const std::string kRagged = "b128_l1_h16x2_d64_ps1_w0_rope0_kv1_t131072_outlier512_random_s1";
  const auto missed = [](const std::string& shape, const auto& change) {
    DecodeFigures figures = just_met();
    change(at(figures, shape));
    return lines_that_are(Verdict::kMissed, figures);
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(missed(kLong, [](ShapeFigures& f) { f.complete->us = 102; }),
            Names{"attention, complete, against the gather, 1 GB of KV"});
  EXPECT_EQ(missed(kPaged, [](ShapeFigures& f) { f.pipeline->us = 20.2; }),
            Names{"page_size 64 to page_size 1, whole pipeline, worst"});
  EXPECT_EQ(missed(kSmall, [](ShapeFigures& f) { f.complete->us = 100.2; }),
            Names{"combine's share at B 1, 2, 4, 8, context 2048, worst"});
  EXPECT_EQ(missed(kEnd, [](ShapeFigures& f) { f.pipeline->us = 21.1; }),
            Names{"B 1, window 2048, context 131072 to 2048, whole pipeline"});
  EXPECT_EQ(missed(kRagged, [](ShapeFigures& f) { f.complete->us = 121; }),
            Names{"attention, complete, against the gather, 131072 among 127 of 512"});
  EXPECT_EQ(missed(kRagged, [](ShapeFigures& f) { f.spill_bytes = 8; }),
            Names{"spills in kernels of chosen pipelines, worst"});
  EXPECT_EQ(missed(kLong, [](ShapeFigures& f) { f.seed_us = 1.99 * 20; }),
            (Names{"whole pipeline against the seed's, geometric mean",
                   "whole pipeline against the seed's, worst"}));
}

TEST(DecodeLines, NameTheShapeThatDecides) {
  DecodeFigures figures = just_met();
  const std::string slow = "b1_l1_h16x2_d64_ps1_w2048_rope500000_kv1_t32768_uniform_random_s1";
  at(figures, slow).pipeline->us = 30;
  for (const Line& line : decode_lines(figures)) {
    if (line.what != "B 1, window 2048, whole pipeline to the null graph") continue;
    EXPECT_EQ(line.of, slow);
    EXPECT_DOUBLE_EQ(*line.figure, 3);
    EXPECT_EQ(line.verdict, Verdict::kMissed);
  }
}

TEST(DecodeText, SaysTheSameInBothFormats) {
  const DecodeFigures figures = just_met();
  const std::string markdown = decode_markdown(figures);
  EXPECT_NE(markdown.find("| whole pipeline against the seed's, geometric mean | 2.7 times | 2.710 "
                          "| met | 16 of 16 shapes |"),
            std::string::npos)
      << markdown;
  EXPECT_NE(markdown.find("| 95 % | 96.0 % | met |"), std::string::npos);
  const auto json = nlohmann::json::parse(decode_json(figures));
  EXPECT_EQ(json["lines"].size(), 12u);
  EXPECT_EQ(json["lines"][0]["verdict"], "met");
  EXPECT_EQ(json["shapes"].size(), 38u);
  EXPECT_EQ(json["shapes"][0]["gather"]["us"], 96);
  const auto nothing = nlohmann::json::parse(decode_json({}));
  EXPECT_TRUE(nothing["lines"][0]["figure"].is_null());
  EXPECT_EQ(nothing["lines"][0]["verdict"], "not measured");
}

/// A run that has chosen, on a GPU or the host, one pipeline and more for one problem.
class Chosen {
 public:
  explicit Chosen(db::Store& store, const std::string& base) : store_(store) {
    db::RunRow run;
    device_ = run.device_id = store.upsert(db::DeviceRow{});
    run.build_id = store.upsert(db::BuildRow{});
    run.base = base;
    run.status = "complete";
    run.environment = "{}";
    run_ = store.insert(run);
  }
  void choose(const std::string& problem, const std::string& span, const std::string& candidate,
              const std::string& handoff = "", const std::string& regime = "cold") {
    db::CandidateRow row;
    row.key = candidate;
    row.span = span;
    db::TrialKey key;
    key.device_id = device_;
    key.candidate_id = store_.upsert(row);
    key.handoff_in = handoff;
    key.problem_id = store_.upsert(db::ProblemRow{.id = 0, .key = problem, .fields = "{}"});
    key.regime = regime;
    db::SelectionRow selection;
    selection.run_id = run_;
    selection.problem_id = key.problem_id;
    selection.span = span;
    selection.handoff_in = handoff;
    selection.regime = regime;
    selection.trial_id = store_.trial(key, run_, false).id;
    selection.tie_set = "[]";
    selection.status = "winner";
    store_.upsert(selection);
  }

 private:
  db::Store& store_;
  db::Id run_ = 0, device_ = 0;
};

const std::string kShape = "b8_l1_h16x2_d64_ps1_w0_rope0_kv1_t4096_uniform_random_s1";

std::vector<std::string> keys(const std::vector<Chain>& chains) {
  std::vector<std::string> all;
  for (const Chain& chain : chains) all.push_back(key(chain));
  return all;
}

TEST(DecodeCases, ComposeWhatIsToBeTimedFromWhatWasChosen) {
  const auto base = tuner::default_base(TargetKind::kCuda, Registry::global());
  ASSERT_TRUE(base);
  const std::string prepare = key((*base)[0]), attention = key((*base)[1]),
                    combine = key((*base)[2]);
  const db::TempFolder folder;
  auto store = db::Store::open(folder / "a.db", db::Open::kCreate);
  Chosen older(store, "nothing known"), run(store, key(*base));
  older.choose(kShape, "prepare..gate", "nothing known");
  run.choose(kShape, "prepare..gate", key(*base) + " + pdl");
  run.choose(kShape, "attention", attention);
  run.choose(kShape, "combine..gate", combine, "partials_f32_s16");
  run.choose(kShape, "attention", "only/warm", "", "warm");
  run.choose("b8_l8_h16x2_d64_ps1_w0_rope0_kv1_t4096_uniform_random_s1", "prepare..gate",
             key(*base));
  const DecodeCases found = decode_cases(store, Registry::global());
  EXPECT_EQ(found.left_out, std::vector<std::string>{});
  ASSERT_EQ(found.cases.size(), 1u);
  const DecodeCase& one = found.cases.front();
  EXPECT_EQ(key(one.shape), kShape);
  EXPECT_EQ(key(one.pipeline), key(*base) + " + pdl");
  EXPECT_EQ(keys(one.attention), std::vector<std::string>{attention});
  const std::string tail = attention + " + " + combine;
  std::vector<std::string> complete{tail, tail + " + pdl", key(*base), key(*base) + " + pdl"};
  std::sort(complete.begin(), complete.end());
  EXPECT_EQ(keys(one.complete), complete);
}

TEST(DecodeCases, LeaveOutWhatThisBinaryDoesNotKnowAndWhatRanOnTheHost) {
  const auto host = tuner::default_base(TargetKind::kHost, Registry::global());
  ASSERT_TRUE(host);
  const db::TempFolder folder;
  auto store = db::Store::open(folder / "a.db", db::Open::kCreate);
  Chosen run(store, key(*host));
  run.choose(kShape, "prepare..gate", key(*host));
  run.choose("b1_l1_h16x2_d64_ps1_w0_rope0_kv1_t4096_uniform_random_s1", "prepare..gate",
             "attention/gone");
  const DecodeCases found = decode_cases(store, Registry::global());
  EXPECT_TRUE(found.cases.empty());
  ASSERT_EQ(found.left_out.size(), 1u);
  EXPECT_NE(found.left_out.front().find("attention/gone"), std::string::npos);
}

TEST(DecodeCases, AreGroupedByAllButTheContext) {
  std::vector<DecodeCase> cases;
  for (const char* text : {"b1_l1_h16x2_d64_ps1_w0_rope0_kv1_t4096_uniform_random_s1",
                           "b1_l1_h16x2_d64_ps1_w0_rope0_kv1_t32768_uniform_random_s1",
                           "b1_l1_h16x2_d64_ps64_w0_rope0_kv1_t4096_uniform_random_s1",
                           "b8_l1_h16x2_d64_ps1_w0_rope0_kv1_t4096_uniform_random_s1",
                           "b2_l1_h16x2_d64_ps1_w0_rope0_kv1_t4096_outlier512_random_s1"}) {
    const auto shape = parse_shape(text);
    ASSERT_TRUE(shape) << text;
    cases.push_back({.shape = *shape, .base = {}, .pipeline = {}, .attention = {}, .complete = {}});
  }
  EXPECT_EQ(by_context(cases), (std::vector<std::vector<size_t>>{{0, 1}, {2}, {3}}));
}

}  // namespace
}  // namespace muse::bench
