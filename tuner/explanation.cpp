// SPDX-License-Identifier: Apache-2.0
// Puts states, races and selections of a run into words.
#include "tuner/explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "tuner/console.h"
#include "tuner/scout.h"

namespace muse::tuner {
namespace {

using RunTrial = db::Store::RunTrial;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string with(const std::string& what, const std::string& reason) {
  return reason.empty() ? what : fmt::format("{}: {}", what, first_line(reason));
}

std::string range_text(const profiler::Interval& ns) {
  return fmt::format("{} to {}", format_ns(ns.low), format_ns(ns.high));
}

std::string range_text(const profiler::Interval& ns, double of_ns) {
  if (of_ns <= 0) return range_text(ns);
  return fmt::format("{} ({:.1f} to {:.1f} %)", range_text(ns), 100 * ns.low / of_ns,
                     100 * ns.high / of_ns);
}

// Where a pipeline stands among those that could be made.
struct Sum {
  double ns = 0;
  int rank = 0, of = 0;
};

/// By candidate key; of one problem and regime.
using Sums = std::map<std::string, Sum>;

// The pipeline, however it is launched: its stages take the same alone.
std::string stages_of(const std::string& chain) {
  constexpr std::string_view kPdl = " + pdl";
  return chain.ends_with(kPdl) ? chain.substr(0, chain.size() - kPdl.size()) : chain;
}

std::map<std::pair<db::Id, std::string>, Sums> stage_sums(const db::Store& store, db::Id run) {
  std::map<std::pair<db::Id, std::string>, Sums> groups;
  for (const db::InteractionRow& row : store.interactions(run)) {
    groups[{row.problem_id, row.regime}][store.candidate(row.candidate_id).key].ns =
        row.stage_sum_ns;
  }
  for (auto& [group, sums] : groups) {
    std::map<std::string, double> by_stages;
    for (const auto& [key, sum] : sums) by_stages[stages_of(key)] = sum.ns;
    std::vector<double> ordered;
    for (const auto& [stages, ns] : by_stages) ordered.push_back(ns);
    std::sort(ordered.begin(), ordered.end());
    for (auto& [key, sum] : sums) {
      const auto at = std::lower_bound(ordered.begin(), ordered.end(), sum.ns);
      sum.rank = static_cast<int>(at - ordered.begin()) + 1;
      sum.of = static_cast<int>(ordered.size());
    }
  }
  return groups;
}

/// One group while it is put into words.
class Explainer {
 public:
  Explainer(const db::Store& store, const db::RunRow& run, const StoredSelections& selections,
            const Sums& sums, const std::vector<db::QuarantineRow>& quarantines)
      : store_(store), run_(run), selections_(selections), sums_(sums), quarantines_(quarantines) {}

  ExplainedGroup explain(const std::vector<const RunTrial*>& trials,
                         const std::optional<db::SelectionRow>& selection) {
    const RunTrial& first = *trials.front();
    group_ = {.problem = first.problem.key,
              .span = first.candidate.span,
              .handoff = first.trial.key.handoff_in,
              .regime = first.trial.key.regime,
              .selection = selection};
    if (selection) look_at_selection(*selection);
    races_ = selections_.races(first.problem.id, group_.span, group_.handoff, group_.regime);
    for (const StoredRace& race : races_) standings_[race.row.id] = race.race.standings();
    for (const RunTrial* trial : trials) {
      group_.trials.push_back(explain(*trial));
      const std::string& reason = trial->trial.reason;
      if (reason.starts_with(kNotSeen)) group_.searched = reason.substr(std::strlen(kNotSeen));
    }
    if (group_.span == muse::name(kWholeStep)) add_untried();
    order();
    return std::move(group_);
  }

 private:
  void look_at_selection(const db::SelectionRow& row) {
    if (row.trial_id != 0) {
      group_.chosen = store_.candidate(store_.trial(row.trial_id).key.candidate_id).key;
    }
    if (auto keys = tie_keys(row)) group_.tie_set = std::move(*keys);
    auto replayed = selections_.replay(row);
    if (!replayed) {
      group_.not_replayable = replayed.error();
      return;
    }
    group_.differences = replayed->differences;
    if (replayed->leader != 0) {
      group_.leader = store_.candidate(store_.trial(replayed->leader).key.candidate_id).key;
    }
    const Selection& again = replayed->decision.selection;
    if (again.base_median_ns > 0 && row.trial_id != row.base_trial_id) {
      group_.gain_pct = again.gain_pct;
    }
    for (const Against& against : replayed->against) {
      against_[against.trial] = against;
      if (against.trial == replayed->leader) leader_ns_ = against.median_ns;
    }
    deciding_ = replayed->race.row.id;
  }

  ExplainedTrial explain(const RunTrial& t) const {
    ExplainedTrial e{.trial = t.trial.id, .candidate = t.candidate.key, .state = t.trial.state};
    e.base = group_.selection && group_.selection->base_trial_id == t.trial.id;
    e.reused = t.reused;
    if (const auto sum = sums_.find(e.candidate); sum != sums_.end()) tell_sum(sum->second, e);
    if (!tell_state(t, e)) tell_race(t, e);
    tell_reuse(t, e);
    return e;
  }

  void tell_sum(const Sum& sum, ExplainedTrial& e) const {
    e.stage_sum_ns = sum.ns;
    e.rank = sum.rank;
    e.ranked = sum.of;
  }

  /// Pipelines that could be made and have no trial.
  void add_untried() {
    std::set<std::string> tried;
    for (const ExplainedTrial& e : group_.trials) tried.insert(e.candidate);
    for (const auto& [candidate, sum] : sums_) {
      if (tried.contains(candidate)) continue;
      ExplainedTrial e{.candidate = candidate, .fate = Fate::kNotTried};
      e.why = "not measured: others promise more";
      tell_sum(sum, e);
      group_.trials.push_back(std::move(e));
    }
  }

  /// False where it was measured: then its race says the rest.
  bool tell_state(const RunTrial& t, ExplainedTrial& e) const {
    const std::string& reason = t.trial.reason;
    const auto say = [&](Fate fate, const std::string& why) {
      e.fate = fate;
      e.why = why;
      return true;
    };
    const std::optional<Outcome> outcome = parse_outcome(t.trial.state);
    if (!outcome) return say(Fate::kFailed, with("state " + t.trial.state, reason));
    for (const db::QuarantineRow& row : quarantines_) {
      if (is_measured(*outcome) || row.candidate != t.candidate.key ||
          row.code_hash != t.trial.key.code_hash) {
        continue;
      }
      return say(
          Fate::kQuarantined,
          with(fmt::format("{}; quarantined since {}", t.trial.state, row.since), row.reason));
    }
    switch (*outcome) {
      case Outcome::kOk:
      case Outcome::kDegraded:
        return false;
      case Outcome::kPending:
        if (reason.starts_with(kNotSeen)) return say(Fate::kNotTried, reason);
        return say(Fate::kNotTried, with(reason.empty() ? "not tried yet" : "not tried", reason));
      case Outcome::kRunning:
        return say(Fate::kUnfinished, with("stopped before it ended", reason));
      case Outcome::kUnsupported:
        return say(Fate::kSkipped, with("unsupported", reason));
      case Outcome::kCompileFailed:
        return say(Fate::kNotCompiled, with("does not compile", reason));
      case Outcome::kCompileTimeout:
        return say(Fate::kNotCompiled, with("not compiled in time", reason));
      case Outcome::kIncorrect:
        return say(Fate::kFailed, with("wrong result", reason));
      case Outcome::kLaunchFailed:
        return say(Fate::kFailed, with("does not launch", reason));
      case Outcome::kCrashed:
        return say(Fate::kFailed, with("crashed", reason));
      case Outcome::kTimeout:
        return say(Fate::kFailed, with("hung", reason));
      case Outcome::kOom:
        return say(Fate::kFailed, with("out of memory", reason));
      case Outcome::kUnmeasurable:
        return say(Fate::kExcluded, with("cannot be measured", reason));
    }
    return false;
  }

  /// The newest race that measured it, the deciding one first.
  const StoredRace* race_of(db::Id trial, size_t& entrant) const {
    const StoredRace* found = nullptr;
    for (const StoredRace& race : races_) {
      const auto at = std::find(race.trials.begin(), race.trials.end(), trial);
      if (at == race.trials.end()) continue;
      if (found != nullptr && race.row.id != deciding_) continue;
      found = &race;
      entrant = static_cast<size_t>(at - race.trials.begin());
    }
    return found;
  }

  void tell_race(const RunTrial& t, ExplainedTrial& e) const {
    const bool degraded = parse_outcome(t.trial.state) == Outcome::kDegraded;
    size_t entrant = 0;
    const StoredRace* race = race_of(t.trial.id, entrant);
    if (race == nullptr) {
      e.fate = Fate::kMeasured;
      e.why = "measured in a race that this version's rules do not replay";
      e.median_ns = t.median_ns;
      tell_selection(t, e, nullptr);
      if (degraded) e.why += "; degraded";
      return;
    }
    const Standing& standing = standings_.at(race->row.id)[entrant];
    e.race = race->row.id;
    e.dropped_in_round = standing.dropped_in_round;
    if (standing.samples > 0) {
      e.median_ns = standing.median_ns;
      e.interval = standing.interval;
    }
    const std::string where =
        race->row.id == deciding_ || deciding_ == 0 ? "" : fmt::format(" in race {}", race->row.id);
    if (standing.excluded) {
      e.fate = Fate::kExcluded;
      e.why = fmt::format("excluded{}: {}", where, standing.why);
    } else if (standing.dropped_in_round >= 0) {
      e.fate = Fate::kDropped;
      e.why =
          fmt::format("dropped in round {}{}: {}", standing.dropped_in_round, where, standing.why);
      e.behind_ns = standing.behind;
    } else {
      e.fate = Fate::kSlower;
      e.behind_ns = standing.behind;
      e.why = fmt::format("behind the leader{} by {}", where, range_text(standing.behind));
    }
    tell_selection(t, e, race);
    if (degraded) e.why += degraded_text(race->row.id);
  }

  /// What did not hold still while the race ran.
  std::string degraded_text(db::Id race) const {
    int rejected = 0;
    std::string last;
    for (const db::RoundRow& round : store_.rounds(race)) {
      if (round.number < 0 || round.rejected.empty()) continue;
      ++rejected;
      last = first_line(round.rejected);
    }
    if (rejected == 0) return "; degraded";
    return fmt::format("; degraded: rounds rejected: {}, the last for: {}", rejected, last);
  }

  /// What the selection says outweighs the race's own standings.
  void tell_selection(const RunTrial& t, ExplainedTrial& e, const StoredRace* race) const {
    if (!group_.selection) return;
    const db::SelectionRow& row = *group_.selection;
    const bool decides = race == nullptr || race->row.id == deciding_ || deciding_ == 0;
    const auto against = against_.find(t.trial.id);
    if (decides && against != against_.end() && e.candidate != group_.leader) {
      e.behind_ns = against->second.gap.behind;
    }
    const std::string behind = e.candidate == group_.leader ? "it led the race"
                               : e.behind_ns
                                   ? range_text(*e.behind_ns, leader_ns_) + " behind the leader"
                                   : "";
    if (t.trial.id == row.trial_id) {
      e.fate = Fate::kChosen;
      e.why = chosen_text(row);
    } else if (std::find(group_.tie_set.begin(), group_.tie_set.end(), e.candidate) !=
               group_.tie_set.end()) {
      e.fate = Fate::kTied;
      e.why = row.rule == "base_kept"
                  ? with("its gain over the base is not sure, or below the margin", behind)
                  : with("tied with the winner, " + preferred_text(row.rule), behind);
    } else if (decides && e.fate == Fate::kSlower) {
      e.why = e.behind_ns ? "in the final, slower than the leader by " +
                                range_text(*e.behind_ns, leader_ns_)
                          : "in the final, slower than the leader";
    }
  }

  // Why the winner comes before those it is tied with.
  static std::string preferred_text(const std::string& rule) {
    if (rule == "fastest") return "which alone gains the switch margin over the base for sure";
    if (rule == "tie_base") return "which is the base";
    if (rule == "tie_workspace") return "which needs the least workspace";
    if (rule == "tie_p90") {
      return "which has the least 90th percentile of those that need the least workspace";
    }
    if (rule == "tie_name") {
      return "which is the first by name of those of like workspace and 90th percentile";
    }
    return "which comes first by rule " + rule;
  }

  std::string chosen_text(const db::SelectionRow& row) const {
    std::string text = fmt::format("chosen: {}", rule_text(row.rule));
    if (row.trial_id == row.base_trial_id) return text;
    if (group_.gain_pct) {
      // Where the base's own times scatter, the interval may end beyond all of its median.
      text += fmt::format("; gains {:.1f} to {:.1f} % over the base", group_.gain_pct->low,
                          std::min(group_.gain_pct->high, 100.0));
    } else if (row.base_median_ns > 0) {
      text += fmt::format("; {:.1f} % less than the base by medians",
                          100 * (1 - row.median_ns / row.base_median_ns));
    }
    return text;
  }

  void tell_reuse(const RunTrial& t, ExplainedTrial& e) const {
    db::Id from = 0;
    for (const StoredRace& race : races_) {
      if (race.row.id == e.race) from = race.row.run_id;
    }
    if (from == 0 && t.reused) {
      for (const db::ValidationRow& row : store_.validations(t.trial.id)) {
        if (row.run_id < run_.id) from = row.run_id;
      }
    }
    if (from != 0 && from != run_.id) e.reused = true;
    if (!e.reused) return;
    e.reused_from = from == run_.id ? 0 : from;
    e.why += e.reused_from == 0 ? " (known from an earlier run)"
                                : fmt::format(" (reused from run {})", e.reused_from);
  }

  void order() {
    // The last to be dropped came nearest.
    const auto place = [](const ExplainedTrial& e) {
      return std::tuple(
          e.fate, e.fate == Fate::kDropped ? -e.dropped_in_round : 0,
          e.median_ns.value_or(std::numeric_limits<double>::infinity()),
          e.fate == Fate::kNotTried && e.rank > 0 ? e.rank : std::numeric_limits<int>::max(),
          e.candidate);
    };
    std::stable_sort(group_.trials.begin(), group_.trials.end(),
                     [&](const auto& a, const auto& b) { return place(a) < place(b); });
  }

  const db::Store& store_;
  const db::RunRow& run_;
  const StoredSelections& selections_;
  const Sums& sums_;
  const std::vector<db::QuarantineRow>& quarantines_;
  ExplainedGroup group_;
  std::vector<StoredRace> races_;
  std::map<db::Id, std::vector<Standing>> standings_;
  std::map<db::Id, Against> against_;
  double leader_ns_ = 0;
  db::Id deciding_ = 0;
};

/// Trials by problem, regime, span and hand-off.
using Groups = std::map<std::tuple<std::string, std::string, std::string, std::string>,
                        std::vector<const RunTrial*>>;

// A combine that is unsupported whatever feeds it has no hand-off: it belongs to each group of its
// kind, and is one of its own only where there is no other.
void join_skipped(Groups& groups) {
  const auto all_skipped = [](const std::vector<const RunTrial*>& trials) {
    return std::all_of(trials.begin(), trials.end(), [](const RunTrial* t) {
      return parse_outcome(t->trial.state) == Outcome::kUnsupported;
    });
  };
  for (auto at = groups.begin(); at != groups.end();) {
    const auto& [problem, regime, span, handoff] = at->first;
    const bool alone = span.starts_with(muse::name(Stage::kCombine)) && all_skipped(at->second);
    bool joined = false;
    for (auto other = groups.begin(); alone && other != groups.end(); ++other) {
      if (all_skipped(other->second)) continue;
      const auto& [its_problem, its_regime, its_span, its_handoff] = other->first;
      if (std::tie(its_problem, its_regime, its_span) != std::tie(problem, regime, span)) continue;
      other->second.insert(other->second.end(), at->second.begin(), at->second.end());
      joined = true;
    }
    at = joined ? groups.erase(at) : std::next(at);
  }
}

}  // namespace

std::string_view name(Fate fate) {
  switch (fate) {
    case Fate::kChosen:
      return "chosen";
    case Fate::kTied:
      return "tied";
    case Fate::kSlower:
      return "slower";
    case Fate::kDropped:
      return "dropped";
    case Fate::kMeasured:
      return "measured";
    case Fate::kExcluded:
      return "excluded";
    case Fate::kFailed:
      return "failed";
    case Fate::kQuarantined:
      return "quarantined";
    case Fate::kNotCompiled:
      return "not_compiled";
    case Fate::kUnfinished:
      return "unfinished";
    case Fate::kNotTried:
      return "not_tried";
    case Fate::kSkipped:
      return "skipped";
  }
  return "unknown";
}

std::string rule_text(const std::string& rule) {
  static const std::map<std::string, std::string> texts{
      {"fastest", "fastest"},
      {"base_kept", "the base is kept, nobody gains the switch margin over it for sure"},
      {"tie_base", "the base, tied with the fastest"},
      {"tie_workspace", "of those tied the least workspace"},
      {"tie_p90", "of those tied the least 90th percentile"},
      {"tie_name", "of those tied the first by name"}};
  const auto known = texts.find(rule);
  return known == texts.end() ? rule : known->second;
}

std::vector<ExplainedGroup> explain(
    const db::Store& store, const db::RunRow& run,
    const std::function<bool(const std::string& problem, const std::string& span)>& wanted) {
  const std::vector<RunTrial> trials = store.run_trials(run.id);
  Groups groups;
  for (const RunTrial& t : trials) {
    if (!wanted(t.problem.key, t.candidate.span)) continue;
    groups[{t.problem.key, t.trial.key.regime, t.candidate.span, t.trial.key.handoff_in}].push_back(
        &t);
  }
  join_skipped(groups);
  const std::vector<db::SelectionRow> rows = store.selections(run.id);
  const StoredSelections selections(store, run);
  const auto sums = stage_sums(store, run.id);
  const Sums no_sums;
  const std::vector<db::QuarantineRow> quarantines = store.quarantines(run.device_id);
  std::vector<ExplainedGroup> explained;
  for (const auto& [key, members] : groups) {
    const RunTrial& first = *members.front();
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const db::SelectionRow& r) {
      return r.problem_id == first.problem.id && r.span == first.candidate.span &&
             r.handoff_in == first.trial.key.handoff_in && r.regime == first.trial.key.regime;
    });
    const auto mine = sums.find({first.problem.id, first.trial.key.regime});
    Explainer explainer(store, run, selections, mine == sums.end() ? no_sums : mine->second,
                        quarantines);
    explained.push_back(explainer.explain(
        members, row == rows.end() ? std::nullopt : std::optional<db::SelectionRow>(*row)));
  }
  return explained;
}

}  // namespace muse::tuner
