// SPDX-License-Identifier: Apache-2.0
// A run as JSON, schema muse.report: the data behind every table.
#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/html.h"
#include "reports/run_data.h"

namespace muse::reports {
namespace {

using Json = nlohmann::ordered_json;

Json number(std::optional<double> value) {
  return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
}

/// Text that was stored as a JSON object; kept as text where it is none.
Json embedded(const std::string& text) {
  Json parsed = Json::parse(text, nullptr, false);
  return parsed.is_object() ? parsed : Json(text);
}

Json run_part(const RunData& data) {
  const db::RunRow& run = data.run;
  return {{"id", run.id},
          {"status", run.status},
          {"started", run.started},
          {"ended", run.ended.empty() ? Json(nullptr) : Json(run.ended)},
          {"command", run.command},
          {"config_path", run.config_path},
          {"config_hash", run.config_hash},
          {"config_text", run.config_text},
          {"timer", run.timer},
          {"base", run.base},
          {"seed", run.seed},
          {"environment", embedded(run.environment)}};
}

Json device_part(const db::DeviceRow& d) {
  return {{"kind", d.kind},
          {"name", d.name},
          {"uuid", d.uuid},
          {"model", d.model},
          {"isa", d.isa},
          {"cc", d.cc},
          {"sm_count", d.sm_count},
          {"memory_bytes", d.memory_bytes},
          {"l2_bytes", d.l2_bytes},
          {"driver", d.driver},
          {"driver_version", d.driver_version},
          {"clock_policy", d.clock_policy}};
}

Json build_part(const db::BuildRow& b) {
  return {{"version", b.version}, {"revision", b.revision},     {"compiler", b.compiler},
          {"flags", b.flags},     {"build_type", b.build_type}, {"toolkit", b.toolkit}};
}

Json summary_part(const RunData& data) {
  const Counts& c = data.counts;
  Json speedups = Json::array(), banners = Json::array();
  for (const Speedup& s : data.speedups) {
    speedups.push_back({{"regime", s.regime},
                        {"shapes", s.shapes},
                        {"geometric_mean", number(s.geometric_mean)},
                        {"worst", number(s.worst)},
                        {"worst_shape", s.worst_shape}});
  }
  for (const Banner& banner : data.banners) {
    banners.push_back({{"level", banner.bad ? "bad" : "caution"}, {"text", banner.text}});
  }
  return {{"shapes", data.shapes.size()},
          {"trials", c.trials},
          {"valid", c.valid},
          {"reused", c.reused},
          {"failed", c.failed},
          {"unsupported", c.unsupported},
          {"unfinished", c.unfinished},
          {"selections", c.selections},
          {"tied", c.tied},
          {"inconclusive", c.inconclusive},
          {"degraded", c.degraded},
          {"speedup_over_base", speedups},
          {"banners", banners}};
}

Json choice_part(const Choice& c) {
  return {{"shape", c.shape},
          {"regime", c.row.regime},
          {"span", c.row.span},
          {"handoff_in", c.row.handoff_in},
          {"winner", c.winner},
          {"base", c.base},
          {"median_ns", number(c.row.median_ns)},
          {"low_ns", number(c.row.low_ns)},
          {"high_ns", number(c.row.high_ns)},
          {"base_median_ns", c.base.empty() ? Json(nullptr) : number(c.row.base_median_ns)},
          {"speedup", number(c.speedup)},
          {"status", c.row.status},
          {"rule", c.row.rule},
          {"tie_set", c.ties}};
}

Json trial_part(const Trial& t) {
  return {{"shape", t.shape},
          {"regime", t.regime},
          {"span", t.span},
          {"handoff_in", t.handoff_in},
          {"candidate", t.candidate},
          {"outcome", t.state},
          {"reason", t.reason},
          {"median_ns", number(t.median_ns)},
          {"speedup", number(t.speedup)},
          {"samples", t.samples},
          {"reused", t.reused}};
}

Json races_part(const RunData& data) {
  Json races = Json::array();
  for (const db::RaceRow& r : data.races) {
    races.push_back({{"id", r.id},
                     {"problem", r.problem_id},
                     {"span", r.span},
                     {"handoff_in", r.handoff_in},
                     {"regime", r.regime},
                     {"timer", r.timer},
                     {"step_ns", number(r.step_ns)},
                     {"seed", r.seed},
                     {"status", r.status},
                     {"rules", embedded(r.rules)}});
  }
  return races;
}

}  // namespace

std::string run_json(const RunData& data, size_t most, bool pretty) {
  Json choices = Json::array(), trials = Json::array(), failures = Json::array();
  Json quarantine = Json::array();
  for (const Choice& choice : data.choices) choices.push_back(choice_part(choice));
  const std::vector<const Trial*> kept = best_trials(data, most);
  for (const Trial* trial : kept) trials.push_back(trial_part(*trial));
  for (const Failure& f : data.failures) {
    failures.push_back({{"outcome", f.state},
                        {"reason", f.reason},
                        {"count", f.count},
                        {"candidates", f.candidates}});
  }
  for (const db::QuarantineRow& q : data.quarantines) {
    quarantine.push_back({{"candidate", q.candidate},
                          {"code_hash", q.code_hash},
                          {"reason", q.reason},
                          {"since", q.since}});
  }
  const Json all{{"schema", "muse.report"},
                 {"version", 1},
                 {"run", run_part(data)},
                 {"device", device_part(data.device)},
                 {"build", build_part(data.build)},
                 {"summary", summary_part(data)},
                 {"selections", choices},
                 {"trials", trials},
                 {"trials_left_out", data.trials.size() - kept.size()},
                 {"failures", failures},
                 {"races", races_part(data)},
                 {"quarantine", quarantine}};
  return all.dump(pretty ? 2 : -1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace muse::reports
