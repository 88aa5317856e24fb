// SPDX-License-Identifier: Apache-2.0
// Reads an emitted table's JSON.
#include "tuner/dispatch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "tuner/diagnostic.h"
#include "tuner/dispatch_losses.h"

namespace muse::tuner {
namespace {

using nlohmann::json;

/// A value with its place. The first error of a document stands; after it every reader gives
/// something empty.
class Node {
 public:
  Node(const json& value, std::string where, std::string& error)
      : value_(&value), where_(std::move(where)), error_(&error) {}

  void fail(const std::string& what) const {
    if (error_->empty()) *error_ = (where_.empty() ? "" : where_ + ": ") + what;
  }
  bool is_string() const { return value_->is_string(); }
  bool has(const char* name) const { return value_->is_object() && value_->contains(name); }

  Node at(const char* name) const {
    static const json nothing;
    const std::string where = where_.empty() ? name : where_ + "." + name;
    if (has(name)) return {value_->at(name), where, *error_};
    fail(value_->is_object() ? fmt::format("no '{}' in it", name) : expected("an object"));
    return {nothing, where, *error_};
  }
  std::string text() const {
    if (is_string()) return value_->get<std::string>();
    fail(expected("a text"));
    return {};
  }
  double number() const {
    if (value_->is_number()) return value_->get<double>();
    fail(expected("a number"));
    return 0;
  }
  int64_t integer() const {
    const bool too_large = value_->is_number_unsigned() && value_->get<uint64_t>() > INT64_MAX;
    if (value_->is_number_integer() && !too_large) return value_->get<int64_t>();
    fail(expected("an integer"));
    return 0;
  }
  bool boolean() const {
    if (value_->is_boolean()) return value_->get<bool>();
    fail(expected("true or false"));
    return false;
  }
  /// Of a time; zero only where that says "not known".
  double time_ns(bool zero = false) const {
    const double ns = number();
    if (!(ns > 0) && !(zero && ns == 0)) fail("a time above zero is expected");
    return ns;
  }
  std::vector<Node> list() const {
    std::vector<Node> all;
    if (!value_->is_array()) fail(expected("a list"));
    for (size_t i = 0; value_->is_array() && i < value_->size(); ++i) {
      all.emplace_back((*value_)[i], fmt::format("{}[{}]", where_, i), *error_);
    }
    return all;
  }
  std::vector<std::pair<std::string, Node>> members() const {
    std::vector<std::pair<std::string, Node>> all;
    if (!value_->is_object()) fail(expected("an object"));
    if (!value_->is_object()) return all;
    for (const auto& [name, member] : value_->items()) {
      all.emplace_back(name, Node(member, where_.empty() ? name : where_ + "." + name, *error_));
    }
    return all;
  }
  /// Nothing else is in it.
  const Node& only(std::vector<std::string> names) const {
    for (const auto& [name, unused] : members()) {
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        fail(fmt::format("'{}' is no key of this version", printable(name)));
      }
    }
    return *this;
  }

 private:
  std::string expected(const char* what) const {
    return fmt::format("{} is expected, not {}", what, value_->type_name());
  }

  const json* value_;
  std::string where_;
  std::string* error_;
};

std::vector<std::string> texts(const Node& node) {
  std::vector<std::string> all;
  for (const Node& one : node.list()) all.push_back(one.text());
  return all;
}

Regret read_regret(const Node& node) {
  node.only({"worst_pct", "mean_pct"});
  return {node.at("worst_pct").number() / 100, node.at("mean_pct").number() / 100};
}

// That of the shape: the row would be found under another one than says so.
void check_key(const Node& node, const dispatch::Key& wanted, bool contexts) {
  std::vector<std::string> names{"rope", "scaled"};
  const auto check = [&](const char* name, int64_t value) {
    names.emplace_back(name);
    if (node.at(name).integer() != value) node.at(name).fail("it is not that of the row's shape");
  };
  check("batch", wanted.batch);
  check("q_len", wanted.q_len);
  check("num_q_heads", wanted.num_q_heads);
  check("num_kv_heads", wanted.num_kv_heads);
  check("head_dim", wanted.head_dim);
  check("page_size", wanted.page_size);
  check("window", wanted.window);
  if (contexts) check("context", wanted.context);
  const bool same =
      node.at("rope").boolean() == wanted.rope && node.at("scaled").boolean() == wanted.scaled;
  if (!same) node.fail("rope and scaled are not those of the row's shape");
  node.only(names);
}

std::string read_shape(const Node& node, Shape& shape) {
  const std::string text = node.text();
  auto parsed = parse_shape(text);
  if (parsed) {
    shape = *parsed;
  } else {
    node.fail(parsed.error());
  }
  return text;
}

void read_evidence(const Node& node, bool contexts, DispatchRow& row) {
  if (contexts) {
    row.among_siblings = node.has("raced");
    if (row.among_siblings && node.at("raced").text() != "siblings") {
      node.at("raced").fail("a row raced among siblings, or does not say so");
    }
    row.rule = node.at("rule").text();
    row.tie_set = texts(node.at("tie_set"));
    return;
  }
  for (const Node& one : node.at("shapes").list()) {
    one.only({"shape", "median_ns", "regret_pct"});
    Shape unused;
    row.over.push_back({.shape = read_shape(one.at("shape"), unused),
                        .median_ns = one.at("median_ns").time_ns(),
                        .regret_pct = one.at("regret_pct").number()});
  }
  if (row.over.empty()) node.at("shapes").fail("a row is chosen for one shape at least");
}

/// The document's list.
using Pipelines = std::vector<std::string>;

void read_losses(const Node& node, const Pipelines& pipelines, DispatchRow& row) {
  constexpr double kMostPct = (dispatch::kUnmeasured - 1) / 100.0;
  for (const auto& [name, loss] : node.members()) {
    size_t number = pipelines.size();
    std::from_chars(name.data(), name.data() + name.size(), number);
    if (number >= pipelines.size() || std::to_string(number) != name) {
      node.fail(fmt::format("'{}' is no place in the list of pipelines", printable(name)));
      return;
    }
    const double pct = loss.number();
    if (!(pct >= 0) || pct > kMostPct) {
      loss.fail(fmt::format("a loss from 0 to {} percent is expected", kMostPct));
      return;
    }
    row.losses[pipelines[number]] = static_cast<uint16_t>(std::lround(100 * pct));
  }
}

DispatchRow read_row(const Node& node, const Pipelines& pipelines, bool contexts) {
  std::vector<std::string> names{"key",    "pipeline",       "shape",      "median_ns",
                                 "run",    "base_median_ns", "margin_pct", "interval_ns",
                                 "status", "regret_pct",     "losses_pct", "date"};
  names.insert(names.end(), {contexts ? "rule" : "shapes"});
  if (contexts) names.insert(names.end(), {"tie_set", "raced"});
  node.only(names);
  DispatchRow row;
  read_shape(node.at("shape"), row.shape);
  row.pipeline = node.at("pipeline").text();
  row.median_ns = node.at("median_ns").time_ns();
  const Node interval = node.at("interval_ns");
  const std::vector<Node> ends = interval.list();
  if (ends.size() == 2) {
    row.low_ns = ends[0].time_ns();
    row.high_ns = ends[1].time_ns();
  }
  if (ends.size() != 2 || row.low_ns > row.high_ns) interval.fail("it is no interval");
  row.base_median_ns = node.at("base_median_ns").time_ns(true);
  row.regret_pct = node.at("regret_pct").number();
  read_losses(node.at("losses_pct"), pipelines, row);
  row.status = node.at("status").text();
  row.run = node.at("run").integer();
  row.date = node.at("date").text();
  node.at("margin_pct").number();  // follows from the times
  read_evidence(node, contexts, row);
  if (!node.has("key") || row.pipeline.empty()) node.fail("a row has a key and a pipeline");
  check_key(node.at("key"), dispatch_key(row.shape, contexts), contexts);
  return row;
}

std::vector<DispatchRow> read_rows(const Node& node, const Pipelines& pipelines, bool contexts) {
  std::vector<DispatchRow> rows;
  for (const Node& one : node.list()) rows.push_back(read_row(one, pipelines, contexts));
  return rows;
}

dispatch::Axis read_axis(const Node& node) {
  constexpr int kUnit = 256;
  constexpr double kMost = 1e6;
  if (node.is_string()) {
    if (node.text() != "exact") node.fail("an axis is a weight or \"exact\"");
    return {true, kUnit};
  }
  const double weight = node.number();
  if (!(weight > 0) || weight > kMost) node.fail("a weight above zero is expected");
  return {false, static_cast<int32_t>(std::lround(std::clamp(weight, 0.0, kMost) * kUnit))};
}

dispatch::Rules read_rules(const Node& axes, const Node& max_distance) {
  constexpr double kMost = 1e6;
  axes.only({"q_len", "batch", "context"});
  const double limit = max_distance.number();
  if (!(limit >= 0) || limit > kMost) max_distance.fail("a distance of zero or more is expected");
  const double within = std::clamp(limit, 0.0, kMost);
  return {read_axis(axes.at("q_len")), read_axis(axes.at("batch")), read_axis(axes.at("context")),
          std::llround(within * static_cast<double>(dispatch::kDistanceOne))};
}

void read_device(const Node& node, DispatchTable& table) {
  node.only({"model", "isa", "host", "cc", "sm_count", "memory_bytes", "driver", "driver_version",
             "toolkit", "compiler_version"});
  DeviceClass& device = table.device;
  device.model = node.at("model").text();
  device.isa = node.at("isa").text();
  device.host = node.at("host").boolean();
  device.cc = static_cast<int>(node.at("cc").integer());
  device.sm_count = static_cast<int>(node.at("sm_count").integer());
  device.memory_bytes = node.at("memory_bytes").integer();
  device.driver_version = static_cast<int>(node.at("driver_version").integer());
  table.driver = node.at("driver").text();
  table.toolkit = node.at("toolkit").text();
  if (node.at("compiler_version").integer() != compiler_version(table.toolkit, device.host)) {
    node.at("compiler_version").fail("it is not that of the toolkit");
  }
}

void require_format(const Node& node) {
  if (node.at("schema").text() != "muse.dispatch") node.fail("this is no table of muse-tune emit");
  const auto require = [&](const char* name, int64_t known) {
    if (node.at(name).integer() == known) return;
    node.at(name).fail(fmt::format("this muse-tune reads {} alone: emit the table with it", known));
  };
  require("version", 1);
  require("format", MUSE_DISPATCH_FORMAT);
}

DispatchFile read_document(const Node& node) {
  DispatchFile file;
  DispatchTable& table = file.table;
  require_format(node);
  node.only({"schema",          "version",     "format",   "id",      "header_hash",  "generator",
             "provenance",      "device",      "regime",   "timer",   "base",         "source_hash",
             "pipelines",       "generalists", "variants", "axes",    "max_distance", "regret",
             "captured_regret", "entries",     "captured", "held_out"});
  node.at("id").text();  // for builds; here the header's text tells
  file.header_hash = node.at("header_hash").text();
  table.generator = node.at("generator").text();
  for (const auto& [name, value] : node.at("provenance").members()) {
    table.provenance[name] = value.text();
  }
  read_device(node.at("device"), table);
  table.regime = node.at("regime").text();
  table.timer = node.at("timer").text();
  table.base = node.at("base").text();
  table.source_hash = node.at("source_hash").text();
  for (const Node& one : node.at("variants").list()) {
    one.only({"name", "abi", "source_hash"});
    table.variants.push_back({one.at("name").text(), static_cast<int>(one.at("abi").integer()),
                              one.at("source_hash").text()});
  }
  table.rules = read_rules(node.at("axes"), node.at("max_distance"));
  table.regret = read_regret(node.at("regret"));
  table.captured_regret = read_regret(node.at("captured_regret"));
  const Pipelines pipelines = texts(node.at("pipelines"));
  table.rows = read_rows(node.at("entries"), pipelines, true);
  table.captured = read_rows(node.at("captured"), pipelines, false);
  if (table.rows.empty()) node.at("entries").fail("a table has one entry at least");
  if (pipelines != named_pipelines(table)) {
    node.at("pipelines").fail("they are not the base and then, in order, what the rows name");
  }
  if (texts(node.at("generalists")) != generalists(table)) {
    node.at("generalists").fail("they are not those that no row has chosen");
  }
  if (node.has("held_out")) node.at("held_out").members();
  return file;
}

}  // namespace

tl::expected<DispatchFile, std::string> parse_dispatch_json(std::string_view text) {
  json document;
  try {
    document = json::parse(text);
  } catch (const json::parse_error& error) {
    return tl::unexpected(
        fmt::format("no JSON at byte {}: the file is damaged, emit it again", error.byte));
  } catch (const json::exception&) {  // what() names places in the library
    return tl::unexpected<std::string>("a number is larger than any: emit it again");
  }
  std::string error;
  DispatchFile file = read_document(Node(document, "", error));
  if (!error.empty()) return tl::unexpected(std::move(error));
  return file;
}

}  // namespace muse::tuner
