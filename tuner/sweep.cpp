// SPDX-License-Identifier: Apache-2.0
// Spans first, then pipelines made of the best of each.
#include "tuner/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "profiler/nvtx.h"

namespace muse::tuner {
namespace {

/// Pipelines that are measured for each of pipelines.top_k, ways of launching them apart.
constexpr size_t kPipelinesPerRank = 4;

// The part of a chain that covers exactly the span; empty where its candidates do not end there.
Chain part_of(const Chain& chain, Span span) {
  Chain part;
  for (const Candidate& candidate : chain) {
    const Span mine = candidate.span();
    if (mine.first >= span.first && mine.last <= span.last) part.push_back(candidate);
  }
  return !part.empty() && muse::span(part) == span ? part : Chain{};
}

/// The best of the spans of one shape.
class Best {
 public:
  /// `fed`: the hand-off it was raced behind; kPartials for a combine.
  void add(const Candidate& candidate, const Handoff& fed, double median_ns) {
    if (std::find(candidates_.begin(), candidates_.end(), candidate) == candidates_.end()) {
      candidates_.push_back(candidate);
    }
    medians_ns_[{key(candidate), fed}] = median_ns;
  }
  const std::vector<Candidate>& candidates() const { return candidates_; }

  struct Composed {
    double stage_sum_ns;  ///< of its stages' medians; what they do to each other shows in the race
    Chain chain;
  };
  /// All pipelines that can be made, least sum first.
  std::vector<Composed> pipelines(const Problem& problem) const {
    std::vector<Composed> ranked;
    for (Chain& chain : compose(problem, candidates_)) {
      const double sum_ns = expected_ns(problem, chain);
      ranked.push_back({sum_ns, std::move(chain)});
    }
    std::stable_sort(ranked.begin(), ranked.end(), [](const Composed& a, const Composed& b) {
      return a.stage_sum_ns < b.stage_sum_ns;
    });
    return ranked;
  }

 private:
  /// Infinite where a candidate was not among the best behind what its predecessor leaves.
  double expected_ns(const Problem& problem, const Chain& chain) const {
    double sum = 0;
    Handoff fed;
    for (const Candidate& candidate : chain) {
      const auto known = medians_ns_.find({key(candidate), fed});
      sum += known == medians_ns_.end() ? std::numeric_limits<double>::infinity() : known->second;
      const Handoff left = candidate.variant->produces(problem, candidate.configuration);
      fed = left.kind == HandoffKind::kPartials ? left : Handoff{};
    }
    return sum;
  }

  std::vector<Candidate> candidates_;
  std::map<std::pair<std::string, Handoff>, double> medians_ns_;
};

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
                 [this](const RaceGroup& group) { calibrate(group); }) {}

  SweepResult run();

 private:
  bool keep_on();
  void calibrate(const RaceGroup& group);
  void store_skipped(size_t shape, profiler::Regime regime);
  std::vector<Candidate> planned(size_t shape, profiler::Regime regime) const;
  std::optional<Chain> feeder(const Problem& problem, Span span, const Chain& producer,
                              const std::vector<Candidate>& candidates) const;
  void sweep_shape(size_t shape, profiler::Regime regime);
  bool sweep_span(const RaceGroup& group, const std::vector<Candidate>& candidates, Best& best);

  const Plan& plan_;
  const Spec& spec_;
  Records& records_;
  Measurer& measurer_;
  const Hello& hello_;
  const SweepOptions& options_;
  ProgressLine& progress_;
  RaceRunner runner_;
  Settler settler_;
  SweepResult result_;
  double done_ = 0;
  bool calibrated_ = false;
};

bool Sweeper::keep_on() {
  if (options_.stop_signal != nullptr && *options_.stop_signal != 0) {
    result_.stop_signal = *options_.stop_signal;
  } else if (measurer_.lost_device() || runner_.gave_up()) {
    result_.device_lost = true;
    result_.no_worker = runner_.no_worker();
  } else if (options_.budget && progress_.elapsed_s() > options_.budget->count()) {
    result_.out_of_budget = true;
  } else {
    return true;
  }
  return false;
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

// What does not run here: unsupported, or without machine code.
void Sweeper::store_skipped(size_t shape, profiler::Regime regime) {
  const RaceGroup group{.shape = plan_.shapes[shape].shape, .regime = regime};
  records_.store().transaction([&] {
    for (const PlanItem& item : plan_.items) {
      if (item.shape != shape || item.regime != regime) continue;
      const auto failed = options_.not_compiled.find(key(item.candidate));
      if (item.action == Action::kSkip) {
        settler_.skip(group, item.candidate, Outcome::kUnsupported, item.reason);
      } else if (failed != options_.not_compiled.end()) {
        settler_.skip(group, item.candidate, failed->second.outcome, failed->second.reason);
      }
    }
  });
}

std::vector<Candidate> Sweeper::planned(size_t shape, profiler::Regime regime) const {
  std::vector<Candidate> candidates;
  for (const PlanItem& item : plan_.items) {
    if (item.shape == shape && item.regime == regime && item.action != Action::kSkip &&
        !options_.not_compiled.contains(key(item.candidate))) {
      candidates.push_back(item.candidate);
    }
  }
  return candidates;
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

// Adds the best of the span to `best`. A combine is raced per distinct hand-off of those already in
// it that leave Partials. False where the work was stopped.
bool Sweeper::sweep_span(const RaceGroup& group, const std::vector<Candidate>& candidates,
                         Best& best) {
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
    const std::optional<Settled> settled =
        settler_.settle(fed, chains, part_of(plan_.base, group.span), *earlier);
    if (!settled) return false;
    result_.winners.push_back(settled->winner);
    const size_t count = std::min<size_t>(settled->best.size(), spec_.pipelines.top_k);
    for (size_t i = 0; i < count; ++i) {
      best.add(settled->best[i].candidate, handoff, settled->best[i].median_ns);
    }
  }
  return true;
}

void Sweeper::sweep_shape(size_t shape, profiler::Regime regime) {
  calibrated_ = false;
  // Tracing gets slower with what a process has launched (6 times at least after 180,000 samples),
  // and cubins stay loaded: each shape gets a process of its own.
  if (plan_.target == TargetKind::kCuda) measurer_.retire();
  store_skipped(shape, regime);
  const std::vector<Candidate> candidates = planned(shape, regime);
  std::set<Span> spans{kWholeStep};
  for (const Candidate& c : candidates) spans.insert(c.span());
  const double share =
      1.0 / static_cast<double>(spans.size() * plan_.shapes.size() * spec_.measure.regimes.size());
  RaceGroup group{.shape = plan_.shapes[shape].shape, .regime = regime};
  Best best;
  for (const Span span : spans) {
    if (span == kWholeStep) continue;  // races among the pipelines
    group.span = span;
    if (!sweep_span(group, candidates, best)) return;
    done_ += share;
  }
  group.span = kWholeStep;
  std::vector<Chain> pipelines;
  for (Best::Composed& composed : best.pipelines(group.shape.problem)) {
    if (pipelines.size() == kPipelinesPerRank * spec_.pipelines.top_k) break;
    pipelines.push_back(std::move(composed.chain));
  }
  for (const Candidate& c : candidates) {
    if (c.span() == kWholeStep) pipelines.push_back({c});
  }
  pipelines =
      with_launch_ways(pipelines, spec_.pipelines.pdl, group.shape.problem, hello_.device_class);
  const std::optional<Settled> settled = settler_.settle(group, pipelines, plan_.base, {});
  if (settled) result_.winners.push_back(settled->winner);
  done_ += share;
}

SweepResult Sweeper::run() {
  const profiler::NvtxRange range("sweep");
  runner_.tick = [this] { progress_.update(settler_.at(), done_); };
  for (size_t shape = 0; shape < plan_.shapes.size(); ++shape) {
    for (const profiler::Regime regime : spec_.measure.regimes) {
      if (keep_on()) sweep_shape(shape, regime);
    }
  }
  keep_on();  // a stop during the last race counts
  const Tally& tally = settler_.tally();
  records_.store().transaction([&] {
    for (const db::Id id : tally.reused) {
      if (!tally.measured.contains(id)) records_.set_reused(id);
    }
  });
  const bool whole = result_.stop_signal == 0 && !result_.out_of_budget && !result_.device_lost;
  records_.finish(whole ? "complete" : result_.stop_signal != 0 ? "interrupted" : "incomplete");
  for (const auto& [id, outcome] : tally.outcomes) ++result_.outcomes[outcome];
  result_.measured = static_cast<int>(tally.measured.size());
  result_.reused =
      static_cast<int>(std::count_if(tally.reused.begin(), tally.reused.end(),
                                     [&](db::Id id) { return !tally.measured.contains(id); }));
  result_.rounds = runner_.rounds();
  result_.cost = runner_.cost();
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
