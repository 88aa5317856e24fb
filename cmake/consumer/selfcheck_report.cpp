// SPDX-License-Identifier: Apache-2.0
// muse_selfcheck's table and its document, and what is a pass.
#include "selfcheck_report.h"

#include <cstdio>
#include <cstring>
#include <muse_attention.hpp>
#include <set>

#include "muse_dispatch.h"
#include "selfcheck_machine.h"
#include "variants/runtime/linked_table.h"

namespace selfcheck {
namespace {

enum class State { kRight, kWrong, kOther, kNotRun };

/// The sweep's clock, by the table's word for it.
std::string tuned_clock() {
  return std::string("the sweep's timer '") + muse::dispatch::kTimer + "', " +
         muse::dispatch::kRegime;
}

/// Whether rows have to be answered by their own pipelines under this guard: the device is of the
/// class that they were measured on. A neighbour may lack what a pipeline needs.
bool binding(const std::string& guard) {
  return guard == "tuned" || guard == "other driver" || guard == "other compiler";
}

/// Of the device, thus of all answers; empty where the table answered nothing.
std::string guard_of(const std::vector<Answer>& answers) {
  for (const Answer& a : answers) {
    if (!a.guard.empty()) return a.guard;
  }
  return "";
}

State state(const Answer& a, const std::string& guard) {
  if (!a.verdict.failure.empty()) return State::kWrong;
  const bool of_a_row = a.asked && !a.question.pipeline.empty();
  if (of_a_row && binding(guard) && a.pipeline != a.question.pipeline) return State::kOther;
  return a.passed_over.empty() ? State::kRight : State::kNotRun;
}

const char* name(State state) {
  switch (state) {
    case State::kRight:
      return "ok";
    case State::kWrong:
      return "WRONG";
    case State::kOther:
      return "OTHER";
    case State::kNotRun:
      return "not run";
  }
  return "?";
}

/// All answers together.
struct Sums {
  int right = 0, wrong = 0, other = 0, not_run = 0;
  std::set<std::string> missed;       ///< pipelines that rows name and nothing was answered with
  std::set<std::string> not_reached;  ///< the table's others that nothing was answered with
};

Sums sums_of(const std::vector<Answer>& answers, const std::string& guard) {
  Sums sums;
  const muse::runtime::LinkedTable& table = muse::runtime::linked_table();
  for (int i = 0; i < table.pipeline_count; ++i) sums.not_reached.insert(table.pipelines[i].key);
  for (const Answer& a : answers) {
    const State s = state(a, guard);
    ++(s == State::kRight   ? sums.right
       : s == State::kWrong ? sums.wrong
       : s == State::kOther ? sums.other
                            : sums.not_run);
    if (binding(guard) && !a.question.pipeline.empty()) sums.missed.insert(a.question.pipeline);
  }
  for (const Answer& a : answers) {
    sums.missed.erase(a.pipeline);
    sums.not_reached.erase(a.pipeline);
  }
  for (const std::string& pipeline : sums.missed) sums.not_reached.erase(pipeline);
  return sums;
}

std::string microseconds(double us) {
  if (std::isnan(us)) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", us);
  return text;
}

std::string title(const Question& question) {
  return question.shape + (question.any_context ? ", any context" : "");
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + '"';
}

std::string list(const std::set<std::string>& texts) {
  std::string out = "[";
  for (const std::string& text : texts) {
    if (out.size() > 1) out += ", ";
    out += quoted(text);
  }
  return out += ']';
}

std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string entry_json(const Answer& a, State state) {
  return "    {\"shape\": " + quoted(a.question.shape) +
         ", \"any_context\": " + (a.question.any_context ? "true" : "false") +
         ", \"state\": " + quoted(name(state)) +
         ", \"row_pipeline\": " + quoted(a.question.pipeline) +
         ", \"pipeline\": " + quoted(a.pipeline) + ", \"match\": " + quoted(a.match) +
         ", \"guard\": " + quoted(a.guard) + ",\n     \"why\": " + quoted(a.why) +
         ", \"not_run\": " + quoted(a.passed_over) + ", \"failure\": " + quoted(a.verdict.failure) +
         ", \"relrms\": " + number(a.verdict.rel_rms) +
         ", \"cosine\": " + number(a.verdict.cosine) +
         ", \"expected_us\": " + number(a.expected_us) + ", \"median_us\": " + number(a.median_us) +
         ", \"least_us\": " + number(a.least_us) + "}";
}

void print_document(const std::vector<Answer>& answers, const std::string& guard,
                    const Sums& sums) {
  std::printf("{\"schema\": \"muse.selfcheck\", \"version\": 1, \"library\": %s,\n",
              quoted(muse_attention_version()).c_str());
  std::printf(" \"clock\": %s, \"tuned_clock\": %s,\n", quoted(clock_name()).c_str(),
              quoted(tuned_clock()).c_str());
  std::printf(" \"right\": %d, \"wrong\": %d, \"other_pipeline\": %d, \"not_run\": %d,\n",
              sums.right, sums.wrong, sums.other, sums.not_run);
  std::printf(" \"missed\": %s, \"not_reached\": %s,\n \"entries\": [\n", list(sums.missed).c_str(),
              list(sums.not_reached).c_str());
  for (size_t i = 0; i < answers.size(); ++i) {
    std::printf("%s%s\n", entry_json(answers[i], state(answers[i], guard)).c_str(),
                i + 1 < answers.size() ? "," : "");
  }
  std::printf(" ]}\n");
}

/// By the first row that names the pipeline.
std::string why_missed(const std::vector<Answer>& answers, const std::string& pipeline) {
  for (const Answer& a : answers) {
    if (a.question.pipeline != pipeline) continue;
    std::string reason = title(a.question);
    reason += ": ";
    reason += a.passed_over.empty() ? a.why : a.passed_over;
    if (!a.asked) reason += " (--max-bytes)";
    return reason;
  }
  return "";
}

void print_sums(const std::vector<Answer>& answers, const std::string& guard, const Sums& sums) {
  std::printf(
      "%d right, %d wrong, %d not answered by their own pipeline, %d not run; pipelines not run: "
      "%zu\n",
      sums.right, sums.wrong, sums.other, sums.not_run,
      sums.missed.size() + sums.not_reached.size());
  for (const Answer& a : answers) {
    if (state(a, guard) != State::kOther) continue;
    std::printf("not answered by its own pipeline: %s: the row names %s, %s: %s\n",
                title(a.question).c_str(), a.question.pipeline.c_str(),
                a.pipeline.empty() ? "nothing answered" : (a.pipeline + " answered").c_str(),
                a.pipeline.empty() ? a.passed_over.c_str() : a.why.c_str());
  }
  for (const std::string& pipeline : sums.missed) {
    std::printf("named by a row, but not run, thus not validated: %s: %s\n", pipeline.c_str(),
                why_missed(answers, pipeline).c_str());
  }
  for (const std::string& pipeline : sums.not_reached) {
    std::printf("not reached by any of these shapes here: %s\n", pipeline.c_str());
  }
}

}  // namespace

void print_heading() {
  const bool cold = std::strcmp(muse::dispatch::kRegime, "cold") == 0;
  std::printf("%s\ntuned us: median by %s; here us: median by %s.\n%s\n\n%-7s %9s %9s  %-6s %s\n",
              muse_attention_version(), tuned_clock().c_str(), clock_name(),
              cold ? comparison()
                   : "Caches are in two states: compare the times in order of magnitude only.",
              "", "tuned us", "here us", "match", "shape");
}

void print_line(const Answer& a) {
  std::printf("%-7s %9s %9s  %-6s %s\n        %s\n", name(state(a, a.guard)),
              microseconds(a.expected_us).c_str(), microseconds(a.median_us).c_str(),
              a.match.c_str(), title(a.question).c_str(),
              !a.passed_over.empty() ? a.passed_over.c_str() : a.pipeline.c_str());
  if (!a.verdict.failure.empty()) std::printf("        %s\n", a.verdict.failure.c_str());
  std::fflush(stdout);
}

bool tell(bool json, const std::vector<Answer>& answers) {
  const std::string guard = guard_of(answers);
  const Sums sums = sums_of(answers, guard);
  if (json) {
    print_document(answers, guard, sums);
  } else {
    print_sums(answers, guard, sums);
  }
  return sums.right > 0 && sums.wrong == 0 && sums.other == 0 && sums.missed.empty();
}

}  // namespace selfcheck
