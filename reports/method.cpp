// SPDX-License-Identifier: Apache-2.0
// Environment, method and glossary: what the figures rest on.
#include <xxhash.h>

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "reports/sections.h"

namespace muse::reports {
namespace {

void fact(Html& html, Markup name, std::string_view value) {
  html.markup("<dt>").markup(name).markup("</dt><dd>");
  html.text(value.empty() ? "\xE2\x80\x93" : value).markup("</dd>\n");
}

std::string counted(int64_t value) { return value > 0 ? std::to_string(value) : ""; }

std::string mebibytes(int64_t bytes) {
  return bytes > 0 ? std::to_string(bytes >> 20) + " MiB" : "";
}

/// Of the whole data, whatever the page leaves out: equal hashes, equal reports.
std::string data_hash(const RunData& data) {
  const std::string json = run_json(data, data.trials.size(), false);
  const XXH128_hash_t hash = XXH3_128bits(json.data(), json.size());
  std::string out;
  for (const uint64_t half : {hash.high64, hash.low64}) {
    std::array<char, 16> digits;
    const auto [end, unused] = std::to_chars(digits.begin(), digits.end(), half, 16);
    const std::string text(digits.begin(), end);
    out += std::string(16 - text.size(), '0') + text;
  }
  return out;
}

std::string join(const std::set<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

void device_facts(Html& html, const RunData& data) {
  const db::DeviceRow& d = data.device;
  html.markup("<h3>Device</h3><dl class=\"facts\">\n");
  fact(html, "Name", d.name);
  fact(html, "Kind", d.kind);
  fact(html, "Class", d.model + (d.isa.empty() ? "" : ", " + d.isa));
  fact(html, "UUID", d.uuid);
  fact(html, "Compute capability", counted(d.cc));
  fact(html, "Multiprocessors or CPUs", counted(d.sm_count));
  fact(html, "Memory", mebibytes(d.memory_bytes));
  fact(html, "Last-level cache", mebibytes(d.l2_bytes));
  fact(html, "Driver",
       d.driver + (d.driver_version > 0 ? " (CUDA " + std::to_string(d.driver_version) + ")" : ""));
  fact(html, "Clocks", d.clock_policy);
  html.markup("</dl>\n");
}

void build_facts(Html& html, const db::BuildRow& b) {
  html.markup("<h3>Build</h3><dl class=\"facts\">\n");
  fact(html, "Version", b.version);
  fact(html, "Revision", b.revision);
  fact(html, "Compiler", b.compiler);
  fact(html, "Flags", b.flags);
  fact(html, "Type", b.build_type);
  fact(html, "Toolkit", b.toolkit);
  html.markup("</dl>\n");
}

void method_facts(Html& html, const RunData& data) {
  std::set<std::string> timers, rules, steps;
  for (const db::RaceRow& race : data.races) {
    timers.insert(race.timer);
    rules.insert(race.rules);
    steps.insert(nlohmann::json(race.step_ns).dump() + " ns");
  }
  html.markup("<h3>Method</h3>\n");
  html.markup(
      "<p>Every candidate is validated first, by its output. Then a race runs each survivor once "
      "per "
      "round in a random order, the base first and last; the hopeless are dropped by the interval "
      "of "
      "their paired differences, never by rank. The last rounds are fresh: samples that decided "
      "who "
      "stays are not used to decide who wins. Medians carry bootstrap intervals over rounds, never "
      "narrower than one step of the clock.</p>\n<dl class=\"facts\">\n");
  fact(html, "Timer", timers.empty() ? data.run.timer : join(timers));
  fact(html, "Clock step", join(steps));
  fact(html, "Seed", std::to_string(data.run.seed));
  fact(html, "Races", std::to_string(data.races.size()));
  fact(html, "Race rules", join(rules));
  fact(html, "Base", data.run.base);
  html.markup("</dl>\n");
}

void database_facts(Html& html, const RunData& data) {
  html.markup("<h3>Database</h3><dl class=\"facts\">\n");
  fact(html, "Schema", std::to_string(db::kSchemaVersion));
  fact(html, "Runs", std::to_string(data.runs_in_database));
  fact(html, "Trials of this run", std::to_string(data.trials.size()));
  fact(html, "Hash of the run's data", data_hash(data));
  for (const db::DispatchEntryRow& entry : data.dispatch_entries) {
    fact(html, "Emitted", entry.emitted + " to " + entry.header_path);
  }
  html.markup("</dl>\n");
}

void quarantine_table(Html& html, const RunData& data) {
  if (data.quarantines.empty()) return;
  html.markup("<h3>Quarantine</h3><ul>\n");
  for (const db::QuarantineRow& q : data.quarantines) {
    html.markup("<li>").code(q.candidate).text(" since " + q.since + ": " + q.reason);
    html.markup("</li>\n");
  }
  html.markup("</ul>\n");
}

void environment_facts(Html& html, const std::string& environment) {
  const auto parsed = nlohmann::ordered_json::parse(environment, nullptr, false);
  if (!parsed.is_object() || parsed.empty()) return;
  html.markup("<h3>Environment</h3><dl class=\"facts\">\n");
  for (const auto& [name, value] : parsed.items()) {
    html.markup("<dt>").text(name).markup("</dt><dd>");
    html.text(value.is_string() ? value.get<std::string>() : value.dump()).markup("</dd>\n");
  }
  html.markup("</dl>\n");
}

}  // namespace

void method_section(Html& html, const RunData& data) {
  html.markup("<section id=\"method\" aria-labelledby=\"method-title\">");
  html.markup("<h2 id=\"method-title\">Environment and method</h2>\n");
  device_facts(html, data);
  build_facts(html, data.build);
  method_facts(html, data);
  environment_facts(html, data.run.environment);
  quarantine_table(html, data);
  html.markup("<h3>Run</h3><dl class=\"facts\">\n");
  fact(html, "Started", data.run.started);
  fact(html, "Ended", data.run.ended);
  fact(html, "Command", data.run.command);
  fact(html, "Config", data.run.config_path);
  fact(html, "Config hash", data.run.config_hash);
  html.markup("</dl>\n");
  database_facts(html, data);
  if (!data.run.config_text.empty()) {
    html.markup("<h3 id=\"config-title\">Config</h3>");
    html.markup("<pre tabindex=\"0\" role=\"region\" aria-labelledby=\"config-title\">");
    html.text(data.run.config_text).markup("</pre>\n");
  }
  html.markup(
      "<h3>Data</h3><p>This page carries its data as JSON (schema muse.report, version 1) ");
  html.markup("in the element with the id <code>data</code>.</p>");
  html.markup("<div class=\"tools\" id=\"save\"></div></section>\n");
}

void glossary_section(Html& html) {
  struct Term {
    Markup word, meaning;
  };
  constexpr Term kTerms[] = {
      {"stage", "prepare, attention, combine or gate"},
      {"span", "the contiguous stages that one candidate covers"},
      {"candidate", "a variant with one value for each of its tunables"},
      {"pipeline", "candidates that cover all four stages once"},
      {"base", "the pipeline used when nothing is tuned; every speed-up is over it"},
      {"shape", "what is asked: a problem with its lengths"},
      {"regime", "the state of the caches before a sample: cold, warm or rotating"},
      {"speed-up", "median of the base divided by the median of the candidate; above 1 is faster"},
      {"interval", "95 % bootstrap interval of the median over rounds"},
      {"tie set", "candidates that cannot be told from the fastest within the tie limit"},
      {"status winner", "told apart from all others"},
      {"status tie(n)", "chosen by a fixed order among n that cannot be told apart"},
      {"status inconclusive", "the rounds leave open a difference above the switch margin"},
      {"status degraded", "timed while the clock or the sentinel moved"},
      {"rule fastest", "the only one left"},
      {"rule tie_base", "the base is in the tie set and stays"},
      {"rule base_kept", "no gain over the base of at least the switch margin"},
      {"rules tie_workspace, tie_p90, tie_name",
       "inside a tie set: smaller workspace, then lower 90th percentile, then name"},
      {"reused", "measured in an earlier run under the same key"},
  };
  html.markup("<section id=\"glossary\" aria-labelledby=\"glossary-title\">");
  html.markup("<h2 id=\"glossary-title\">Glossary</h2><dl class=\"facts\">\n");
  for (const Term& term : kTerms) {
    html.markup("<dt>").markup(term.word).markup("</dt><dd>").markup(term.meaning);
    html.markup("</dd>\n");
  }
  html.markup("</dl></section>\n");
}

}  // namespace muse::reports
