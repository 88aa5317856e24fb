// SPDX-License-Identifier: Apache-2.0
// Spans first, then pipelines made of the best of each; every decision from stored samples.
#include "tuner/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

namespace muse::tuner {
namespace {

using Clock = std::chrono::steady_clock;

// The part of a chain that covers exactly the span; empty where its candidates do not end there.
Chain part_of(const Chain& chain, Span span) {
  Chain part;
  for (const Candidate& candidate : chain) {
    const Span mine = candidate.span();
    if (mine.first >= span.first && mine.last <= span.last) part.push_back(candidate);
  }
  return !part.empty() && muse::span(part) == span ? part : Chain{};
}

Stage before(Stage stage) { return static_cast<Stage>(static_cast<int>(stage) - 1); }

uint64_t mix(uint64_t seed, const std::string& text) {
  return std::stoull(hash_hex(fmt::format("{}\n{}", seed, text)).substr(0, 16), nullptr, 16);
}

bool contains(const std::vector<db::Id>& ids, db::Id id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

bool is_over(const StoredRace& stored) { return stored.row.status == "complete"; }

// Trials of the finalists (of everybody, where the race had no final) that are still wanted.
std::vector<int> deciding_entrants(const StoredRace& stored, const std::vector<db::Id>& wanted) {
  const std::vector<Standing> standings = stored.race.standings();
  std::vector<int> finalists, all;
  for (size_t i = 0; i < standings.size(); ++i) {
    if (standings[i].excluded || !contains(wanted, stored.trials[i])) continue;
    all.push_back(static_cast<int>(i));
    if (standings[i].finalist) finalists.push_back(static_cast<int>(i));
  }
  return finalists.empty() ? all : finalists;
}

// The newest race that decides among `wanted`: its leader is one of them, and all others took part in
// it or in an earlier one (whose tie set it contained).
const StoredRace* deciding_race(const std::vector<StoredRace>& races,
                                const std::vector<db::Id>& wanted) {
  for (size_t at = 0; at < races.size(); ++at) {
    const int leader = races[at].race.leader();
    if (!is_over(races[at]) || leader < 0 || !contains(wanted, races[at].trials[leader])) continue;
    std::set<db::Id> covered;
    for (size_t older = at; older < races.size(); ++older) {
      if (is_over(races[older])) {
        covered.insert(races[older].trials.begin(), races[older].trials.end());
      }
    }
    if (std::all_of(wanted.begin(), wanted.end(), [&](db::Id id) { return covered.contains(id); })) {
      return &races[at];
    }
  }
  return nullptr;
}

class Sweeper {
 public:
  Sweeper(const Plan& plan, const Spec& spec, Records& records, Supervisor& supervisor,
          const Hello& hello, const SweepOptions& options, ProgressLine& progress)
      : plan_(plan),
        spec_(spec),
        records_(records),
        supervisor_(supervisor),
        hello_(hello),
        options_(options),
        progress_(progress),
        runner_(records, supervisor, options.seed, [this] { return keep_on(); }) {}

  SweepResult run();

 private:
  struct Settled {
    Selection selection;
    std::vector<Candidate> best;  ///< single candidates, best first
  };

  bool keep_on();
  void sweep_shape(size_t shape, profiler::Regime regime);
  void calibrate(const RaceGroup& group);
  std::vector<Chain> span_chains(size_t shape, profiler::Regime regime, Span span) const;
  std::set<Span> spans(size_t shape, profiler::Regime regime) const;
  void skip_unsupported(size_t shape, profiler::Regime regime);
  std::optional<Chain> feeder(const Problem& problem, Span span, const Chain& producer) const;
  std::optional<Settled> settle(const RaceGroup& group, const std::vector<Chain>& chains,
                                const Chain& base, const Chain& feeder);
  std::optional<StoredRace> decide(const RaceGroup& group, std::vector<Entrant>& entrants);
  Settled conclude(const RaceGroup& group, const std::vector<Entrant>& entrants,
                   const StoredRace* stored);
  Selection select_from(const RaceGroup& group, const StoredRace& stored,
                        const std::vector<Entrant>& entrants, std::vector<int>& indices) const;
  RaceRules rules(const RaceGroup& group) const;

  const Plan& plan_;
  const Spec& spec_;
  Records& records_;
  Supervisor& supervisor_;
  const Hello& hello_;
  const SweepOptions& options_;
  ProgressLine& progress_;
  RaceRunner runner_;
  SweepResult result_;
  std::map<db::Id, Outcome> outcomes_;
  std::set<db::Id> measured_, reused_;
  std::string where_;
  double done_ = 0, total_ = 1;
  bool calibrated_ = false;
};

bool Sweeper::keep_on() {
  if (options_.stop_signal != nullptr && *options_.stop_signal != 0) {
    result_.stop_signal = *options_.stop_signal;
    return false;
  }
  if (supervisor_.lost_device()) {
    result_.device_lost = true;
    return false;
  }
  if (options_.budget && progress_.elapsed_s() > options_.budget->count()) {
    result_.out_of_budget = true;
    return false;
  }
  return true;
}

RaceRules Sweeper::rules(const RaceGroup& group) const {
  RaceRules rules;
  rules.max_rounds = spec_.measure.max_rounds;
  rules.half_width_pct = spec_.measure.half_width_pct;
  rules.step_ns = hello_.step_ns;
  rules.seed = mix(options_.seed, fmt::format("{} {} {} {}", muse::key(group.shape),
                                              muse::name(group.span), key(group.handoff),
                                              profiler::name(group.regime)));
  return rules;
}

std::set<Span> Sweeper::spans(size_t shape, profiler::Regime regime) const {
  std::set<Span> spans;
  for (const PlanItem& item : plan_.items) {
    if (item.shape == shape && item.regime == regime && item.action != Action::kSkip) {
      spans.insert(item.candidate.span());
    }
  }
  return spans;
}

std::vector<Chain> Sweeper::span_chains(size_t shape, profiler::Regime regime, Span span) const {
  std::vector<Chain> chains;
  for (const PlanItem& item : plan_.items) {
    if (item.shape == shape && item.regime == regime && item.action != Action::kSkip &&
        item.candidate.span() == span) {
      chains.push_back({item.candidate});
    }
  }
  return chains;
}

void Sweeper::skip_unsupported(size_t shape, profiler::Regime regime) {
  const RaceGroup group{.shape = plan_.shapes[shape].shape, .regime = regime};
  records_.store().transaction([&] {
    for (const PlanItem& item : plan_.items) {
      if (item.shape != shape || item.regime != regime || item.action != Action::kSkip) continue;
      db::TrialRow trial = records_.trial({item.candidate}, group);
      if (trial.state != name(Outcome::kUnsupported)) {
        records_.set(trial, Outcome::kUnsupported, item.reason);
      }
      outcomes_[trial.id] = Outcome::kUnsupported;
    }
  });
}

// What runs untimed before a span: the base up to it, ending in `producer` where one is given. Where
// the base's candidates do not end at that stage, default configurations step in.
std::optional<Chain> Sweeper::feeder(const Problem& problem, Span span,
                                     const Chain& producer) const {
  if (span.first == Stage::kPrepare) return Chain{};
  const Stage until = producer.empty() ? span.first : producer.front().span().first;
  Chain chain;
  if (until != Stage::kPrepare) {
    chain = part_of(plan_.base, {Stage::kPrepare, before(until)});
    if (chain.empty()) {
      std::vector<Candidate> defaults;
      for (const PlanItem& item : plan_.items) {
        if (item.action != Action::kSkip &&
            item.candidate.configuration == default_configuration(*item.candidate.variant)) {
          defaults.push_back(item.candidate);
        }
      }
      const std::vector<Chain> covers = compose(problem, defaults, {Stage::kPrepare, before(until)});
      if (covers.empty()) return std::nullopt;
      chain = covers.front();
    }
  }
  chain.insert(chain.end(), producer.begin(), producer.end());
  return joins(problem, chain).ok() ? std::optional(chain) : std::nullopt;
}

// The deadline follows the base: it is timed once, with time to spare, before anything else.
void Sweeper::calibrate(const RaceGroup& group) {
  if (calibrated_) return;
  calibrated_ = true;
  supervisor_.set_deadline(std::chrono::minutes(5));
  const auto ns = runner_.time_once(group, Entrant{.chain = plan_.base});
  const auto fifty_times = std::chrono::milliseconds(
      ns ? static_cast<int64_t>(std::ceil(*ns * 50 / 1e6)) : int64_t{60'000});
  supervisor_.set_deadline(std::max(options_.deadline_floor, fifty_times));
}

// Stored samples decide where they can; else the new ones race against the stored tie set.
std::optional<StoredRace> Sweeper::decide(const RaceGroup& group, std::vector<Entrant>& entrants) {
  std::vector<db::Id> wanted;
  for (const Entrant& entrant : entrants) wanted.push_back(entrant.trial.id);
  std::vector<StoredRace> races = records_.races(group);
  if (const StoredRace* decided = deciding_race(races, wanted)) {
    for (const Entrant& entrant : entrants) {
      if (!measured_.contains(entrant.trial.id)) reused_.insert(entrant.trial.id);
    }
    return *decided;
  }
  std::vector<Entrant> racing;
  std::optional<StoredRace> unfinished;
  for (StoredRace& race : races) {
    if (is_over(race) || race.row.run_id != records_.run()) continue;
    std::vector<Entrant> in_order;
    bool same = true;
    for (size_t i = 0; i < race.trials.size(); ++i) {
      const auto at = std::find(wanted.begin(), wanted.end(), race.trials[i]);
      if (at != wanted.end()) {
        in_order.push_back(entrants[at - wanted.begin()]);
      } else {
        same = false;
      }
    }
    if (!same || in_order.size() != wanted.size()) continue;
    racing = std::move(in_order);
    unfinished = std::move(race);
    break;
  }
  if (!unfinished) {
    std::set<db::Id> names(wanted.begin(), wanted.end());
    for (const StoredRace& race : races) {
      const int leader = race.race.leader();
      if (!is_over(race) || leader < 0 || !contains(wanted, race.trials[leader])) continue;
      std::vector<int> indices;
      const Selection selection = select_from(group, race, entrants, indices);
      for (const db::Id id : race.trials) names.erase(id);
      for (const int i : selection.tie_set) names.insert(race.trials[indices[i]]);
      for (const Entrant& entrant : entrants) {
        if (entrant.base) names.insert(entrant.trial.id);
      }
      break;
    }
    for (const Entrant& entrant : entrants) {
      if (names.contains(entrant.trial.id)) racing.push_back(entrant);
    }
  }
  calibrate({.shape = group.shape, .regime = group.regime});
  for (const Entrant& entrant : racing) measured_.insert(entrant.trial.id);
  std::optional<StoredRace> stored =
      runner_.race(group, racing, rules(group), std::move(unfinished));
  for (const Entrant& entrant : racing) {
    outcomes_[entrant.trial.id] = entrant.outcome();
    for (Entrant& mine : entrants) {
      if (mine.trial.id == entrant.trial.id) mine.trial = entrant.trial;
    }
  }
  return stored;
}

Selection Sweeper::select_from(const RaceGroup& group, const StoredRace& stored,
                               const std::vector<Entrant>& entrants,
                               std::vector<int>& indices) const {
  std::vector<db::Id> wanted;
  for (const Entrant& entrant : entrants) wanted.push_back(entrant.trial.id);
  indices = deciding_entrants(stored, wanted);
  std::vector<Contender> contenders;
  for (const int i : indices) {
    const Entrant& entrant =
        *std::find_if(entrants.begin(), entrants.end(),
                      [&](const Entrant& e) { return e.trial.id == stored.trials[i]; });
    int64_t workspace = 0;
    for (const Candidate& c : entrant.chain) {
      workspace += c.variant->geometry(group.shape.problem, c.configuration, hello_.device_class)
                       .workspace.bytes;
    }
    contenders.push_back({.key = muse::key(entrant.chain),
                          .ns = stored.race.samples(i),
                          .workspace_bytes = workspace,
                          .base = entrant.base,
                          .degraded = entrant.outcome() == Outcome::kDegraded});
  }
  return select(contenders, {.tie_pct = spec_.measure.tie_pct,
                             .switch_margin_pct = spec_.measure.switch_margin_pct,
                             .step_ns = hello_.step_ns,
                             .seed = stored.row.seed});
}

Sweeper::Settled Sweeper::conclude(const RaceGroup& group, const std::vector<Entrant>& entrants,
                                   const StoredRace* stored) {
  Settled settled;
  Winner winner{.shape = muse::key(group.shape),
                .span = std::string(muse::name(group.span)),
                .handoff = key(group.handoff),
                .regime = std::string(profiler::name(group.regime))};
  for (const Entrant& entrant : entrants) {
    if (entrant.base) winner.base_chain = muse::key(entrant.chain);
  }
  if (stored == nullptr) {
    result_.winners.push_back(winner);
    return settled;
  }
  std::vector<int> indices;
  settled.selection = select_from(group, *stored, entrants, indices);
  const auto entrant_of = [&](db::Id trial) {
    return *std::find_if(entrants.begin(), entrants.end(),
                         [&](const Entrant& e) { return e.trial.id == trial; });
  };
  const std::vector<Standing> standings = stored->race.standings();
  std::vector<int> ranking;
  for (size_t i = 0; i < standings.size(); ++i) {
    const bool wanted = std::any_of(entrants.begin(), entrants.end(), [&](const Entrant& e) {
      return e.trial.id == stored->trials[i];
    });
    if (wanted && !standings[i].excluded && standings[i].samples > 0) {
      ranking.push_back(static_cast<int>(i));
    }
  }
  std::stable_sort(ranking.begin(), ranking.end(), [&](int a, int b) {
    return std::pair(!standings[a].finalist, standings[a].median_ns) <
           std::pair(!standings[b].finalist, standings[b].median_ns);
  });
  for (const int i : ranking) {
    const Entrant entrant = entrant_of(stored->trials[i]);
    if (entrant.chain.size() == 1) settled.best.push_back(entrant.chain[0]);
  }
  if (settled.selection.winner < 0) {
    result_.winners.push_back(winner);
    return settled;
  }
  nlohmann::json ties = nlohmann::json::array();
  for (const int i : settled.selection.tie_set) {
    ties.push_back(muse::key(entrant_of(stored->trials[indices[i]]).chain));
  }
  const Entrant chosen = entrant_of(stored->trials[indices[settled.selection.winner]]);
  db::Id base_trial = 0;
  for (const Entrant& entrant : entrants) {
    if (entrant.base) base_trial = entrant.trial.id;
  }
  records_.add(db::SelectionRow{.problem_id = chosen.trial.key.problem_id,
                                .span = winner.span,
                                .handoff_in = winner.handoff,
                                .regime = winner.regime,
                                .trial_id = chosen.trial.id,
                                .base_trial_id = base_trial,
                                .median_ns = settled.selection.median_ns,
                                .low_ns = settled.selection.interval.low,
                                .high_ns = settled.selection.interval.high,
                                .base_median_ns = settled.selection.base_median_ns,
                                .tie_set = ties.dump(),
                                .rule = settled.selection.rule,
                                .status = settled.selection.status});
  winner.chain = muse::key(chosen.chain);
  winner.selection = settled.selection;
  result_.winners.push_back(winner);
  return settled;
}

std::optional<Sweeper::Settled> Sweeper::settle(const RaceGroup& group,
                                                const std::vector<Chain>& chains,
                                                const Chain& base, const Chain& feeder) {
  std::map<std::string, Entrant> by_key;  // ordered: neither the plan's nor the search's order counts
  for (const Chain& chain : chains) by_key[muse::key(chain)] = {.chain = chain, .feeder = feeder};
  if (!base.empty()) {
    by_key[muse::key(base)] = {.chain = base, .feeder = feeder, .base = true};
  }
  records_.store().transaction([&] {
    for (auto& [text, entrant] : by_key) {
      entrant.trial = records_.trial(entrant.chain, group);
      // Stopped halfway by whatever ended that process: not an outcome.
      if (entrant.outcome() == Outcome::kUnsupported) {
        records_.set(entrant.trial, Outcome::kPending, "supported now");
      }
    }
  });
  std::vector<Entrant> entrants;
  int number = 0;
  for (auto& [text, entrant] : by_key) {
    where_ = fmt::format("{} {} {}: validated {}/{}", muse::key(group.shape),
                         muse::name(group.span), key(group.handoff), ++number, by_key.size());
    if (!is_final(entrant.outcome())) calibrate({.shape = group.shape, .regime = group.regime});
    const bool ended = is_final(entrant.outcome());
    if (!runner_.validate(group, entrant)) return std::nullopt;
    if (ended && !is_measured(entrant.outcome())) reused_.insert(entrant.trial.id);
    outcomes_[entrant.trial.id] = entrant.outcome();
    if (!is_final(entrant.outcome()) || is_measured(entrant.outcome())) entrants.push_back(entrant);
  }
  where_ = fmt::format("{} {} {}: racing {}", muse::key(group.shape), muse::name(group.span),
                       key(group.handoff), entrants.size());
  if (entrants.empty()) return conclude(group, entrants, nullptr);
  const std::optional<StoredRace> stored = decide(group, entrants);
  if (!stored) return std::nullopt;
  return conclude(group, entrants, &*stored);
}

void Sweeper::sweep_shape(size_t shape, profiler::Regime regime) {
  const Shape& asked = plan_.shapes[shape].shape;
  calibrated_ = false;
  skip_unsupported(shape, regime);
  std::vector<Candidate> best;
  std::map<Span, std::vector<Candidate>> best_of;
  const auto keep_best = [&](Span span, const Settled& settled) {
    const size_t count = std::min<size_t>(settled.best.size(), spec_.pipelines.top_k);
    for (size_t i = 0; i < count; ++i) {
      if (std::find(best.begin(), best.end(), settled.best[i]) != best.end()) continue;
      best.push_back(settled.best[i]);
      best_of[span].push_back(settled.best[i]);
    }
  };
  const std::set<Span> all = spans(shape, regime);
  const double share = 1.0 / static_cast<double>(all.size() + 1);
  for (const Span span : all) {
    if (span == kWholeStep) continue;  // races among the pipelines
    // A combine is raced per distinct hand-off of the best that leave Partials.
    std::map<Handoff, Chain> producers;
    if (span.first == Stage::kCombine) {
      for (const auto& [earlier, candidates] : best_of) {
        if (earlier.last != Stage::kAttention) continue;
        for (const Candidate& c : candidates) {
          producers.try_emplace(c.variant->produces(asked.problem, c.configuration), Chain{c});
        }
      }
    } else {
      producers.try_emplace(Handoff{}, Chain{});
    }
    for (const auto& [handoff, producer] : producers) {
      RaceGroup group{.shape = asked, .regime = regime, .span = span, .handoff = handoff};
      const std::optional<Chain> before_it = feeder(asked.problem, span, producer);
      if (!before_it) continue;
      std::vector<Chain> chains;
      for (const Chain& chain : span_chains(shape, regime, span)) {
        if (producer.empty() ||
            chain[0].variant->consumes(asked.problem, chain[0].configuration, handoff).ok()) {
          chains.push_back(chain);
        }
      }
      const std::optional<Settled> settled =
          settle(group, chains, part_of(plan_.base, span), *before_it);
      if (!settled) return;
      keep_best(span, *settled);
    }
    done_ += share;
  }
  std::vector<Chain> pipelines = compose(asked.problem, best, kWholeStep);
  for (const Chain& chain : span_chains(shape, regime, kWholeStep)) pipelines.push_back(chain);
  settle({.shape = asked, .regime = regime, .span = kWholeStep}, pipelines, plan_.base, {});
  done_ += share;
}

SweepResult Sweeper::run() {
  total_ = static_cast<double>(plan_.shapes.size() * spec_.measure.regimes.size());
  runner_.tick = [this] { progress_.update(where_, done_ / total_); };
  for (size_t shape = 0; shape < plan_.shapes.size(); ++shape) {
    for (const profiler::Regime regime : spec_.measure.regimes) {
      if (!keep_on()) break;
      sweep_shape(shape, regime);
    }
  }
  keep_on();  // a stop during the last race counts
  records_.store().transaction([&] {
    for (const db::Id id : reused_) {
      if (!measured_.contains(id)) records_.set_reused(id);
    }
  });
  const bool whole = result_.stop_signal == 0 && !result_.out_of_budget && !result_.device_lost;
  records_.finish(whole                        ? "complete"
                  : result_.stop_signal != 0 ? "interrupted"
                                             : "incomplete");
  for (const auto& [id, outcome] : outcomes_) ++result_.outcomes[outcome];
  result_.measured = static_cast<int>(measured_.size());
  result_.reused = static_cast<int>(reused_.size());
  result_.rounds = runner_.rounds();
  return result_;
}

}  // namespace

SweepResult sweep(const Plan& plan, const Spec& spec, Records& records, Supervisor& supervisor,
                  const Hello& hello, const SweepOptions& options, ProgressLine& progress) {
  return Sweeper(plan, spec, records, supervisor, hello, options, progress).run();
}

ExitCode exit_code(const SweepResult& result) {
  if (result.stop_signal != 0) {
    return result.stop_signal == 2 ? ExitCode::kInterrupted : ExitCode::kTerminated;
  }
  // Without one valid pipeline there is nothing to run in production.
  const bool valid = std::any_of(result.winners.begin(), result.winners.end(), [](const Winner& w) {
    return w.span == muse::name(kWholeStep) && !w.chain.empty();
  });
  bool failed = result.out_of_budget || result.device_lost;
  for (const auto& [outcome, count] : result.outcomes) {
    if (!is_measured(outcome) && outcome != Outcome::kUnsupported) failed = true;
  }
  if (!valid && !result.out_of_budget) return ExitCode::kGateFailed;
  return failed ? ExitCode::kIncomplete : ExitCode::kOk;
}

}  // namespace muse::tuner
