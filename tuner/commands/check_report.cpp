// SPDX-License-Identifier: Apache-2.0
// Tables, JSON and last words of a check.
#include "tuner/commands/check_report.h"

#include <fmt/format.h>

#include <map>

#include "tuner/console.h"
#include "tuner/held_out.h"

namespace muse::tuner {
namespace {

const CheckedPipeline* measured(const CheckResult& result, const std::string& shape,
                                const std::string& pipeline) {
  for (const CheckedShape& here : result.shapes) {
    const CheckedPipeline* found = here.shape == shape ? here.find(pipeline) : nullptr;
    if (found != nullptr && found->measured()) return found;
  }
  return nullptr;
}

std::string best_of(const CheckResult& result, const std::string& shape) {
  for (const CheckedShape& here : result.shapes) {
    if (here.shape == shape && here.best() != nullptr) return here.best()->pipeline;
  }
  return {};
}

std::string time_text(const CheckedPipeline* pipeline) {
  return pipeline == nullptr ? "-" : format_ns(pipeline->median_ns);
}

std::string lost_text(const Finding& finding) {
  return finding.regret ? fmt::format("{:.1f} %", 100 * *finding.regret) : "-";
}

std::string rows_table(const DispatchTable& table, const CheckResult& result) {
  std::vector<std::vector<std::string>> lines{
      {"verdict", "shape", "pipeline", "then", "here", "base here", "loses", "why"}};
  for (const CheckedRow& row : result.rows) {
    const DispatchRow& entry = (row.captured ? table.captured : table.rows)[row.row];
    double then_ns = entry.median_ns;
    for (const ShapeRegret& one : entry.over) {
      if (one.shape == row.shape) then_ns = one.median_ns;
    }
    lines.push_back({std::string(name(row.finding.verdict)),
                     row.shape + (row.captured ? " (any context)" : ""), entry.pipeline,
                     format_ns(then_ns), time_text(measured(result, row.shape, entry.pipeline)),
                     time_text(measured(result, row.shape, table.base)), lost_text(row.finding),
                     row.finding.reason});
  }
  return format_table(lines);
}

std::string unseen_table(const CheckResult& result) {
  std::vector<std::vector<std::string>> lines{
      {"unseen shape", "table", "match", "distance", "answer", "here", "loses", "against"}};
  for (const CheckedUnseen& unseen : result.unseen) {
    for (const bool captured : {false, true}) {
      const CheckedAnswer& answer = captured ? unseen.captured : unseen.eager;
      const CheckedPipeline* here = measured(result, unseen.shape, answer.pick);
      lines.push_back({unseen.shape, captured ? "any context" : "by context", name(answer.match),
                       fmt::format("{:.2f}", answer.distance), answer.pick, time_text(here),
                       lost_text(answer.finding),
                       here == nullptr ? answer.finding.reason : best_of(result, unseen.shape)});
    }
  }
  return format_table(lines);
}

nlohmann::json number(const std::optional<double>& value, double factor = 1) {
  return value ? nlohmann::json(*value * factor) : nlohmann::json();
}

nlohmann::json finding_json(const CheckResult& result, const std::string& shape,
                            const std::string& pipeline, const Finding& finding) {
  nlohmann::json json{{"shape", shape},
                      {"pipeline", pipeline},
                      {"verdict", name(finding.verdict)},
                      {"reason", finding.reason},
                      {"regret_pct", number(finding.regret, 100)},
                      {"best", best_of(result, shape)},
                      {"median_ns", nullptr},
                      {"interval_ns", nullptr}};
  if (const CheckedPipeline* here = measured(result, shape, pipeline)) {
    json["median_ns"] = here->median_ns;
    json["interval_ns"] = {here->interval.low, here->interval.high};
  }
  return json;
}

void say_failures(const CheckResult& result) {
  for (const CheckedShape& shape : result.shapes) {
    for (const CheckedPipeline& one : shape.pipelines) {
      if (!one.failed()) continue;
      say_error(fmt::format("{} on {}: {}: {}", one.pipeline, shape.shape, name(one.outcome),
                            one.reason));
    }
  }
}

}  // namespace

void print_check(const DispatchTable& table, const CheckResult& result) {
  if (!result.rows.empty()) print(rows_table(table, result));
  if (!result.unseen.empty()) print(unseen_table(result));
}

nlohmann::json check_json(const DispatchTable& table, const CheckResult& result) {
  nlohmann::json entries = nlohmann::json::array(), unseen = nlohmann::json::array(),
                 pipelines = nlohmann::json::array();
  for (const CheckedRow& row : result.rows) {
    const DispatchRow& entry = (row.captured ? table.captured : table.rows)[row.row];
    nlohmann::json one = finding_json(result, row.shape, entry.pipeline, row.finding);
    one["table"] = row.captured ? "captured" : "entries";
    one["row"] = row.row;
    one["recorded_ns"] = entry.median_ns;
    entries.push_back(std::move(one));
  }
  for (const CheckedUnseen& shape : result.unseen) {
    for (const bool captured : {false, true}) {
      const CheckedAnswer& answer = captured ? shape.captured : shape.eager;
      nlohmann::json one = finding_json(result, shape.shape, answer.pick, answer.finding);
      one["table"] = captured ? "captured" : "entries";
      one["match"] = name(answer.match);
      one["distance"] = answer.distance;
      unseen.push_back(std::move(one));
    }
  }
  for (const CheckedShape& shape : result.shapes) {
    for (const CheckedPipeline& one : shape.pipelines) {
      pipelines.push_back(
          {{"shape", shape.shape},
           {"pipeline", one.pipeline},
           {"outcome", name(one.outcome)},
           {"reason", one.reason},
           {"median_ns", one.measured() ? nlohmann::json(one.median_ns) : nlohmann::json()}});
    }
  }
  const std::optional<CheckVerdict> worst = verdict(result);
  return {{"verdict", worst ? nlohmann::json(name(*worst)) : nlohmann::json()},
          {"shapes", result.shapes.size()},
          {"shapes_asked", result.shapes_asked},
          {"out_of_budget", result.out_of_budget},
          {"entries", entries},
          {"unseen", unseen},
          {"pipelines", pipelines}};
}

void say_end(const CheckResult& result, const std::string& budget) {
  say_failures(result);
  std::map<CheckVerdict, int> counts;
  for (const CheckedRow& row : result.rows) ++counts[row.finding.verdict];
  std::string found;
  for (const auto& [verdict, count] : counts) {
    found += fmt::format("{}{} {}", found.empty() ? "" : ", ", count, name(verdict));
  }
  say(fmt::format("{} of {} shapes looked at{}: {}", result.shapes.size(), result.shapes_asked,
                  result.out_of_budget ? fmt::format(" in {}", budget) : "",
                  found.empty() ? "no row" : found));
  if (result.out_of_budget && result.shapes.empty()) {
    say_error(fmt::format("the budget of {} ended before one shape was done: give more", budget));
  }
  if (!result.no_worker.empty()) {
    say_error(fmt::format("no worker starts any more: {}", result.no_worker));
  } else if (result.device_lost) {
    say_error("workers cannot be ended, or die whatever they run: the device needs a look");
  }
}

}  // namespace muse::tuner
