// SPDX-License-Identifier: Apache-2.0
// list: the variants of this binary, their tunables, and what they support.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tuner/commands/command.h"

namespace muse::tuner {
namespace {

using nlohmann::json;

// Every span that some configuration of the variant has.
std::vector<std::string> spans(const Variant& variant) {
  std::set<Span> seen;
  for (const Configuration& configuration : space(variant))
    seen.insert(variant.span(configuration));
  std::vector<std::string> names;
  for (const Span span : seen) names.emplace_back(name(span));
  return names;
}

json supports(const Variant& variant, const Spec& spec, const DeviceClass& device) {
  json rows = json::array();
  for (const ShapeEntry& entry : spec.shapes) {
    // One legal configuration that is supported is enough; else the default's reason is the answer.
    const Configuration usual = default_configuration(variant);
    std::string reason = variant.supports(entry.shape.problem, usual, device).reason;
    bool ok = reason.empty();
    for (const Configuration& configuration : space(spec, variant)) {
      if (ok) break;
      ok = variant.supports(entry.shape.problem, configuration, device).ok();
    }
    rows.push_back({{"problem", key(entry.shape)}, {"ok", ok}, {"reason", ok ? "" : reason}});
  }
  return rows;
}

json describe(const Variant& variant) {
  json tunables = json::array(), constraints = json::array();
  for (const Tunable& t : variant.tunables) {
    tunables.push_back({{"name", t.name}, {"values", t.values}, {"default", t.default_value}});
  }
  for (const Constraint& c : variant.constraints) {
    constraints.push_back({{"expr", c.expr}, {"reason", c.reason}});
  }
  return {{"name", variant.name},
          {"target", name(variant.target.kind)},
          {"abi", variant.abi},
          {"spans", spans(variant)},
          {"tunables", tunables},
          {"space", space(variant).size()},
          {"constraints", constraints},
          {"batch_invariant", variant.declared.batch_invariant},
          {"batch_invariant_unless", variant.declared.batch_invariant_unless},
          {"deterministic", variant.declared.deterministic},
          {"precision", name(variant.declared.precision)},
          {"supports", json::array()}};
}

std::string text_table(const json& variants) {
  std::vector<std::vector<std::string>> rows{{"variant", "target", "spans", "space", "tunables"}};
  for (const json& v : variants) {
    std::string tunables;
    for (const json& t : v["tunables"]) {
      tunables +=
          fmt::format("{}{} {{{}}}", tunables.empty() ? "" : "  ", t["name"].get<std::string>(),
                      fmt::join(t["values"].get<std::vector<int64_t>>(), ","));
    }
    rows.push_back({v["name"], v["target"],
                    fmt::format("{}", fmt::join(v["spans"].get<std::vector<std::string>>(), " ")),
                    std::to_string(v["space"].get<int64_t>()), tunables});
  }
  return format_table(rows);
}

// "all 32 shapes", or "2 of 32 shapes: b1_..., b8_..."; two keys show what kind of shape it is.
std::string shapes_text(const std::vector<std::string>& keys, size_t shapes) {
  constexpr size_t kNamed = 2;
  if (keys.size() == shapes)
    return shapes == 1 ? "the only shape" : fmt::format("all {} shapes", shapes);
  return fmt::format(
      "{} of {} shapes: {}{}", keys.size(), shapes,
      fmt::join(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(std::min(keys.size(), kNamed)),
                ", "),
      keys.size() > kNamed ? ", ..." : "");
}

// A line for each variant and reason.
std::string support_text(const json& variants) {
  std::string out;
  for (const json& v : variants) {
    std::map<std::string, std::vector<std::string>> keys_by_reason;
    for (const json& s : v["supports"]) {
      if (!s["ok"]) keys_by_reason[s["reason"]].push_back(s["problem"]);
    }
    for (const auto& [reason, keys] : keys_by_reason) {
      out += fmt::format("{}: {} ({})\n", v["name"].get<std::string>(), reason,
                         shapes_text(keys, v["supports"].size()));
    }
  }
  return out.empty() ? "every variant supports every shape of the config\n" : out;
}

}  // namespace

Command list_command() {
  return {
      "list", "List the variants and what they support", [](CLI::App& app) {
        struct Options {
          std::string config, target = "auto";
          bool json = false;
        };
        auto options = std::make_shared<Options>();
        app.add_option("config", options->config, "Config whose shapes `supports` is asked for");
        app.add_option("--target", options->target, "auto, host or cuda:N")->capture_default_str();
        add_json(app, options->json);
        return [options] {
          json variants = json::array();
          for (const Variant* v : Registry::global().all()) variants.push_back(describe(*v));
          if (!options->config.empty()) {
            const Spec spec = load_config(options->config);
            const TargetAtHand target = resolve_target(options->target);
            for (json& v : variants) {
              const Variant& variant = *Registry::global().find(v["name"].get<std::string>());
              v["supports"] = supports(variant, spec, target.device_class);
            }
          }
          if (options->json) {
            print_json("list", {{"variants", variants}});
          } else {
            print(text_table(variants));
            if (!options->config.empty()) print("\n" + support_text(variants));
          }
          return ExitCode::kOk;
        };
      }};
}

}  // namespace muse::tuner
