// SPDX-License-Identifier: Apache-2.0
// explain: why each trial of a run was chosen, tied, dropped, skipped or failed.
#include <fmt/format.h>

#include <algorithm>

#include "tuner/commands/command.h"
#include "tuner/explanation.h"

namespace muse::tuner {
namespace {

using nlohmann::json;

/// Trials of one group that are listed unless --all is given.
constexpr size_t kListed = 20;

struct Options {
  std::string candidate, shape, span, database = "muse-tune.db";
  int64_t run = 0;
  bool all = false, json = false;
};

json range_json(const profiler::Interval& interval) { return {interval.low, interval.high}; }

template <class Value>
json optional_json(const std::optional<Value>& value) {
  return value ? json(*value) : json(nullptr);
}

json trial_json(const ExplainedTrial& t) {
  return {{"candidate", t.candidate},
          {"state", t.trial == 0 ? json(nullptr) : json(t.state)},
          {"fate", name(t.fate)},
          {"why", t.why},
          {"base", t.base},
          {"reused", t.reused},
          {"reused_from_run", t.reused_from == 0 ? json(nullptr) : json(t.reused_from)},
          {"race", t.race == 0 ? json(nullptr) : json(t.race)},
          {"median_ns", optional_json(t.median_ns)},
          {"interval_ns", t.race == 0 ? json(nullptr) : range_json(t.interval)},
          {"behind_ns", t.behind_ns ? range_json(*t.behind_ns) : json(nullptr)},
          {"dropped_in_round", t.dropped_in_round < 0 ? json(nullptr) : json(t.dropped_in_round)},
          {"stage_sum_ns", optional_json(t.stage_sum_ns)},
          {"stage_sum_rank", t.rank == 0 ? json(nullptr) : json(t.rank)},
          {"stage_sums", t.ranked},
          {"interaction_ns", optional_json(t.interaction_ns())}};
}

json selection_json(const ExplainedGroup& group) {
  if (!group.selection) return nullptr;
  const db::SelectionRow& row = *group.selection;
  return {{"winner", group.chosen},
          {"rule", row.rule},
          {"status", row.status},
          {"tie_set", group.tie_set},
          {"leader", group.leader.empty() ? json(nullptr) : json(group.leader)},
          {"median_ns", row.median_ns},
          {"interval_ns", {row.low_ns, row.high_ns}},
          {"base_median_ns", row.base_median_ns > 0 ? json(row.base_median_ns) : json(nullptr)},
          {"gain_pct", group.gain_pct ? range_json(*group.gain_pct) : json(nullptr)},
          {"not_replayable", group.not_replayable},
          {"differences", group.differences}};
}

json group_json(const ExplainedGroup& group) {
  json trials = json::array();
  for (const ExplainedTrial& t : group.trials) trials.push_back(trial_json(t));
  return {{"problem", group.problem},   {"span", group.span},
          {"handoff", group.handoff},   {"regime", group.regime},
          {"searched", group.searched}, {"selection", selection_json(group)},
          {"trials", std::move(trials)}};
}

std::string headline(const ExplainedGroup& group) {
  std::string text;
  const auto add = [&](const std::string& line) { text += printable(line) + "\n"; };
  add(fmt::format("{}  {}{}  {}", group.problem, group.span,
                  group.handoff.empty() ? "" : " of " + group.handoff, group.regime));
  if (!group.searched.empty()) add("  " + group.searched);
  if (!group.selection) return text + "  no winner\n";
  const db::SelectionRow& row = *group.selection;
  add(fmt::format("  winner {}: {} [{}, {}], {}, {}", group.chosen, format_ns(row.median_ns),
                  format_ns(row.low_ns), format_ns(row.high_ns), row.status, rule_text(row.rule)));
  if (!group.not_replayable.empty()) add("  not replayable: " + group.not_replayable);
  for (const std::string& difference : group.differences) {
    add("  differs when replayed: " + difference);
  }
  return text;
}

std::string why_text(const ExplainedTrial& t) {
  std::string text = t.base ? "the base; " + t.why : t.why;
  if (!t.stage_sum_ns) return text;
  text += fmt::format("; its stages alone take {}, place {} of {}", format_ns(*t.stage_sum_ns),
                      t.rank, t.ranked);
  if (const std::optional<double> interaction = t.interaction_ns()) {
    text += fmt::format(", together {}{} ({:+.1f} %)", *interaction < 0 ? "" : "+",
                        format_ns(*interaction), 100 * *interaction / *t.stage_sum_ns);
  }
  return text;
}

std::string block(const ExplainedGroup& group, bool all) {
  std::vector<std::vector<std::string>> rows{{"", "candidate", "median", "why"}};
  const size_t listed = all ? group.trials.size() : std::min(group.trials.size(), kListed);
  for (size_t i = 0; i < listed; ++i) {
    const ExplainedTrial& t = group.trials[i];
    rows.push_back({"", t.candidate, t.median_ns ? format_ns(*t.median_ns) : "-", why_text(t)});
  }
  std::string text = headline(group) + format_table(rows);
  if (listed < group.trials.size()) {
    text += fmt::format("  and {} more; --all lists them\n", group.trials.size() - listed);
  }
  return text;
}

// Throws where the run has nothing by these names.
void require_something(const db::Store& store, const db::RunRow& run, const Options& options) {
  std::set<std::string> problems, spans, candidates;
  for (const db::Store::RunTrial& t : store.run_trials(run.id)) {
    problems.insert(t.problem.key);
    spans.insert(t.candidate.span);
    candidates.insert(t.candidate.key);
  }
  for (const db::InteractionRow& row : store.interactions(run.id)) {
    candidates.insert(store.candidate(row.candidate_id).key);
  }
  const auto refuse = [&](const std::string& option, const std::string& word,
                          const std::set<std::string>& names) {
    const std::string near = nearest_name(word, {names.begin(), names.end()});
    throw CommandError(ExitCode::kUsage,
                       fmt::format("{} {}: run {} has none; {}", option, printable(word), run.id,
                                   near.empty() ? "`muse-tune status` lists the runs, `muse-tune "
                                                  "list CONFIG` the variants"
                                                : fmt::format("did you mean '{}'?", near)));
  };
  const auto matches = [](const std::string& glob, const std::set<std::string>& names) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& one) { return glob_match(glob, one); });
  };
  if (!options.shape.empty() && !matches(options.shape, problems)) {
    refuse("--shape", options.shape, problems);
  }
  if (!options.span.empty() && !spans.contains(options.span)) {
    refuse("--span", options.span, spans);
  }
  if (!options.candidate.empty() && !matches(options.candidate, candidates)) {
    refuse("candidate", options.candidate, candidates);
  }
}

ExitCode run(const Options& options) {
  const db::Store store = open_snapshot(options.database);
  const db::RunRow chosen = find_run(store, options.run, options.database);
  require_something(store, chosen, options);
  std::vector<ExplainedGroup> groups =
      explain(store, chosen, [&](const std::string& problem, const std::string& span) {
        return (options.shape.empty() || glob_match(options.shape, problem)) &&
               (options.span.empty() || options.span == span);
      });
  if (!options.candidate.empty()) {
    for (ExplainedGroup& group : groups) {
      std::erase_if(group.trials, [&](const ExplainedTrial& t) {
        return !glob_match(options.candidate, t.candidate);
      });
    }
    std::erase_if(groups, [](const ExplainedGroup& group) { return group.trials.empty(); });
  }
  if (options.json) {
    json blocks = json::array();
    for (const ExplainedGroup& group : groups) blocks.push_back(group_json(group));
    print_json("explain", {{"run", chosen.id}, {"status", chosen.status}, {"groups", blocks}});
    return ExitCode::kOk;
  }
  std::string text;
  for (const ExplainedGroup& group : groups) {
    text += (text.empty() ? "" : "\n") + block(group, options.all);
  }
  print(text);
  if (groups.empty()) say(fmt::format("run {}: nothing there matches", chosen.id));
  return ExitCode::kOk;
}

}  // namespace

Command explain_command() {
  return {"explain", "Say why each trial of a run won, tied, left or failed", [](CLI::App& app) {
            auto options = std::make_shared<Options>();
            app.add_option("candidate", options->candidate,
                           "Only candidates and pipelines whose key matches this glob");
            app.add_option("--shape", options->shape, "Only shapes whose key matches this glob");
            app.add_option("--span", options->span,
                           "Only this span, e.g. attention, or prepare..gate for pipelines");
            add_database(app, options->database);
            app.add_option("--run", options->run, "Run number; default: the last");
            app.add_flag("--all", options->all, "List every trial, however many");
            add_json(app, options->json);
            return [options] { return run(*options); };
          }};
}

}  // namespace muse::tuner
