// SPDX-License-Identifier: Apache-2.0
// Verdict, winners, candidates, failures: what the run found.
#include "reports/sections.h"

#include <cmath>
#include <initializer_list>

namespace muse::reports {
namespace {

constexpr double kMissing = NAN;

struct Column {
  Markup title;
  bool numeric = false;
};

/// Opens the scrolling frame, the table with its caption and head, and the body.
void begin_table(Html& html, Markup id, Markup caption, std::string_view note,
                 std::initializer_list<Column> columns) {
  html.markup("<div class=\"scroll\" role=\"region\" tabindex=\"0\"");
  html.attribute("aria-labelledby", std::string(id.text()) + "-caption");
  html.markup("><table class=\"sortable\"").attribute("id", id.text()).markup("><caption");
  html.attribute("id", std::string(id.text()) + "-caption").markup(">").markup(caption);
  if (!note.empty()) html.markup(" <span>").text(note).markup("</span>");
  html.markup("</caption><thead><tr>");
  for (const Column& column : columns) {
    html.markup(column.numeric ? Markup("<th scope=\"col\" class=\"n\">")
                               : Markup("<th scope=\"col\">"));
    html.markup(column.title).markup("</th>");
  }
  html.markup("</tr></thead><tbody>\n");
}

void end_table(Html& html) { html.markup("</tbody></table></div>\n"); }

void row_head(Html& html, std::string_view name) {
  html.markup("<tr><th scope=\"row\">").code(name).markup("</th>");
}

void text_cell(Html& html, std::string_view text) {
  html.markup("<td>").text(text).markup("</td>");
}

/// Shown as `shown`, sorted by `value`; a dash that sorts last where the value is missing.
void number_cell(Html& html, double value, std::string_view shown, Markup kind = "") {
  html.markup("<td class=\"n\"");
  if (std::isfinite(value)) html.attribute("data-v", digits(value));
  html.markup(">");
  if (kind.text().empty()) {
    html.number(value, shown).markup("</td>");
    return;
  }
  html.markup("<span").attribute("class", kind.text()).markup(">");
  html.number(value, shown).markup("</span></td>");
}

void time_cell(Html& html, std::optional<double> ns) {
  number_cell(html, ns.value_or(kMissing), microseconds(ns));
}

/// Beyond the tie limit of half a percent the colour says the direction, as the number does.
void speedup_cell(Html& html, std::optional<double> factor) {
  const double value = factor.value_or(kMissing);
  number_cell(html, value, times(factor),
              value > 1.005   ? Markup("faster")
              : value < 0.995 ? Markup("slower")
                              : Markup(""));
}

void tile(Html& html, Markup title, std::string_view value, std::string_view note) {
  html.markup("<div><dt>").markup(title).markup("</dt><dd>").text(value);
  html.markup("<small>").text(note).markup("</small></dd></div>\n");
}

std::string count(int64_t number, const char* one, const char* many) {
  return std::to_string(number) + " " + (number == 1 ? one : many);
}

void choice_row(Html& html, const Choice& c, bool with_span) {
  row_head(html, c.shape);
  if (with_span) {
    text_cell(html,
              c.row.handoff_in.empty() ? c.row.span : c.row.span + " fed with " + c.row.handoff_in);
  }
  text_cell(html, c.row.regime);
  html.markup("<td>").code(c.winner);
  if (c.ties.size() > 1) {
    html.markup("<details><summary>").text("tie set of " + std::to_string(c.ties.size()));
    html.markup("</summary><ul>");
    for (const std::string& key : c.ties) html.markup("<li>").code(key).markup("</li>");
    html.markup("</ul></details>");
  }
  html.markup("</td>");
  time_cell(html, c.row.median_ns);
  number_cell(html, c.row.high_ns - c.row.low_ns,
              microseconds(c.row.low_ns) + " to " + microseconds(c.row.high_ns));
  time_cell(html, c.base.empty() ? std::nullopt : std::optional(c.row.base_median_ns));
  speedup_cell(html, c.speedup);
  html.markup("<td class=\"state\">").text(c.row.status).markup("</td>");
  text_cell(html, c.row.rule);
  html.markup("</tr>\n");
}

int64_t whole_count(const RunData& data) {
  int64_t whole = 0;
  for (const Choice& choice : data.choices) whole += choice.whole();
  return whole;
}

}  // namespace

size_t rows_shown(const RunData& data) {
  return data.trials.size() > kRowLimit ? kRowsBeyond : data.trials.size();
}

void verdict_section(Html& html, const RunData& data) {
  html.markup("<section id=\"verdict\" aria-labelledby=\"verdict-title\">");
  html.markup("<h2 id=\"verdict-title\">Verdict</h2>\n");
  for (const Banner& banner : data.banners) {
    const size_t colon = banner.text.find(':');
    html.markup(banner.bad ? Markup("<p class=\"banner bad\"><strong>")
                           : Markup("<p class=\"banner\"><strong>"));
    html.text(banner.text.substr(0, colon + 1)).markup("</strong>");
    html.text(banner.text.substr(colon + 1)).markup("</p>\n");
  }
  const Counts& c = data.counts;
  html.markup("<dl class=\"tiles\">\n");
  for (const Speedup& s : data.speedups) {
    tile(html, "Speed-up over the base", times(s.geometric_mean),
         "geometric mean of whole pipelines, " + count(s.shapes, "shape", "shapes") + ", " +
             s.regime);
    tile(html, "Worst speed-up", times(s.worst), s.worst_shape + ", " + s.regime);
  }
  if (data.speedups.empty()) {
    tile(html, "Speed-up over the base", times(std::nullopt), "no whole pipeline beside a base");
  }
  tile(html, "Shapes", std::to_string(data.shapes.size()),
       count(c.selections, "choice", "choices") + ", " + std::to_string(c.tied) + " tied");
  tile(html, "Trials", std::to_string(c.trials), std::to_string(c.reused) + " reused");
  tile(html, "Measured", std::to_string(c.valid), "validated and timed");
  tile(html, "Failed", std::to_string(c.failed),
       std::to_string(c.unsupported) + " more unsupported, " + std::to_string(c.unfinished) +
           " unfinished");
  html.markup("</dl>\n<dl class=\"facts\"><dt>Device</dt><dd>").text(data.device.name);
  html.markup("</dd><dt>Run</dt><dd>");
  html.text(std::to_string(data.run.id) + ", " + data.run.status + ", started " + data.run.started);
  html.markup("</dd><dt>Reproduce</dt><dd>").code(data.run.command);
  html.markup("</dd></dl></section>\n");
}

void winners_section(Html& html, const RunData& data) {
  html.markup("<section id=\"winners\" aria-labelledby=\"winners-title\">");
  html.markup("<h2 id=\"winners-title\">Winners per shape</h2>\n");
  const int64_t whole = whole_count(data);
  if (whole > 0) {
    begin_table(html, "pipeline-table", "Whole pipelines", "what the dispatch header names",
                {{"Shape"},
                 {"Regime"},
                 {"Winner"},
                 {"Median, \xC2\xB5s", true},
                 {"95 % interval, \xC2\xB5s", true},
                 {"Base, \xC2\xB5s", true},
                 {"Speed-up", true},
                 {"Status"},
                 {"Rule"}});
    for (const Choice& c : data.choices) {
      if (c.whole()) choice_row(html, c, false);
    }
    end_table(html);
  } else {
    html.markup("<p>No whole pipeline was chosen in this run.</p>\n");
  }
  if (static_cast<size_t>(whole) < data.choices.size()) {
    begin_table(html, "span-table", "Spans", "each timed alone, after its untimed predecessor",
                {{"Shape"},
                 {"Span"},
                 {"Regime"},
                 {"Winner"},
                 {"Median, \xC2\xB5s", true},
                 {"95 % interval, \xC2\xB5s", true},
                 {"Base, \xC2\xB5s", true},
                 {"Speed-up", true},
                 {"Status"},
                 {"Rule"}});
    for (const Choice& c : data.choices) {
      if (!c.whole()) choice_row(html, c, true);
    }
    end_table(html);
  }
  html.markup("</section>\n");
}

void candidates_section(Html& html, const RunData& data) {
  html.markup("<section id=\"candidates\" aria-labelledby=\"candidates-title\">");
  html.markup("<h2 id=\"candidates-title\">Candidates</h2>\n");
  const std::vector<const Trial*> shown = best_trials(data, rows_shown(data));
  const size_t left_out = data.trials.size() - shown.size();
  if (left_out > 0) {
    html.markup("<p class=\"banner\"><strong>Shortened:</strong> ");
    html.text("the best " + std::to_string(shown.size()) + " rows of " +
              std::to_string(data.trials.size()) + "; " + std::to_string(left_out) +
              " are left out here. All of them: ");
    html.markup("<code>muse-tune export</code></p>\n");
  }
  if (shown.empty()) {
    html.markup("<p>This run has no trials.</p></section>\n");
    return;
  }
  html.markup("<div class=\"tools\" id=\"tools\"></div>\n");
  begin_table(html, "candidate-table", "Every trial of the run", "fastest first within a span",
              {{"Candidate"},
               {"Shape"},
               {"Span"},
               {"Regime"},
               {"Outcome"},
               {"Median, \xC2\xB5s", true},
               {"Speed-up", true},
               {"Samples", true},
               {"Reused"},
               {"Reason"}});
  for (const Trial* t : shown) {
    row_head(html, t->candidate);
    html.markup("<td>").code(t->shape).markup("</td>");
    text_cell(html, t->handoff_in.empty() ? t->span : t->span + " fed with " + t->handoff_in);
    text_cell(html, t->regime);
    html.markup(t->failed ? Markup("<td class=\"state failed\">") : Markup("<td class=\"state\">"));
    html.text(t->state).markup("</td>");
    time_cell(html, t->median_ns);
    speedup_cell(html, t->speedup);
    number_cell(html, static_cast<double>(t->samples), std::to_string(t->samples));
    text_cell(html, t->reused ? "yes" : "no");
    html.markup(t->reason.empty() ? Markup("<td>") : Markup("<td class=\"reason\">"));
    html.text(t->reason.empty() ? "\xE2\x80\x93" : t->reason).markup("</td></tr>\n");
  }
  end_table(html);
  html.markup("</section>\n");
}

void failures_section(Html& html, const RunData& data) {
  constexpr size_t kNamed = 3;
  html.markup("<section id=\"failures\" aria-labelledby=\"failures-title\">");
  html.markup("<h2 id=\"failures-title\">Failures by reason</h2>\n");
  if (data.failures.empty()) {
    html.markup("<p>No candidate failed or was unsupported.</p></section>\n");
    return;
  }
  begin_table(html, "failure-table", "Reasons", "numbers aside; the first reason in full",
              {{"Outcome"}, {"Trials", true}, {"Reason"}, {"Candidates"}});
  for (const Failure& f : data.failures) {
    html.markup("<tr><th scope=\"row\" class=\"state\">").text(f.state).markup("</th>");
    number_cell(html, static_cast<double>(f.count), std::to_string(f.count));
    text_cell(html, f.reason.empty() ? "\xE2\x80\x93" : f.reason);
    html.markup("<td>");
    for (size_t i = 0; i < f.candidates.size() && i < kNamed; ++i) {
      if (i > 0) html.markup("<br>");
      html.code(f.candidates[i]);
    }
    if (f.candidates.size() > kNamed) {
      html.markup("<br>").text("and " + std::to_string(f.candidates.size() - kNamed) + " more");
    }
    html.markup("</td></tr>\n");
  }
  end_table(html);
  html.markup("</section>\n");
}

}  // namespace muse::reports
