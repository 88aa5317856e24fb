// SPDX-License-Identifier: Apache-2.0
// The dispatch tables as JSON: what the header says, and the evidence that it has no room for.
#include <map>
#include <nlohmann/json.hpp>

#include "tuner/dispatch_losses.h"
#include "tuner/emit.h"
#include "tuner/held_out.h"

namespace muse::tuner {
namespace {

using nlohmann::json;

json key_json(const dispatch::Key& k, bool contexts) {
  json result{{"batch", k.batch},
              {"q_len", k.q_len},
              {"num_q_heads", k.num_q_heads},
              {"num_kv_heads", k.num_kv_heads},
              {"head_dim", k.head_dim},
              {"page_size", k.page_size},
              {"window", k.window},
              {"rope", k.rope},
              {"scaled", k.scaled}};
  if (contexts) result["context"] = k.context;
  return result;
}

/// Numbers of pipelines in the document's list.
using Numbers = std::map<std::string, size_t>;

/// By number, percent.
json losses_json(const DispatchRow& row, const Numbers& numbers) {
  json result = json::object();
  for (const auto& [pipeline, loss] : row.losses) {
    result[std::to_string(numbers.at(pipeline))] = loss / 100.0;
  }
  return result;
}

json row_json(const DispatchRow& row, const Numbers& numbers, bool contexts) {
  json result{{"key", key_json(dispatch_key(row.shape, contexts), contexts)},
              {"pipeline", row.pipeline},
              {"shape", key(row.shape)},
              {"median_ns", row.median_ns},
              {"interval_ns", {row.low_ns, row.high_ns}},
              {"base_median_ns", row.base_median_ns},
              {"margin_pct", margin_pct(row)},
              {"regret_pct", row.regret_pct},
              {"losses_pct", losses_json(row, numbers)},
              {"status", row.status},
              {"run", row.run},
              {"date", row.date}};
  if (contexts) {
    if (row.among_siblings) result["raced"] = "siblings";
    result["rule"] = row.rule;
    result["tie_set"] = row.tie_set;
    return result;
  }
  for (const ShapeRegret& one : row.over) {
    result["shapes"].push_back(
        {{"shape", one.shape}, {"median_ns", one.median_ns}, {"regret_pct", one.regret_pct}});
  }
  return result;
}

json rows_json(const std::vector<DispatchRow>& rows, const Numbers& numbers, bool contexts) {
  json result = json::array();
  for (const DispatchRow& row : in_preference(rows)) {
    result.push_back(row_json(row, numbers, contexts));
  }
  return result;
}

json axis_json(const dispatch::Axis& axis) {
  return axis.exact ? json("exact") : json(axis.weight / 256.0);
}

json regret_json(const Regret& regret) {
  return {{"worst_pct", 100 * regret.worst}, {"mean_pct", 100 * regret.mean}};
}

json held_out_json(const std::vector<HeldOutShape>& shapes) {
  const HeldOutSummary s = summary(shapes);
  json lookups = json::array();
  for (const HeldOutShape& one : shapes) {
    const std::optional<double> lost = regret(one);
    lookups.push_back({{"shape", one.shape},
                       {"match", name(one.match)},
                       {"distance", one.distance},
                       {"pick", one.pick},
                       {"pick_ns", one.pick_ns ? json(*one.pick_ns) : json()},
                       {"best", one.best},
                       {"best_ns", one.best_ns},
                       {"regret_pct", lost ? json(100 * *lost) : json()}});
  }
  return {{"shapes", s.shapes},
          {"measured", s.measured},
          {"exact", s.exact},
          {"near", s.near},
          {"base", s.base},
          {"regret", s.regret ? regret_json(*s.regret) : json()},
          {"worst_shape", s.regret ? json(s.worst) : json()},
          {"lookups", lookups}};
}

json device_json(const DispatchTable& table) {
  const DeviceClass& d = table.device;
  return {
      {"model", d.model},         {"isa", d.isa},
      {"host", d.host},           {"cc", d.cc},
      {"sm_count", d.sm_count},   {"memory_bytes", d.memory_bytes},
      {"driver", table.driver},   {"driver_version", d.driver_version},
      {"toolkit", table.toolkit}, {"compiler_version", compiler_version(table.toolkit, d.host)}};
}

}  // namespace

std::string dispatch_json(const DispatchTable& table, const std::string& header_hash) {
  const std::vector<std::string> pipelines = named_pipelines(table);
  Numbers numbers;
  for (size_t i = 0; i < pipelines.size(); ++i) numbers.emplace(pipelines[i], i);
  json variants = json::array();
  for (const VariantAbi& v : table.variants) {
    variants.push_back({{"name", v.name}, {"abi", v.abi}, {"source_hash", v.source_hash}});
  }
  std::sort(variants.begin(), variants.end());
  json result{{"schema", "muse.dispatch"},
              {"version", 1},
              {"format", MUSE_DISPATCH_FORMAT},
              {"id", emit_id(table)},
              {"header_hash", header_hash},
              {"generator", table.generator},
              {"provenance", table.provenance},
              {"device", device_json(table)},
              {"regime", table.regime},
              {"timer", table.timer},
              {"base", table.base},
              {"source_hash", table.source_hash},
              {"pipelines", pipelines},
              {"generalists", generalists(table)},
              {"variants", variants},
              {"axes",
               {{"q_len", axis_json(table.rules.q_len)},
                {"batch", axis_json(table.rules.batch)},
                {"context", axis_json(table.rules.context)}}},
              {"max_distance", static_cast<double>(table.rules.limit) / dispatch::kDistanceOne},
              {"regret", regret_json(table.regret)},
              {"captured_regret", regret_json(table.captured_regret)},
              {"entries", rows_json(table.rows, numbers, true)},
              {"captured", rows_json(table.captured, numbers, false)}};
  if (table.held_out) {
    result["held_out"] = {{"provenance", table.held_out->provenance},
                          {"guard", name(table.held_out->guard)},
                          {"entries", held_out_json(table.held_out->shapes)},
                          {"captured", held_out_json(table.held_out->captured)}};
  }
  // Text of a user may be no UTF-8; it is replaced rather than refused.
  return result.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace muse::tuner
