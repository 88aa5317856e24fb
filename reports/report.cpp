// SPDX-License-Identifier: Apache-2.0
// The HTML page around its sections, and the JSON report.
#include "reports/report.h"

#include "reports/sections.h"

namespace muse::reports {
namespace {

void head(Html& html, const RunData& data) {
  html.markup("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
  html.markup("<meta http-equiv=\"Content-Security-Policy\"");
  html.attribute("content", "default-src 'none'; style-src " + csp_hash(kStyle) + "; script-src " +
                                csp_hash(kScript) + "; base-uri 'none'; form-action 'none'");
  html.markup(">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
  html.markup("<meta name=\"referrer\" content=\"no-referrer\">\n<title>");
  html.text("muse-tune report: run " + std::to_string(data.run.id) + " on " + data.device.name);
  html.markup("</title>\n").inline_style(kStyle).markup("\n</head>\n");
}

void top(Html& html, const RunData& data) {
  html.markup("<body>\n<a class=\"skip\" href=\"#verdict\">To the verdict</a>\n<header>\n<h1>");
  html.text("Tuning report: run " + std::to_string(data.run.id)).markup("</h1>\n");
  html.markup("<p class=\"soft\">").text(data.device.name + ", " + data.run.started);
  html.markup("</p>\n<nav aria-label=\"Sections\"><ul>\n");
  html.markup("<li><a href=\"#verdict\">Verdict</a></li>\n");
  html.markup("<li><a href=\"#winners\">Winners per shape</a></li>\n");
  html.markup("<li><a href=\"#candidates\">Candidates</a></li>\n");
  html.markup("<li><a href=\"#failures\">Failures by reason</a></li>\n");
  html.markup("<li><a href=\"#method\">Environment and method</a></li>\n");
  html.markup("<li><a href=\"#glossary\">Glossary</a></li>\n</ul></nav>\n</header>\n<main>\n");
}

}  // namespace

std::string html_report(const db::Store& store, db::Id run) {
  const RunData data = collect(store, run);
  Html html;
  head(html, data);
  top(html, data);
  verdict_section(html, data);
  winners_section(html, data);
  candidates_section(html, data);
  failures_section(html, data);
  method_section(html, data);
  glossary_section(html);
  html.markup("</main>\n<footer>").text("Made by muse-tune " + data.build.version);
  html.markup("</footer>\n").data_block("data", run_json(data, rows_shown(data), false));
  html.markup("\n").inline_script(kScript).markup("\n</body>\n</html>\n");
  return html.take();
}

std::string json_report(const db::Store& store, db::Id run) {
  const RunData data = collect(store, run);
  return run_json(data, data.trials.size(), true) + "\n";
}

}  // namespace muse::reports
