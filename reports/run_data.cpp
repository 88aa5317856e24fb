// SPDX-License-Identifier: Apache-2.0
// Reads a run from the store and derives what reports show.
#include "reports/run_data.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string_view>
#include <tuple>

#include "profiler/statistics.h"

namespace muse::reports {
namespace {

std::optional<double> ratio(double base_ns, double ns) {
  if (!(base_ns > 0) || !(ns > 0) || !std::isfinite(base_ns) || !std::isfinite(ns)) return {};
  return base_ns / ns;
}

/// Whole pipelines first, then by first stage, then by text.
std::tuple<int, int, std::string> span_order(const std::string& span) {
  constexpr std::string_view kStages[] = {"prepare", "attention", "combine", "gate"};
  const std::string_view first = std::string_view(span).substr(0, span.find('.'));
  const auto at = std::find(std::begin(kStages), std::end(kStages), first) - std::begin(kStages);
  return {span != "prepare..gate", static_cast<int>(at), span};
}

std::vector<std::string> strings_of(const std::string& json_array) {
  std::vector<std::string> out;
  const auto parsed = nlohmann::json::parse(json_array, nullptr, false);
  if (!parsed.is_array()) return out;
  for (const auto& item : parsed) {
    if (item.is_string()) out.push_back(item.get<std::string>());
  }
  return out;
}

std::vector<Choice> choices_of(const db::Store& store, db::Id run) {
  std::vector<Choice> choices;
  const auto candidate = [&](db::Id trial) {
    return trial == 0 ? std::string() : store.candidate(store.trial(trial).key.candidate_id).key;
  };
  for (const db::SelectionRow& row : store.selections(run)) {
    choices.push_back({row, store.problem(row.problem_id).key, candidate(row.trial_id),
                       candidate(row.base_trial_id), strings_of(row.tie_set),
                       ratio(row.base_median_ns, row.median_ns)});
  }
  std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return std::tuple(a.shape, a.row.regime, span_order(a.row.span), a.row.handoff_in, a.row.id) <
           std::tuple(b.shape, b.row.regime, span_order(b.row.span), b.row.handoff_in, b.row.id);
  });
  return choices;
}

enum class Kind { kValid, kFailed, kUnsupported, kUnfinished };

/// Unknown words count as failed: the database may be newer than its schema number says.
Kind kind(const std::string& state) {
  if (state == "ok" || state == "degraded") return Kind::kValid;
  if (state == "unsupported") return Kind::kUnsupported;
  if (state == "pending" || state == "running") return Kind::kUnfinished;
  return Kind::kFailed;
}

std::vector<Trial> trials_of(const db::Store& store, db::Id run,
                             const std::vector<Choice>& choices) {
  std::map<std::tuple<std::string, std::string, std::string, std::string>, double> base_ns;
  for (const Choice& c : choices) {
    base_ns[{c.shape, c.row.span, c.row.handoff_in, c.row.regime}] = c.row.base_median_ns;
  }
  std::vector<Trial> trials;
  for (const db::Store::RunTrial& row : store.run_trials(run)) {
    Trial trial;
    trial.shape = row.problem.key;
    trial.candidate = row.candidate.key;
    trial.span = row.candidate.span;
    trial.handoff_in = row.trial.key.handoff_in;
    trial.regime = row.trial.key.regime;
    trial.state = row.trial.state;
    trial.reason = row.trial.reason;
    trial.failed = kind(trial.state) == Kind::kFailed;
    trial.reused = row.reused;
    trial.samples = row.sample_count;
    if (row.median_ns && std::isfinite(*row.median_ns)) trial.median_ns = row.median_ns;
    const auto base = base_ns.find({trial.shape, trial.span, trial.handoff_in, trial.regime});
    if (trial.median_ns && base != base_ns.end()) {
      trial.speedup = ratio(base->second, *trial.median_ns);
    }
    trials.push_back(std::move(trial));
  }
  std::sort(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) {
    using View = std::string_view;
    const auto order = [](const Trial& t) {
      return std::tuple(View(t.shape), View(t.regime), span_order(t.span), View(t.handoff_in),
                        t.median_ns.value_or(INFINITY), View(t.candidate), View(t.state),
                        View(t.reason));
    };
    return order(a) < order(b);
  });
  return trials;
}

/// The reason with every run of digits replaced, so that indices and values do not split a group.
std::string pattern(const std::string& reason) {
  std::string out;
  for (const char c : reason) {
    if (c < '0' || c > '9') {
      out += c;
    } else if (out.empty() || out.back() != '#') {
      out += '#';
    }
  }
  return out;
}

std::vector<Failure> failures_of(const std::vector<Trial>& trials) {
  std::map<std::pair<std::string, std::string>, Failure> groups;
  std::map<std::pair<std::string, std::string>, std::set<std::string>> names;
  for (const Trial& trial : trials) {
    if (kind(trial.state) != Kind::kFailed && kind(trial.state) != Kind::kUnsupported) continue;
    const std::pair group{trial.state, pattern(trial.reason)};
    Failure& failure = groups[group];
    if (failure.count++ == 0) {
      failure.state = trial.state;
      failure.reason = trial.reason;
    }
    names[group].insert(trial.candidate);
  }
  std::vector<Failure> failures;
  for (auto& [group, failure] : groups) {
    failure.candidates.assign(names[group].begin(), names[group].end());
    failures.push_back(std::move(failure));
  }
  std::stable_sort(failures.begin(), failures.end(), [](const Failure& a, const Failure& b) {
    return std::tuple(a.state == "unsupported", -a.count) <
           std::tuple(b.state == "unsupported", -b.count);
  });
  return failures;
}

Counts counts_of(const RunData& data) {
  Counts counts;
  for (const Trial& trial : data.trials) {
    ++counts.trials;
    counts.reused += trial.reused;
    switch (kind(trial.state)) {
      case Kind::kValid:
        ++counts.valid;
        break;
      case Kind::kFailed:
        ++counts.failed;
        break;
      case Kind::kUnsupported:
        ++counts.unsupported;
        break;
      case Kind::kUnfinished:
        ++counts.unfinished;
        break;
    }
  }
  for (const Choice& choice : data.choices) {
    ++counts.selections;
    counts.tied += choice.row.status.starts_with("tie");
    counts.inconclusive += choice.row.status == "inconclusive";
    counts.degraded += choice.row.status == "degraded";
  }
  return counts;
}

std::vector<Speedup> speedups_of(const std::vector<Choice>& choices) {
  std::map<std::string, std::vector<const Choice*>> by_regime;
  for (const Choice& choice : choices) {
    if (choice.whole() && choice.speedup) by_regime[choice.row.regime].push_back(&choice);
  }
  std::vector<Speedup> speedups;
  for (const auto& [regime, group] : by_regime) {
    std::vector<double> factors;
    for (const Choice* choice : group) factors.push_back(*choice->speedup);
    const auto worst = std::min_element(factors.begin(), factors.end());
    const Choice* const worst_choice = group[static_cast<size_t>(worst - factors.begin())];
    speedups.push_back({regime, static_cast<int64_t>(group.size()),
                        profiler::geometric_mean(factors), *worst, worst_choice->shape});
  }
  return speedups;
}

std::string counted(size_t count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

/// Shapes whose whole pipelines differ from regime to regime, each with who wins where. Where the
/// winners tie in both regimes there is nothing to disagree about.
std::vector<std::string> regime_splits(const std::vector<Choice>& choices) {
  std::map<std::string, std::vector<const Choice*>> by_shape;
  for (const Choice& choice : choices) {
    if (choice.whole() && !choice.winner.empty()) by_shape[choice.shape].push_back(&choice);
  }
  const auto ties = [](const Choice& choice, const std::string& key) {
    return choice.winner == key ||
           std::find(choice.ties.begin(), choice.ties.end(), key) != choice.ties.end();
  };
  std::vector<std::string> splits;
  for (const auto& [shape, regimes] : by_shape) {
    bool split = false;
    std::string text;
    for (const Choice* one : regimes) {
      for (const Choice* other : regimes) split |= !ties(*one, other->winner);
      text += (text.empty() ? "" : ", ") + one->row.regime + ": " + one->winner;
    }
    if (split) splits.push_back(shape + " (" + text + ")");
  }
  return splits;
}

std::vector<Banner> banners_of(const RunData& data) {
  std::vector<Banner> banners;
  const auto bad = [&](std::string text) { banners.push_back({true, std::move(text)}); };
  const auto caution = [&](std::string text) { banners.push_back({false, std::move(text)}); };
  if (data.device.kind == "host") {
    bad("CPU-only results: these times say nothing about a GPU.");
  }
  if (data.run.status != "complete") {
    bad("Partial sweep: the run is " + data.run.status +
        ". Run the command below again to go on from here.");
  }
  std::set<std::string> timers;
  for (const db::RaceRow& race : data.races) timers.insert(race.timer);
  if (timers.size() > 1) bad("Mixed timers: races of this run were timed in different ways.");
  if (!data.quarantines.empty()) {
    bad("Quarantine: " +
        counted(data.quarantines.size(), "build of a candidate", "builds of candidates") +
        " crashed or hung too often on this device and stay out.");
  }
  if (data.counts.degraded > 0) {
    bad("Degraded: " +
        counted(static_cast<size_t>(data.counts.degraded), "choice rests", "choices rest") +
        " on rounds in which the clock or the sentinel moved.");
  }
  if (data.counts.inconclusive > 0) {
    caution("Inconclusive: for " +
            counted(static_cast<size_t>(data.counts.inconclusive), "choice", "choices") +
            " the rounds leave open a difference above the switch margin.");
  }
  if (const std::vector<std::string> splits = regime_splits(data.choices); !splits.empty()) {
    constexpr size_t kNamed = 3;
    std::string text = "Regimes disagree: the best whole pipeline depends on the caches for " +
                       counted(splits.size(), "shape: ", "shapes: ");
    for (size_t i = 0; i < std::min(splits.size(), kNamed); ++i) {
      text += (i == 0 ? "" : "; ") + splits[i];
    }
    if (splits.size() > kNamed) {
      text += "; and " + std::to_string(splits.size() - kNamed) + " more";
    }
    caution(text + ".");
  }
  if (data.choices.empty())
    caution("Nothing was chosen: no span of this run has a measured candidate.");
  return banners;
}

std::string fixed(double value, int decimals) {
  char text[400];
  const auto [end, error] =
      std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, decimals);
  return error == std::errc{} ? std::string(text, end) : std::string("\xE2\x80\x93");
}

/// Decimals for four significant digits, at most three.
int decimals(double value) { return value >= 1000 ? 0 : value >= 100 ? 1 : value >= 10 ? 2 : 3; }

}  // namespace

RunData collect(const db::Store& store, db::Id run) {
  const std::optional<db::RunRow> row = store.run(run);
  if (!row) throw std::invalid_argument("the database has no run " + std::to_string(run));
  RunData data;
  data.run = *row;
  data.device = store.device(row->device_id);
  data.build = store.build(row->build_id);
  data.choices = choices_of(store, run);
  data.trials = trials_of(store, run, data.choices);
  data.failures = failures_of(data.trials);
  data.races = store.races(run);
  data.quarantines = store.quarantines(row->device_id);
  data.dispatch_entries = store.dispatch_entries(run);
  data.runs_in_database = static_cast<int64_t>(store.runs().size());
  std::set<std::string> shapes;
  for (const Trial& trial : data.trials) shapes.insert(trial.shape);
  for (const Choice& choice : data.choices) shapes.insert(choice.shape);
  data.shapes.assign(shapes.begin(), shapes.end());
  data.counts = counts_of(data);
  data.speedups = speedups_of(data.choices);
  data.banners = banners_of(data);
  return data;
}

std::vector<const Trial*> best_trials(const RunData& data, size_t most) {
  std::vector<std::pair<size_t, size_t>> ranked;  // rank within its race, index
  size_t rank = 0;
  for (size_t i = 0; i < data.trials.size(); ++i) {
    const Trial& trial = data.trials[i];
    const bool same = i > 0 && std::tie(trial.shape, trial.regime, trial.span, trial.handoff_in) ==
                                   std::tie(data.trials[i - 1].shape, data.trials[i - 1].regime,
                                            data.trials[i - 1].span, data.trials[i - 1].handoff_in);
    rank = same ? rank + 1 : 0;
    ranked.emplace_back(trial.median_ns ? rank : SIZE_MAX, i);
  }
  if (ranked.size() > most) {
    std::sort(ranked.begin(), ranked.end());
    ranked.resize(most);
  }
  std::vector<size_t> kept;
  for (const auto& [unused, i] : ranked) kept.push_back(i);
  std::sort(kept.begin(), kept.end());
  std::vector<const Trial*> trials;
  for (const size_t i : kept) trials.push_back(&data.trials[i]);
  return trials;
}

std::string microseconds(std::optional<double> ns) {
  if (!ns || !std::isfinite(*ns)) return "\xE2\x80\x93";
  return fixed(*ns / 1000, decimals(std::abs(*ns) / 1000));
}

std::string times(std::optional<double> factor) {
  if (!factor || !std::isfinite(*factor)) return "\xE2\x80\x93";
  return fixed(*factor, *factor >= 100 ? 0 : 2) + "\xC3\x97";
}

std::string digits(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace muse::reports
