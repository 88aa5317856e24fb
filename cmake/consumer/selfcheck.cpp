// SPDX-License-Identifier: Apache-2.0
// muse_selfcheck: runs what a dispatch table answers for each of its rows through the C interface,
// holds the output against the float64 reference, and times it beside the time the row was chosen
// for. Built beside the table that it is about.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <muse_attention.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "selfcheck_machine.h"
#include "selfcheck_report.h"
#include "variants/reference/step.h"
#include "variants/runtime/linked_table.h"

namespace {

using muse::reference::ExpectedStep;
using muse::reference::Step;
using muse::reference::StepVerdict;
using selfcheck::Answer;
using selfcheck::Question;
namespace dispatch = muse::dispatch;

constexpr uint64_t kSeed = 1;
constexpr const char* kUsage =
    "usage: muse_selfcheck [--json] [--max-bytes N] [--repeat N] [--device N]\n"
    "Validates every pipeline that this table answers with here, and times each of its rows.\n"
    "  --json         a document instead of a table\n"
    "  --max-bytes N  rows whose step takes more are passed over (default: 2 GiB)\n"
    "  --repeat N     times of each row (default: 20); 0 validates alone\n"
    "  --device N     CUDA ordinal (default: 0)\n"
    "Exit code: 0 all that was checked is right, 2 usage, 3 no device, no memory or nowhere to\n"
    "write, 4 something is wrong, a row is not answered by its own pipeline, a pipeline that a\n"
    "row names was not run, or nothing could be checked.\n";

struct Options {
  bool json = false;
  int64_t max_bytes = int64_t{2} << 30;
  int repeat = 20;
  int device = 0;
};

/// nullopt where the words are none.
std::optional<Options> parse(int argc, char** argv) {
  Options options;
  const auto number = [&](int& i, auto& value, int64_t least) {
    if (i + 1 == argc) return false;
    const char* text = argv[++i];
    const char* end = text + std::strlen(text);
    const auto parsed = std::from_chars(text, end, value);
    return parsed.ec == std::errc{} && parsed.ptr == end && value >= least;
  };
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    bool good = false;
    if (word == "--json") good = options.json = true;
    if (word == "--max-bytes") good = number(i, options.max_bytes, 1);
    if (word == "--repeat") good = number(i, options.repeat, 0);
    if (word == "--device") good = number(i, options.device, 0);
    if (!good) return std::nullopt;
  }
  return options;
}

/// A step whose data lie where the table runs.
class PlacedStep {
 public:
  explicit PlacedStep(const Step& step)
      : step_(step),
        out_bytes_(static_cast<size_t>(step.problem.tokens() * step.problem.num_q_heads *
                                       step.problem.head_dim) *
                   2) {
    muse_attention_buffers& b = buffers_;
    b.struct_bytes = sizeof b;
    b.qkv = place(step.qkv);
    b.positions = place(step.positions);
    b.cache_loc = place(step.cache_loc);
    b.seq_lens = place(step.seq_lens);
    b.cache_seqlens = place(step.cache_seqlens);
    b.cu_seqlens_q = place(step.cu_seqlens_q);
    b.page_table = place(step.page_table);
    b.k_scale = b.v_scale = place(std::vector<float>{step.kv_scale});
    if (step.problem.rope()) b.cos_sin = place(step.cos_sin);
    b.k_cache = place(step.k_cache);
    b.v_cache = place(step.v_cache);
    b.out = memory_.emplace_back(out_bytes_).data();
  }
  const muse_attention_buffers& buffers() const { return buffers_; }

  /// NaN where the step is to write.
  void poison() const {
    const std::vector<uint8_t> nan(std::max(out_bytes_, row_bytes()), 0xFF);
    selfcheck::upload(buffers_.out, nan.data(), out_bytes_);
    each_row([&](uint8_t* k, uint8_t* v, size_t) {
      selfcheck::upload(k, nan.data(), row_bytes());
      selfcheck::upload(v, nan.data(), row_bytes());
    });
  }
  StepVerdict judge(const ExpectedStep& expected) const {
    std::vector<uint16_t> out(out_bytes_ / 2);
    selfcheck::download(out.data(), buffers_.out, out_bytes_);
    std::vector<uint8_t> k_rows(step_.cache_loc.size() * row_bytes()), v_rows(k_rows.size());
    each_row([&](uint8_t* k, uint8_t* v, size_t token) {
      selfcheck::download(k_rows.data() + token * row_bytes(), k, row_bytes());
      selfcheck::download(v_rows.data() + token * row_bytes(), v, row_bytes());
    });
    return judge_step(step_, expected, out.data(), k_rows.data(), v_rows.data());
  }

 private:
  template <class T>
  T* place(const std::vector<T>& data) {
    void* at = memory_.emplace_back(data.size() * sizeof(T)).data();
    selfcheck::upload(at, data.data(), data.size() * sizeof(T));
    return static_cast<T*>(at);
  }
  size_t row_bytes() const {
    return static_cast<size_t>(step_.problem.num_kv_heads * step_.problem.head_dim);
  }
  template <class Body>
  void each_row(const Body& body) const {
    for (size_t token = 0; token < step_.cache_loc.size(); ++token) {
      const size_t at = static_cast<size_t>(step_.cache_loc[token]) * row_bytes();
      body(static_cast<uint8_t*>(buffers_.k_cache) + at,
           static_cast<uint8_t*>(buffers_.v_cache) + at, token);
    }
  }

  const Step& step_;
  const size_t out_bytes_;
  std::vector<selfcheck::Memory> memory_;
  muse_attention_buffers buffers_ = {};
};

muse_attention_problem problem_of(const muse::Problem& p) {
  muse_attention_problem problem = muse::attention_problem();
  problem.batch = p.batch;
  problem.q_len = p.q_len;
  problem.num_q_heads = p.num_q_heads;
  problem.num_kv_heads = p.num_kv_heads;
  problem.head_dim = p.head_dim;
  problem.page_size = p.page_size;
  problem.max_pages = p.max_pages();
  problem.window = p.window;
  problem.rope_theta = p.rope_theta;
  problem.qk_scale_factor = p.qk_scale_factor;
  problem.sm_scale = p.sm_scale;
  problem.scaled = p.scaled() ? 1 : 0;
  return problem;
}

void require(const muse::Status& status, const char* what) {
  if (!status) throw std::runtime_error(std::string(what) + ": " + status.message());
}

/// Plans, runs over poison, compares; times afterwards.
void run_planned(const Options& options, const Step& step, const ExpectedStep& expected,
                 muse::AttentionPlan& plan, Answer& answer) {
  const PlacedStep placed(step);
  const selfcheck::Memory workspace(plan.workspace_bytes());
  const auto bytes = plan.workspace_bytes();
  const selfcheck::Run once = [&](CUstream_st* stream) {
    require({muse_attention_run(plan.get(), &placed.buffers(), workspace.data(), bytes, stream)},
            "run");
  };
  selfcheck::run_once([&](CUstream_st* stream) {
    require(plan.init_workspace(workspace.data(), bytes, stream), "workspace");
  });
  placed.poison();
  selfcheck::run_once(once);
  answer.verdict = placed.judge(expected);
  if (!answer.verdict.failure.empty() || options.repeat == 0) return;
  std::vector<double> times = selfcheck::times_us(once, options.repeat);
  std::sort(times.begin(), times.end());
  answer.median_us = times[times.size() / 2];
  answer.least_us = times.front();
  placed.poison();  // and it is still right, as what it is replayed for
  selfcheck::run_once(once);
  answer.verdict = placed.judge(expected);
}

Answer ask(const Options& options, const Question& question) {
  Answer answer;
  answer.question = question;
  std::string reason;
  std::optional<Step> step =
      muse::reference::make_step(question.shape, options.max_bytes, kSeed, reason);
  if (!step) {
    answer.passed_over = reason;
    return answer;
  }
  muse::AttentionPlan plan;
  answer.asked = true;
  const muse::Status planned = plan.create(
      problem_of(step->problem),
      question.any_context ? MUSE_ATTENTION_ANY_CONTEXT : step->mean_context, options.device);
  if (planned.code == MUSE_ATTENTION_UNSUPPORTED) {
    answer.passed_over = planned.message();
    return answer;
  }
  require(planned, "plan");
  muse_attention_explanation explanation = {};
  require(plan.explain(explanation), "explain");
  answer.pipeline = explanation.pipeline;
  answer.match = explanation.match;
  answer.guard = explanation.guard;
  answer.why = explanation.why;
  answer.expected_us = explanation.expected_us;
  Step data = *step;  // the reference writes rows that the table's step is to write itself
  const ExpectedStep expected = expected_step(*step);
  run_planned(options, data, expected, plan, answer);
  return answer;
}

/// The key's shape, its context rounded up to whole pages.
std::string shape_of(const dispatch::Key& key) {
  const auto text = [](int64_t number) { return std::to_string(number); };
  return "b" + text(key.batch) + "_l" + text(key.q_len) + "_h" + text(key.num_q_heads) + "x" +
         text(key.num_kv_heads) + "_d" + text(key.head_dim) + "_ps" + text(key.page_size) + "_w" +
         text(key.window) + "_rope" + (key.rope ? "500000" : "0") + "_kv" +
         (key.scaled ? "2" : "1") + "_t" +
         text((key.context + key.page_size - 1) / key.page_size * key.page_size) +
         "_uniform_random_s1";
}

/// A small shape of the row's structure that is too far from every row; empty where there is none.
std::string far_from_every_row(const muse::runtime::LinkedTable& table, dispatch::Key key) {
  for (key.batch = 1; key.batch <= 4096; key.batch *= 2) {
    for (key.context = std::max<int64_t>(key.q_len, 16); key.context <= 4096; key.context *= 4) {
      const dispatch::Choice choice = dispatch::find(*table.contexts, *table.rules, key,
                                                     dispatch::Guard::kTuned, dispatch::Anything{});
      if (choice.match == dispatch::Match::kBase) return shape_of(key);
    }
  }
  return "";
}

std::string pipeline_name(const muse::runtime::LinkedTable& table, dispatch::Pipeline pipeline) {
  const auto index = static_cast<int>(pipeline);
  if (index < table.pipeline_count) return table.pipelines[index].key;
  return "number " + std::to_string(index) + " of " + std::to_string(table.pipeline_count);
}

/// So many quarters of the way from one size to another, by ratio.
int64_t between(int64_t from, int64_t to, int quarters) {
  return std::llround(
      static_cast<double>(from) *
      std::pow(static_cast<double>(to) / static_cast<double>(from), quarters / 4.0));
}

/// A key between two rows that the pipeline answers; nullopt where none is found.
std::optional<dispatch::Key> key_between(const dispatch::Table& table, const dispatch::Rules& rules,
                                         const dispatch::Row& a, const dispatch::Row& b,
                                         dispatch::Pipeline wanted) {
  dispatch::Key key = a.key;
  for (int i = 0; i <= 4; ++i) {
    key.batch = between(a.key.batch, b.key.batch, i);
    for (int j = 0; j <= (table.contexts ? 4 : 0); ++j) {
      if (table.contexts) key.context = between(a.key.context, b.key.context, j);
      const dispatch::Choice choice =
          dispatch::find(table, rules, key, dispatch::Guard::kTuned, dispatch::Anything{});
      if (choice.pipeline == wanted) return key;
    }
  }
  return std::nullopt;
}

/// Asks what a pipeline of no row answers, by the first pair of rows that has it between them.
void ask_between_rows(const dispatch::Table& table, const dispatch::Rules& rules,
                      dispatch::Pipeline wanted, std::vector<Question>& all) {
  constexpr int kNext = 64;  // rows ahead: neighbours in batch and context are among them
  constexpr int64_t kAnyContext = 1024;
  for (int i = 0; i < table.row_count; ++i) {
    for (int j = i + 1; j < std::min(table.row_count, i + kNext); ++j) {
      dispatch::Key there = table.rows[j].key;  // all but batch and context must be the same
      there.batch = table.rows[i].key.batch;
      there.context = table.rows[i].key.context;
      if (!dispatch::detail::same(there, table.rows[i].key)) continue;
      auto key = key_between(table, rules, table.rows[i], table.rows[j], wanted);
      if (!key) continue;
      if (!table.contexts) key->context = std::max(key->q_len, kAnyContext);
      all.push_back({shape_of(*key), !table.contexts, ""});
      return;
    }
  }
}

/// Each key of both tables once, a shape for each pipeline that answers between rows alone, and one
/// for the base.
std::vector<Question> questions() {
  const muse::runtime::LinkedTable& table = muse::runtime::linked_table();
  std::vector<Question> all;
  std::set<uint16_t> of_no_row;
  for (int i = 1; i < table.pipeline_count; ++i) of_no_row.insert(static_cast<uint16_t>(i));
  for (const dispatch::Table* each : {table.contexts, table.captured}) {
    for (int i = 0; i < each->row_count; ++i) {
      const dispatch::Row& row = each->rows[i];
      of_no_row.erase(static_cast<uint16_t>(row.pipeline));
      if (i > 0 && dispatch::detail::same(row.key, each->rows[i - 1].key)) continue;  // evidence
      all.push_back({row.shape, !each->contexts, pipeline_name(table, row.pipeline)});
    }
  }
  for (const uint16_t pipeline : of_no_row) {
    for (const dispatch::Table* each : {table.contexts, table.captured}) {
      ask_between_rows(*each, *table.rules, dispatch::Pipeline{pipeline}, all);
    }
  }
  if (table.contexts->row_count > 0) {
    const std::string far = far_from_every_row(table, table.contexts->rows[0].key);
    if (!far.empty()) all.push_back({far, false, ""});
  }
  return all;
}

int run(const Options& options) {
  selfcheck::choose_device(options.device);
  if (!options.json) selfcheck::print_heading();
  std::vector<Answer> answers;
  for (const Question& question : questions()) {
    answers.push_back(ask(options, question));
    if (!options.json) selfcheck::print_line(answers.back());
  }
  return selfcheck::tell(options.json, answers) ? 0 : 4;
}

int answer_command(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  const std::optional<Options> options = parse(argc, argv);
  if (!options) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  try {
    return run(*options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "muse_selfcheck: error: %s\n", error.what());
    return 3;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int code = answer_command(argc, argv);
  const bool lost = std::fflush(stdout) != 0;  // both: an earlier line may be what was lost
  if (lost || std::ferror(stdout) != 0) {
    std::fputs(
        "muse_selfcheck: error: the report could not be written to the standard output: "
        "is the disk full?\n",
        stderr);
    return 3;
  }
  return code;
}
