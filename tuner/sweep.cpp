// SPDX-License-Identifier: Apache-2.0
// Spans first, then pipelines made of the best of each.
#include "tuner/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "profiler/nvtx.h"
#include "tuner/pace.h"
#include "tuner/shortlist.h"
#include "tuner/step_races.h"

namespace muse::tuner {
namespace {

// The part of a chain that covers exactly the span; empty where its candidates do not end there.
Chain part_of(const Chain& chain, Span span) {
  Chain part;
  for (const Candidate& candidate : chain) {
    const Span mine = candidate.span();
    if (mine.first >= span.first && mine.last <= span.last) part.push_back(candidate);
  }
  return !part.empty() && muse::span(part) == span ? part : Chain{};
}

// Where the time of a run went, with what it cost before it was cut off.
std::string total_cost(const std::string& before, const MeasuringCost& cost) {
  const nlohmann::json known = nlohmann::json::parse(before, nullptr, false);
  nlohmann::json total = {{"asking_s", cost.asking_s},
                          {"rounds_s", cost.rounds_s},
                          {"device_s", cost.device_s},
                          {"validating_s", cost.validating_s},
                          {"wall_s", cost.wall_s}};
  for (auto& [name, seconds] : total.items()) {
    if (known.is_object()) seconds = seconds.get<double>() + known.value(name, 0.0);
  }
  return total.dump();
}

/// What the progress calls a shape where siblings alone race.
constexpr const char* kSiblingsAlone = "siblings alone";

Stage before(Stage stage) { return static_cast<Stage>(static_cast<int>(stage) - 1); }

class Sweeper {
 public:
  Sweeper(const Plan& plan, const Spec& spec, Records& records, Measurer& measurer,
          const Hello& hello, const SweepOptions& options, ProgressLine& progress)
      : plan_(plan),
        spec_(spec),
        records_(records),
        measurer_(measurer),
        hello_(hello),
        options_(options),
        progress_(progress),
        runner_(records, measurer, options.seed, [this] { return keep_on(); }),
        settler_(spec, hello, options.seed + static_cast<uint64_t>(options.repetition - 1),
                 options.fresh, records, runner_,
                 [this](const RaceGroup& group) { calibrate(group); }),
        steps_(plan, spec, hello, options.incumbents, records, settler_,
               [this](size_t shape, profiler::Regime regime) { return planned(shape, regime); }) {}

  SweepResult run();

 private:
  bool stopped();
  bool keep_on();
  void calibrate(const RaceGroup& group);
  std::span<const PlanItem> items(size_t shape, profiler::Regime regime) const;
  void store_skipped(size_t shape, profiler::Regime regime);
  std::vector<Candidate> planned(size_t shape, profiler::Regime regime) const;
  std::set<Span> spans(size_t shape, profiler::Regime regime) const;
  std::optional<std::vector<Chain>> search_span(const RaceGroup& group, std::vector<Chain> chains,
                                                const Chain& base, const Chain& feeder);
  void begin_part(Span span) { pace_.begin(std::string(name(span)), progress_.elapsed_s()); }
  void show_progress();
  void note_busy_host(double load, int cpus);
  std::optional<Chain> feeder(const Problem& problem, Span span, const Chain& producer,
                              const std::vector<Candidate>& candidates) const;
  void count_trials(const std::map<db::Id, StepRaces::Counted>& counted = {});
  void sweep_shape(size_t shape, profiler::Regime regime);
  bool races_all(size_t shape) const { return plan_.shapes[shape].race == RaceAmong::kAll; }
  void race_siblings();
  void settle_among_siblings();
  bool sweep_span(const RaceGroup& group, const std::vector<Candidate>& candidates,
                  Shortlist& best);

  const Plan& plan_;
  const Spec& spec_;
  Records& records_;
  Measurer& measurer_;
  const Hello& hello_;
  const SweepOptions& options_;
  ProgressLine& progress_;
  RaceRunner runner_;
  Settler settler_;
  StepRaces steps_;
  std::vector<size_t> step_winners_;  ///< of each step its place in result_.winners
  std::set<std::string> measured_;    ///< candidates that some shape measures: what is compiled
  SweepResult result_;
  Pace pace_;
  bool calibrated_ = false;
  bool host_busy_ = false;
};

// Whether what is under way shall end, whatever it has cost.
bool Sweeper::stopped() {
  if (options_.stop_signal != nullptr && *options_.stop_signal != 0) {
    result_.stop_signal = *options_.stop_signal;
  } else if (measurer_.lost_device() || runner_.gave_up()) {
    result_.device_lost = true;
    result_.no_worker = runner_.no_worker();
  } else if (!result_.out_of_budget) {
    return false;
  }
  return true;
}

// Asked before the device has work to do: what the database knows costs no budget.
bool Sweeper::keep_on() {
  if (stopped()) return false;
  result_.out_of_budget = options_.budget && progress_.elapsed_s() > options_.budget->count();
  return !result_.out_of_budget;
}

// The deadline follows the base: it is timed once per shape, with time to spare, before anything
// else runs there.
void Sweeper::calibrate(const RaceGroup& group) {
  if (calibrated_) return;
  calibrated_ = true;
  measurer_.set_deadline(std::chrono::minutes(5));
  const RaceGroup whole{.shape = group.shape, .regime = group.regime};
  const auto ns = runner_.time_once(whole, Entrant{.chain = plan_.base});
  const auto fifty_times = std::chrono::milliseconds(
      ns ? static_cast<int64_t>(std::ceil(*ns * 50 / 1e6)) : int64_t{60'000});
  measurer_.set_deadline(std::max(options_.deadline_floor, fifty_times));
}

// The plan is ordered by both.
std::span<const PlanItem> Sweeper::items(size_t shape, profiler::Regime regime) const {
  const auto of = [](const PlanItem& item) { return std::pair(item.shape, item.regime); };
  return std::ranges::equal_range(plan_.items, std::pair(shape, regime), {}, of);
}

// What does not run here: unsupported, or without machine code.
void Sweeper::store_skipped(size_t shape, profiler::Regime regime) {
  const RaceGroup group{.shape = plan_.shapes[shape].shape, .regime = regime};
  records_.store().transaction([&] {
    for (const PlanItem& item : items(shape, regime)) {
      const auto failed = options_.not_compiled.find(key(item.candidate));
      if (item.action == Action::kSkip) {
        settler_.skip(group, item.candidate, Outcome::kUnsupported, item.reason);
      } else if (failed != options_.not_compiled.end()) {
        settler_.skip(group, item.candidate, failed->second.outcome, failed->second.reason);
      }
    }
  });
}

// Where siblings alone race, what none of the other shapes measures has no machine code.
std::vector<Candidate> Sweeper::planned(size_t shape, profiler::Regime regime) const {
  std::vector<Candidate> candidates;
  for (const PlanItem& item : items(shape, regime)) {
    if (!may_run(item)) continue;
    const std::string text = key(item.candidate);
    if (measured_.contains(text) && !options_.not_compiled.contains(text)) {
      candidates.push_back(item.candidate);
    }
  }
  return candidates;
}

/// What is decided for the shape, the whole step last.
std::set<Span> Sweeper::spans(size_t shape, profiler::Regime regime) const {
  std::set<Span> spans{kWholeStep};
  for (const Candidate& c : planned(shape, regime)) spans.insert(c.span());
  return spans;
}

void Sweeper::show_progress() {
  pace_.step();
  std::optional<double> left_s = pace_.left_s(progress_.elapsed_s());
  if (left_s && options_.budget) {
    left_s = std::min(*left_s, std::max(0.0, options_.budget->count() - progress_.elapsed_s()));
  }
  progress_.show(settler_.at(), left_s);
}

// Said and stored once a sweep: other work that lasts would make every round say it.
void Sweeper::note_busy_host(double load, int cpus) {
  if (std::exchange(host_busy_, true)) return;
  progress_.clear();
  say(fmt::format("the host is busy (load {:.1f} on {} CPUs): times may be off", load, cpus));
  const std::optional<db::RunRow> run = records_.store().run(records_.run());
  nlohmann::json environment = nlohmann::json::parse(run->environment);
  environment["load"] = load;
  environment["cpus"] = cpus;
  records_.store().resume_run(run->id, environment.dump());  // it runs already
}

// What runs untimed before a span: the base up to it, ending in `producer` where one is given.
// Where the base's candidates do not end at that stage, default configurations step in.
std::optional<Chain> Sweeper::feeder(const Problem& problem, Span span, const Chain& producer,
                                     const std::vector<Candidate>& candidates) const {
  const Stage until = producer.empty() ? span.first : producer.front().span().first;
  Chain chain;
  if (until != Stage::kPrepare) {
    const Span earlier{Stage::kPrepare, before(until)};
    chain = part_of(plan_.base, earlier);
    if (chain.empty()) {
      std::vector<Candidate> defaults;
      for (const Candidate& c : candidates) {
        if (c.configuration == default_configuration(*c.variant)) defaults.push_back(c);
      }
      const std::vector<Chain> covers = compose(problem, defaults, earlier);
      if (covers.empty()) return std::nullopt;
      chain = covers.front();
    }
  }
  chain.insert(chain.end(), producer.begin(), producer.end());
  return chain.empty() || joins(problem, chain).ok() ? std::optional(chain) : std::nullopt;
}

// The candidates that race: all, or what a search chose. nullopt where the work was stopped.
std::optional<std::vector<Chain>> Sweeper::search_span(const RaceGroup& group,
                                                       std::vector<Chain> chains, const Chain& base,
                                                       const Chain& feeder) {
  if (spec_.search.kind == SearchKind::kExhaustive) return chains;
  std::optional<Searched> searched =
      search(spec_, hello_, options_.seed, settler_, group, chains, base, feeder);
  if (!searched) return std::nullopt;
  const SearchedShare share{.shape = muse::key(group.shape),
                            .span = std::string(muse::name(group.span)),
                            .handoff = key(group.handoff),
                            .regime = std::string(profiler::name(group.regime)),
                            .kind = spec_.search.kind,
                            .seen = static_cast<int>(searched->seen.size()),
                            .of = static_cast<int>(chains.size())};
  records_.store().transaction([&] {
    for (const Chain& chain : searched->unseen) {
      records_.leave_out(chain, group, kNotSeen + text(share));
    }
  });
  result_.searched.push_back(share);
  return std::move(searched->seen);
}

// Adds the best of the span to `best`. A combine is raced per distinct hand-off of those already in
// it that leave Partials. False where the work was stopped.
bool Sweeper::sweep_span(const RaceGroup& group, const std::vector<Candidate>& candidates,
                         Shortlist& best) {
  const Problem& problem = group.shape.problem;
  std::map<Handoff, Chain> producers;
  if (group.span.first == Stage::kCombine) {
    for (const Candidate& c : best.candidates()) {
      if (c.span().last != Stage::kAttention) continue;
      producers.try_emplace(c.variant->produces(problem, c.configuration), Chain{c});
    }
    // A filter may leave the combines alone: then the base feeds them.
    for (const Candidate& c : plan_.base) {
      if (!producers.empty() || c.span().last != Stage::kAttention) continue;
      producers.try_emplace(c.variant->produces(problem, c.configuration), Chain{c});
    }
  } else {
    producers.try_emplace(Handoff{}, Chain{});
  }
  for (const auto& [handoff, producer] : producers) {
    const std::optional<Chain> earlier = feeder(problem, group.span, producer, candidates);
    if (!earlier) continue;
    std::vector<Chain> chains;
    for (const Candidate& c : candidates) {
      const bool fits = producer.empty() || c.span().first != Stage::kCombine ||
                        c.variant->consumes(problem, c.configuration, handoff).ok();
      if (c.span() == group.span && fits) chains.push_back({c});
    }
    RaceGroup fed = group;
    fed.handoff = handoff;
    const Chain base = part_of(plan_.base, group.span);
    const auto racing = search_span(fed, std::move(chains), base, *earlier);
    if (!racing) return false;
    const std::optional<Settled> settled = settler_.settle(fed, *racing, base, *earlier);
    if (!settled) return false;
    result_.winners.push_back(settled->winner);
    int left = spec_.pipelines.top_k;
    for (const Settled::Ranked& one : settled->best) {
      if (one.chain.size() > 1) continue;  // of a base
      // Beside attention, one that cannot be told from the winner makes pipelines that cannot
      // either.
      if (one.tied && !group.span.covers(Stage::kAttention)) continue;
      if (left-- == 0) break;
      best.add(one.chain[0], handoff, one.median_ns);
    }
  }
  return true;
}

void Sweeper::sweep_shape(size_t shape, profiler::Regime regime) {
  calibrated_ = false;
  store_skipped(shape, regime);
  const std::vector<Candidate> candidates = planned(shape, regime);
  RaceGroup group{.shape = plan_.shapes[shape].shape, .regime = regime};
  Shortlist best;
  for (const Span span : spans(shape, regime)) {
    if (span == kWholeStep) continue;  // races among the pipelines
    begin_part(span);
    group.span = span;
    if (!sweep_span(group, candidates, best)) return;
  }
  begin_part(kWholeStep);
  if (const std::optional<Winner> winner = steps_.settle(shape, regime, best)) {
    step_winners_.push_back(result_.winners.size());
    result_.winners.push_back(*winner);
  }
  pace_.end(progress_.elapsed_s());
}

// What has raced before is counted as it is now, not once more.
void Sweeper::race_siblings() {
  constexpr const char* kPart = "siblings";
  for (size_t i = 0; i < step_winners_.size(); ++i) pace_.expect(kPart);
  for (size_t shape = 0; shape < plan_.shapes.size(); ++shape) {
    for (size_t i = 0; !races_all(shape) && i < spec_.measure.regimes.size(); ++i) {
      pace_.expect(kSiblingsAlone);
    }
  }
  const auto before = [this] {
    calibrated_ = false;
    pace_.begin(kPart, progress_.elapsed_s());
    return !stopped();
  };
  steps_.race_siblings(before, [this](const StepRaces::Again& again) {
    if (again.winner) result_.winners[step_winners_[again.step]] = *again.winner;
    count_trials(again.counted);
  });
}

// Whose siblings have not all been decided waits for another run: what was good on them is not
// known.
void Sweeper::settle_among_siblings() {
  for (size_t shape = 0; shape < plan_.shapes.size(); ++shape) {
    if (races_all(shape)) continue;
    for (const profiler::Regime regime : spec_.measure.regimes) {
      if (stopped()) return;
      calibrated_ = false;
      pace_.begin(kSiblingsAlone, progress_.elapsed_s());
      if (const auto winner = steps_.settle_among_siblings(shape, regime)) {
        result_.winners.push_back(*winner);
      }
      pace_.end(progress_.elapsed_s());
      count_trials();
    }
  }
}

// Trials belong to one shape and regime: once that is done, their numbers are all that is kept.
// `counted`: those that were counted before; who was reused then may have raced since.
void Sweeper::count_trials(const std::map<db::Id, StepRaces::Counted>& counted) {
  Tally tally = settler_.take_tally();
  for (const auto& [id, was] : counted) {
    if (!tally.outcomes.contains(id)) continue;
    const auto mine = result_.outcomes.find(was.outcome);
    if (mine != result_.outcomes.end() && --mine->second == 0) result_.outcomes.erase(mine);
    if (was.reused) {
      --result_.reused;
    } else {
      tally.reused.erase(id);
      tally.measured.erase(id);
    }
  }
  records_.store().transaction([&] {
    for (const db::Id id : tally.reused) {
      if (!tally.is_reused(id)) continue;
      records_.set_reused(id);
      ++result_.reused;
    }
  });
  for (const auto& [id, outcome] : tally.outcomes) ++result_.outcomes[outcome];
  result_.measured += static_cast<int>(tally.measured.size());
}

SweepResult Sweeper::run() {
  const profiler::NvtxRange range("sweep");
  const double began_s = progress_.elapsed_s();
  runner_.tick = [this] { show_progress(); };
  runner_.on_busy_host = [this](double load, int cpus) { note_busy_host(load, cpus); };
  runner_.placements = spec_.measure.placements;
  for (const Candidate& candidate : measured_candidates(plan_)) measured_.insert(key(candidate));
  for (size_t shape = 0; shape < plan_.shapes.size(); ++shape) {
    if (!races_all(shape)) continue;
    for (const profiler::Regime regime : spec_.measure.regimes) {
      for (const Span span : spans(shape, regime)) pace_.expect(std::string(name(span)));
    }
  }
  for (size_t shape = 0; shape < plan_.shapes.size(); ++shape) {
    if (!races_all(shape)) continue;
    for (const profiler::Regime regime : spec_.measure.regimes) {
      if (!stopped()) sweep_shape(shape, regime);
      count_trials();
    }
  }
  race_siblings();
  settle_among_siblings();
  stopped();  // a stop during the last race counts
  result_.cost = runner_.cost();
  result_.cost.wall_s = progress_.elapsed_s() - began_s;
  const bool whole = result_.stop_signal == 0 && !result_.out_of_budget && !result_.device_lost;
  records_.finish(whole                      ? "complete"
                  : result_.stop_signal != 0 ? "interrupted"
                                             : "incomplete",
                  total_cost(records_.cost(), result_.cost));
  result_.rounds = runner_.rounds();
  return result_;
}

}  // namespace

SweepResult sweep(const Plan& plan, const Spec& spec, Records& records, Measurer& measurer,
                  const Hello& hello, const SweepOptions& options, ProgressLine& progress) {
  return Sweeper(plan, spec, records, measurer, hello, options, progress).run();
}

ExitCode exit_code(const SweepResult& result) {
  if (result.stop_signal != 0) {
    return result.stop_signal == 2 ? ExitCode::kInterrupted : ExitCode::kTerminated;
  }
  if (!result.no_worker.empty()) return ExitCode::kEnvironment;
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
