// SPDX-License-Identifier: Apache-2.0
// Reports of databases made here: hostile text stays text, the policy's hashes hold, nothing is
// fetched, equal data gives equal bytes.
#include "reports/report.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "reports/html.h"
#include "reports/run_data.h"

namespace muse::reports {
namespace {

namespace fs = std::filesystem;

/// A database in a folder of its own, with one device, build and run.
class ReportTest : public testing::Test {
 protected:
  ReportTest()
      : folder_(make_folder()), store_(db::Store::open(folder_ / "t.db", db::Open::kCreate)) {
    device_.kind = "host";
    device_.uuid = "0000-1111";
    device_.name = "Fictional CPU";
    device_.model = "Fictional CPU";
    device_.isa = "avx2";
    device_.sm_count = 8;
    run_.command = "muse-tune sweep configs/quick.yaml";
    run_.config_path = "configs/quick.yaml";
    run_.config_text = "schema: 1\n";
    run_.timer = "host";
    run_.status = "complete";
    run_.base = kBase;
    run_.seed = 7;
    run_.started = "2030-01-02T03:04:05Z";
    run_.environment = R"({"load": 0.5})";
  }
  ~ReportTest() override { fs::remove_all(folder_); }

  static constexpr const char* kBase = "prepare/scalar + attention/scalar + gate/scalar";

  void start() {
    store_.transaction([&] {
      run_.device_id = device_id_ = store_.upsert(device_);
      run_.build_id =
          store_.upsert(db::BuildRow{0, "0.1.0", "abc", "GNU 12", "-O2", "Release", ""});
      id_ = store_.insert(run_);
    });
  }

  db::Id problem(const std::string& key) {
    db::ProblemRow row;
    row.key = key;
    row.fields = "{}";
    return store_.upsert(row);
  }

  /// A trial in `state`; measured in the given race where `ns` is not empty.
  db::Id trial(db::Id problem, const std::string& key, const std::string& span,
               const std::string& state, const std::string& reason = "") {
    db::CandidateRow candidate;
    candidate.key = key;
    candidate.span = span;
    candidate.pipeline = span == "prepare..gate";
    db::TrialKey trial;
    trial.device_id = device_id_;
    trial.code_hash = "c0de";
    trial.candidate_id = store_.upsert(candidate);
    trial.problem_id = problem;
    trial.regime = "cold";
    trial.protocol_hash = "p";
    const db::Id id = store_.trial(trial, id_, false).id;
    store_.set_trial(id, state, reason, 0, "2030-01-02T03:04:06Z");
    return id;
  }

  db::Id race(db::Id problem, const std::string& span,
              const std::vector<std::pair<db::Id, double>>& medians, const char* timer = "host") {
    db::RaceRow row;
    row.run_id = id_;
    row.problem_id = problem;
    row.span = span;
    row.regime = "cold";
    row.timer = timer;
    row.rules = R"({"max_rounds": 3})";
    row.seed = 1;
    row.step_ns = 20;
    row.status = "running";
    const db::Id race = store_.insert(row);
    for (int number = 0; number < 3; ++number) {
      db::RoundRow round;
      round.race_id = race;
      round.number = number;
      round.at = "2030-01-02T03:04:07Z";
      for (const auto& [id, median] : medians) {
        round.order.push_back(id);
        round.samples.push_back({id, {median + number - 1}});
      }
      store_.insert(round);
    }
    store_.finish_race(race, "complete");
    return race;
  }

  void select(db::Id problem, const std::string& span, db::Id winner, db::Id base, double median,
              double base_median, const std::string& status, const std::string& ties,
              const std::string& regime = "cold") {
    db::SelectionRow row;
    row.run_id = id_;
    row.problem_id = problem;
    row.span = span;
    row.regime = regime;
    row.trial_id = winner;
    row.base_trial_id = base;
    row.median_ns = median;
    row.low_ns = median * 0.995;
    row.high_ns = median * 1.005;
    row.base_median_ns = base_median;
    row.tie_set = ties;
    row.rule = "fastest";
    row.status = status;
    store_.upsert(row);
  }

  /// Two shapes with pipelines, one span, failures of two kinds. `name` is a candidate of them.
  void ordinary_run(const std::string& name = "attention/vector:tile_kv=64") {
    start();
    store_.transaction([&] {
      const std::string shapes[] = {
          "b1_l1_h16x2_d64_ps1_w2048_rope500000_kv1_t4096_uniform_random_s1",
          "b8_l1_h16x2_d64_ps1_w0_rope0_kv1_t32768_uniform_random_s1"};
      for (int i = 0; i < 2; ++i) {
        const db::Id p = problem(shapes[i]);
        const db::Id base = trial(p, kBase, "prepare..gate", "ok");
        const db::Id fast = trial(p, "fused/vector:tile_kv=128", "prepare..gate", "ok");
        race(p, "prepare..gate", {{base, 30000.0 * (i + 1)}, {fast, 20000.0}});
        select(p, "prepare..gate", fast, base, 20000, 30000.0 * (i + 1), "winner",
               R"(["fused/vector:tile_kv=128"])");
        const db::Id scalar = trial(p, "attention/scalar", "attention", "ok");
        const db::Id named = trial(p, name, "attention", "ok");
        race(p, "attention", {{scalar, 10000}, {named, 9990}});
        select(p, "attention", scalar, scalar, 10000, 10000, "tie(2)",
               nlohmann::json({"attention/scalar", name})
                   .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
        trial(p, "attention/bad:splits=" + std::to_string(i), "attention", "incorrect",
              "gate attention, buffer o, index " + std::to_string(100 + i) + ": got 1, expected 2");
        trial(p, "attention/wide", "attention", "unsupported", "needs head_dim 128");
      }
    });
  }

  std::string html() { return html_report(store_, id_); }

  fs::path folder_;
  db::Store store_;
  db::DeviceRow device_;
  db::RunRow run_;
  db::Id device_id_ = 0, id_ = 0;

 private:
  static fs::path make_folder() {
    std::string name = (fs::temp_directory_path() / "muse_report_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    return name;
  }
};

std::string between(const std::string& text, const std::string& from, const std::string& to) {
  const size_t start = text.find(from);
  if (start == std::string::npos) return "";
  const size_t end = text.find(to, start + from.size());
  return text.substr(start + from.size(), end - start - from.size());
}

size_t count(const std::string& text, const std::string& word) {
  size_t found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

nlohmann::json data_block(const std::string& html) {
  return nlohmann::json::parse(
      between(html, "<script type=\"application/json\" id=\"data\">", "</script>"));
}

/// Hex digest by the system's sha256sum, apart from the code under test.
std::string sha256(const fs::path& file) {
  FILE* pipe = popen(("sha256sum '" + file.string() + "'").c_str(), "r");
  if (pipe == nullptr) return "";
  char digest[65] = {};
  const size_t read = fread(digest, 1, 64, pipe);
  pclose(pipe);
  return std::string(digest, read);
}

std::string base64_hex(const std::string& base64) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string hex;
  unsigned bits = 0, held = 0;
  for (const char c : base64) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<unsigned>(digits.find(c));
    for (held += 6; held >= 4;) {
      held -= 4;
      hex += "0123456789abcdef"[bits >> held & 15];
    }
  }
  return hex.substr(0, 64);
}

const std::string kHostile[] = {"<script>alert(1)</script>",
                                "</script><script>alert(1)</script>",
                                "\" onmouseover=\"alert(1)",
                                "' onfocus='alert(1)",
                                "<!--<script>",
                                "k<float, 4>&amp;",
                                "a|b`c`*d*_e_ [x](javascript:alert(1)) @all #1",
                                "line\nbreak\ttab\x01\x1b[31m",
                                "\xff\xfe\xc0\xaf\xed\xa0\x80",
                                "gr\xc3\xb6\xc3\x9f\xe2\x80\xae"
                                "flip"};

TEST_F(ReportTest, NamesTheWinnersAndTheSpeedUp) {
  ordinary_run();
  const std::string page = html();
  for (const char* anchor :
       {"verdict", "winners", "candidates", "failures", "method", "glossary"}) {
    EXPECT_EQ(count(page, "<section id=\"" + std::string(anchor) + "\""), 1u) << anchor;
    EXPECT_EQ(count(page, "href=\"#" + std::string(anchor) + "\""), anchor[0] == 'v' ? 2u : 1u);
  }
  EXPECT_NE(page.find("2.12\xC3\x97"), std::string::npos) << "geometric mean of 1.5 and 3";
  EXPECT_NE(page.find("1.50\xC3\x97"), std::string::npos) << "worst";
  EXPECT_NE(page.find(">20.00<"), std::string::npos) << "median in microseconds";
  EXPECT_NE(page.find("CPU-only results:"), std::string::npos);
  EXPECT_EQ(page.find("Partial sweep"), std::string::npos);
  EXPECT_NE(page.find("tie set of 2"), std::string::npos);
}

TEST_F(ReportTest, WarnsWhereFiguresDoNotSayWhatTheySeemTo) {
  device_.kind = "cuda";
  run_.status = "interrupted";
  ordinary_run();
  store_.transaction([&] {
    const db::Id p = problem("other");
    const db::Id t = trial(p, "gate/scalar", "gate", "degraded");
    race(p, "gate", {{t, 100}}, "events");
    select(p, "gate", t, 0, 100, 0, "degraded", "[]");
    select(p, "attention", t, 0, 100, 0, "inconclusive", "[]");
    db::QuarantineRow quarantine;
    quarantine.device_id = device_id_;
    quarantine.code_hash = "dead";
    quarantine.candidate = "attention/crash";
    quarantine.reason = "SIGSEGV";
    quarantine.since = "2030-01-01T00:00:00Z";
    store_.insert(quarantine);
  });
  const std::string page = html();
  for (const char* word :
       {"Partial sweep:", "Mixed timers:", "Quarantine:", "Degraded:", "Inconclusive:"}) {
    EXPECT_NE(page.find(std::string("<strong>") + word), std::string::npos) << word;
  }
  EXPECT_EQ(page.find("CPU-only"), std::string::npos);
}

TEST_F(ReportTest, SaysWhereTheBestPipelineDependsOnTheRegime) {
  start();
  store_.transaction([&] {
    const db::Id split = problem("split"), same = problem("same"), tied = problem("tied");
    const auto whole = [&](db::Id problem, const std::string& key) {
      return trial(problem, key, "prepare..gate", "ok");
    };
    const auto decide = [&](db::Id problem, db::Id winner, const std::string& regime,
                            const std::string& ties) {
      select(problem, "prepare..gate", winner, 0, 100, 0, "winner", ties, regime);
    };
    decide(split, whole(split, "a"), "cold", R"(["a"])");
    decide(split, whole(split, "b"), "warm", R"(["b"])");
    decide(same, whole(same, "a"), "cold", R"(["a"])");
    decide(same, whole(same, "a"), "warm", R"(["a"])");
    decide(tied, whole(tied, "a"), "cold", R"(["a", "b"])");
    decide(tied, whole(tied, "b"), "warm", R"(["b", "a"])");
  });
  const std::string page = html();
  EXPECT_NE(page.find("Regimes disagree:"), std::string::npos);
  EXPECT_NE(page.find("for 1 shape: split (cold: a, warm: b)."), std::string::npos);
}

TEST_F(ReportTest, GroupsFailuresWhoseReasonsDifferOnlyInNumbers) {
  ordinary_run();
  const auto failures = nlohmann::json::parse(json_report(store_, id_))["failures"];
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures[0]["outcome"], "incorrect");
  EXPECT_EQ(failures[0]["count"], 2);
  EXPECT_EQ(failures[0]["candidates"].size(), 2u);
  EXPECT_EQ(failures[1]["outcome"], "unsupported");
}

TEST_F(ReportTest, KeepsHostileTextInertInEveryPlace) {
  run_.command = run_.config_text = run_.config_path = kHostile[1] + kHostile[2];
  run_.environment = nlohmann::json{{kHostile[0], kHostile[1]}}.dump();
  device_.name = kHostile[0];
  device_.driver = kHostile[9];
  ordinary_run(kHostile[1]);
  store_.transaction([&] {
    for (const std::string& text : kHostile) {
      const db::Id p = problem("shape " + text);
      const db::Id t = trial(p, text, "gate", "ok");
      trial(p, text + "2", "gate", "crashed", text);
      race(p, "gate", {{t, 100}});
      select(p, "gate", t, 0, 100, 0, text, text);
    }
  });
  const std::string page = html();
  EXPECT_EQ(count(page, "<script"), 2u) << "the data block and the page's own script";
  EXPECT_EQ(count(page, "</script"), 2u);
  EXPECT_EQ(count(page, "<!--"), 0u);
  const std::string body = page.substr(0, page.find("<script type"));
  EXPECT_EQ(body.find("\" onmouseover"), std::string::npos);
  EXPECT_EQ(body.find("' onfocus"), std::string::npos);
  EXPECT_EQ(page.find('\x01'), std::string::npos);
  EXPECT_EQ(page.find('\x1b'), std::string::npos);
  EXPECT_EQ(page.find("\xe2\x80\xae"), std::string::npos) << "direction override";
  EXPECT_EQ(page.find('\xff'), std::string::npos) << "a byte that is not UTF-8";
  EXPECT_NE(page.find("k&lt;float,<wbr> 4&gt;&amp;amp;"), std::string::npos);
  EXPECT_NO_THROW(data_block(page));
}

TEST_F(ReportTest, KeepsHostileTextInertInMarkdown) {
  run_.command = device_.name = kHostile[6];
  ordinary_run(kHostile[6]);
  store_.transaction([&] {
    for (const std::string& text : kHostile) {
      const db::Id p = problem("shape " + text);
      const db::Id t = trial(p, text, "gate", "ok");
      trial(p, text + "2", "gate", "crashed", text);
      race(p, "gate", {{t, 100}});
      select(p, "gate", t, 0, 100, 0, text, "[]");
    }
  });
  const std::string markdown = markdown_report(store_, id_);
  std::string outside;  // of code spans
  bool in_code = false;
  for (const char c : markdown) {
    if (c == '`') {
      in_code = !in_code;
    } else if (!in_code) {
      outside += c;
    }
  }
  EXPECT_FALSE(in_code);
  for (const char c : {'<', '[', '_', '@', '\x01', '\x1b', '\xff'}) {
    EXPECT_EQ(outside.find(c), std::string::npos) << c;
  }
  // Every row of a table has the columns of its head.
  std::istringstream lines(markdown);
  size_t bars = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] != '|') {
      bars = 0;
      continue;
    }
    const auto found = static_cast<size_t>(std::count(line.begin(), line.end(), '|'));
    if (bars == 0) bars = found;
    EXPECT_EQ(found, bars) << line;
  }
}

TEST_F(ReportTest, AllowsExactlyItsOwnStyleAndScript) {
  ordinary_run();
  const std::string page = html();
  const std::string policy = between(page, "Content-Security-Policy\" content=\"", "\"");
  EXPECT_EQ(policy.rfind("default-src &#39;none&#39;;", 0), 0u) << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_NE(policy.find("base-uri &#39;none&#39;; form-action &#39;none&#39;"), std::string::npos);
  const struct {
    const char *open, *close, *directive;
  } parts[] = {{"<style>", "</style>", "style-src &#39;sha256-"},
               {"<script>", "</script>", "script-src &#39;sha256-"}};
  for (const auto& part : parts) {
    std::ofstream(folder_ / "part", std::ios::binary) << between(page, part.open, part.close);
    const std::string digest = sha256(folder_ / "part");
    ASSERT_EQ(digest.size(), 64u);
    EXPECT_EQ(base64_hex(between(policy, part.directive, "&#39;")), digest) << part.directive;
  }
  EXPECT_EQ(count(page, " style=\""), 0u);
  EXPECT_EQ(count(page, " onclick"), 0u);
}

TEST_F(ReportTest, FetchesNothing) {
  ordinary_run();
  const std::string page = html();
  for (const char* word :
       {"http://", "https://", " src=", "url(", "@import", "<link", "<img", "<iframe"}) {
    EXPECT_EQ(page.find(word), std::string::npos) << word;
  }
}

TEST_F(ReportTest, GivesTheSameBytesTwice) {
  ordinary_run();
  const std::string page = html();
  EXPECT_EQ(page, html());
  const db::Store again = db::Store::open(folder_ / "t.db", db::Open::kRead);
  EXPECT_EQ(page, html_report(again, id_));
  EXPECT_EQ(markdown_report(store_, id_), markdown_report(again, id_));
  EXPECT_EQ(json_report(store_, id_), json_report(again, id_));
}

TEST_F(ReportTest, SaysSoWhereARunHasNothing) {
  start();
  const std::string page = html();
  EXPECT_NE(page.find("Nothing was chosen"), std::string::npos);
  EXPECT_NE(page.find("This run has no trials."), std::string::npos);
  EXPECT_NE(page.find("No candidate failed"), std::string::npos);
  EXPECT_EQ(data_block(page)["trials"].size(), 0u);
  EXPECT_FALSE(markdown_report(store_, id_).empty());
}

TEST_F(ReportTest, RefusesARunThatDoesNotExist) {
  start();
  EXPECT_THROW(html_report(store_, id_ + 1), std::invalid_argument);
}

TEST_F(ReportTest, ShowsMissingTimesAsADash) {
  start();
  store_.transaction([&] {
    const db::Id p = problem("shape");
    trial(p, "gate/scalar", "gate", "crashed", "signal 11");
  });
  const std::string page = html();
  EXPECT_NE(page.find("<td class=\"n\">\xE2\x80\x93</td>"), std::string::npos);
  EXPECT_EQ(count(page, "nan"), 0u);
  const auto trial = data_block(page)["trials"][0];
  EXPECT_TRUE(trial["median_ns"].is_null());
  EXPECT_TRUE(trial["speedup"].is_null());
}

TEST_F(ReportTest, ShortensThousandsOfRowsAndSaysWhatIsLeftOut) {
  start();
  store_.transaction([&] {
    for (int shape = 0; shape < 5; ++shape) {
      const db::Id p = problem("shape" + std::to_string(shape));
      std::vector<std::pair<db::Id, double>> medians;
      for (int i = 0; i < 1000; ++i) {
        const std::string key = "attention/v:t=" + std::to_string(i);
        if (i % 10 == 9) {
          trial(p, key, "attention", "launch_failed", "too many threads: " + std::to_string(i));
        } else {
          medians.emplace_back(trial(p, key, "attention", "ok"), 1000 + 7 * ((i * 37) % 1000));
        }
      }
      race(p, "attention", medians);
    }
  });
  const auto started = std::chrono::steady_clock::now();
  const std::string page = html();
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(30)) << "hangs";
  EXPECT_LT(page.size(), 2u << 20);
  EXPECT_NE(page.find("the best 500 rows of 5000; 4500 are left out"), std::string::npos);
  EXPECT_NE(page.find("muse-tune export"), std::string::npos);
  const auto data = data_block(page);
  EXPECT_EQ(data["trials"].size(), 500u);
  EXPECT_EQ(data["trials_left_out"], 4500);
  ASSERT_EQ(data["failures"].size(), 1u);
  EXPECT_EQ(data["failures"][0]["count"], 500);
  // Every shape keeps its best hundred.
  std::map<std::string, int> per_shape;
  for (const auto& trial : data["trials"]) ++per_shape[trial["shape"].get<std::string>()];
  EXPECT_EQ(per_shape["shape0"], 100);
  EXPECT_EQ(data["trials"][0]["median_ns"], 1000);
  EXPECT_EQ(nlohmann::json::parse(json_report(store_, id_))["trials"].size(), 5000u);
  EXPECT_LT(markdown_report(store_, id_).size(), 60000u);
}

TEST_F(ReportTest, CarriesItsSchemaAndTheSameFiguresInJson) {
  ordinary_run();
  const auto json = nlohmann::json::parse(json_report(store_, id_));
  EXPECT_EQ(json["schema"], "muse.report");
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["summary"]["failed"], 2);
  EXPECT_EQ(json["summary"]["unsupported"], 2);
  EXPECT_EQ(json["summary"]["valid"], 8);
  EXPECT_EQ(json["summary"]["tied"], 2);
  EXPECT_DOUBLE_EQ(json["summary"]["speedup_over_base"][0]["worst"].get<double>(), 1.5);
  EXPECT_EQ(json["selections"].size(), 4u);
  EXPECT_EQ(json["selections"][0]["span"], "prepare..gate");
  EXPECT_EQ(json["run"]["environment"]["load"], 0.5);
}

TEST(Readable, KeepsTextAndReplacesWhatIsNone) {
  EXPECT_EQ(readable("a\tb\n"), "a\tb\n");
  EXPECT_EQ(readable("gr\xc3\xb6\xc3\x9f \xf0\x9f\x98\x80"), "gr\xc3\xb6\xc3\x9f \xf0\x9f\x98\x80");
  EXPECT_EQ(readable(std::string_view("\0", 1)), "\xe2\x90\x80");
  const std::string gone = "\xef\xbf\xbd";
  EXPECT_EQ(readable("\xc0\xaf"), gone + gone) << "overlong";
  EXPECT_EQ(readable("\xed\xa0\x80"), gone + gone + gone) << "surrogate";
  EXPECT_EQ(readable("\xf4\x90\x80\x80"), gone + gone + gone + gone) << "beyond U+10FFFF";
  EXPECT_EQ(readable("a\xe2\x82"), "a" + gone + gone) << "cut";
  EXPECT_EQ(readable("\x7f\xc2\x85"), gone + gone);
}

TEST(Microseconds, HasFourSignificantDigits) {
  EXPECT_EQ(microseconds(580.0), "0.580");
  EXPECT_EQ(microseconds(12345.6), "12.35");
  EXPECT_EQ(microseconds(123456.0), "123.5");
  EXPECT_EQ(microseconds(1234567.0), "1235");
  EXPECT_EQ(microseconds(std::nullopt), "\xE2\x80\x93");
  EXPECT_EQ(microseconds(NAN), "\xE2\x80\x93");
  EXPECT_EQ(times(1.5), "1.50\xC3\x97");
}

}  // namespace
}  // namespace muse::reports
