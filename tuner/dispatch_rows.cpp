// SPDX-License-Identifier: Apache-2.0
// Rows of a dispatch table out of what was measured, and that out of the database.
#include "tuner/dispatch_rows.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <tuple>

#include "profiler/statistics.h"
#include "tuner/stored_selection.h"

namespace muse::tuner {
namespace {

/// The times of some shapes as a matrix.
struct Matrix {
  std::vector<std::string> candidates;  ///< ordered
  Times times;
  size_t index(const std::string& candidate) const {
    return static_cast<size_t>(std::lower_bound(candidates.begin(), candidates.end(), candidate) -
                               candidates.begin());
  }
};

Matrix matrix_of(const std::vector<const MeasuredShape*>& shapes, const std::string& base) {
  std::map<std::string, std::vector<double>> rows;
  const std::vector<double> nothing(shapes.size(), std::numeric_limits<double>::infinity());
  rows.emplace(base, nothing);
  for (size_t s = 0; s < shapes.size(); ++s) {
    for (const auto& [name, time] : shapes[s]->times) {
      rows.emplace(name, nothing).first->second[s] = time.median_ns;
    }
  }
  Matrix matrix;
  for (auto& [name, times] : rows) {
    matrix.candidates.push_back(name);
    matrix.times.push_back(std::move(times));
  }
  return matrix;
}

std::vector<const MeasuredShape*> pointers(const std::vector<MeasuredShape>& shapes) {
  std::vector<const MeasuredShape*> all;
  for (const MeasuredShape& shape : shapes) all.push_back(&shape);
  return all;
}

double regret_pct(const MeasuredShape& shape, const std::string& pipeline) {
  double best = std::numeric_limits<double>::infinity();
  for (const auto& [unused, time] : shape.times) best = std::min(best, time.median_ns);
  const auto own = shape.times.find(pipeline);
  return own == shape.times.end() ? 0 : 100 * (own->second.median_ns / best - 1);
}

/// The shape's row with another pipeline than was chosen for it.
DispatchRow with_pipeline(const MeasuredShape& shape, const std::string& pipeline,
                          const std::string& status) {
  const MeasuredTime& time = shape.times.at(pipeline);
  DispatchRow row = shape.chosen;
  row.pipeline = pipeline;
  row.median_ns = time.median_ns;
  row.low_ns = time.low_ns;
  row.high_ns = time.high_ns;
  row.regret_pct = regret_pct(shape, pipeline);
  row.status = row.rule = status;
  row.tie_set.clear();
  return row;
}

bool is_among(const std::string& pipeline, const std::optional<std::vector<std::string>>& among) {
  return !among || std::find(among->begin(), among->end(), pipeline) != among->end();
}

DispatchRow own_row(const MeasuredShape& shape) {
  DispatchRow row = shape.chosen;
  row.regret_pct = regret_pct(shape, row.pipeline);
  return row;
}

std::optional<DispatchRow> eager_row(const MeasuredShape& shape,
                                     const std::optional<std::vector<std::string>>& among) {
  if (!among) return own_row(shape);
  const std::string* best = nullptr;
  for (const std::string& pipeline : *among) {
    const auto time = shape.times.find(pipeline);
    if (time == shape.times.end()) continue;
    if (!best || time->second.median_ns < shape.times.at(*best).median_ns) best = &pipeline;
  }
  if (!best) return std::nullopt;
  return *best == shape.chosen.pipeline ? own_row(shape) : with_pipeline(shape, *best, "limited");
}

using KeyOrder =
    std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool, int64_t>;
KeyOrder order(const dispatch::Key& k) {
  return {k.num_q_heads, k.num_kv_heads, k.head_dim, k.page_size, k.q_len,
          k.batch,       k.window,       k.rope,     k.scaled,    k.context};
}

/// Losses of what is found for each shape, where it was measured on it.
class Losses {
 public:
  void add(double regret_pct) {
    worst_ = std::max(worst_, regret_pct / 100);
    logs_ += std::log1p(regret_pct / 100);
    ++count_;
  }
  Regret regret() const { return {worst_, count_ > 0 ? std::expm1(logs_ / count_) : 0}; }

 private:
  double worst_ = 0, logs_ = 0;
  int count_ = 0;
};

/// Worst regrets that differ by less are the same: what the shapes chose themselves is preferred,
/// so that noise adds no pipeline.
constexpr double kSameRegret = 0.005;

/// The candidate with the least worst regret; of about equal ones that which most shapes have
/// chosen themselves.
size_t captured_choice(const Matrix& matrix, const std::vector<const MeasuredShape*>& shapes,
                       const std::vector<size_t>& allowed) {
  size_t choice = least_worst_regret(matrix.times, allowed);
  const double limit = regret(matrix.times, {choice}).worst + kSameRegret;
  const auto votes = [&](size_t candidate) {
    return std::count_if(shapes.begin(), shapes.end(), [&](const MeasuredShape* shape) {
      return shape->chosen.pipeline == matrix.candidates[candidate];
    });
  };
  for (const size_t candidate : allowed) {
    if (regret(matrix.times, {candidate}).worst <= limit && votes(candidate) > votes(choice)) {
      choice = candidate;
    }
  }
  return choice;
}

/// Those of uniform lengths where there are any: what is best for one long request among short ones
/// is seldom measured on the others, and would decide for all.
std::vector<const MeasuredShape*> uniform_first(const std::vector<const MeasuredShape*>& shapes) {
  std::vector<const MeasuredShape*> uniform;
  for (const MeasuredShape* shape : shapes) {
    if (shape->chosen.shape.lengths.profile == Profile::kUniform) uniform.push_back(shape);
  }
  return uniform.empty() ? shapes : uniform;
}

/// The row for all shapes of one key without context.
std::optional<DispatchRow> captured_row(const std::vector<const MeasuredShape*>& shapes,
                                        const std::string& base,
                                        const std::optional<std::vector<std::string>>& among) {
  const Matrix matrix = matrix_of(shapes, base);
  std::vector<size_t> allowed;
  for (size_t c = 0; c < matrix.candidates.size(); ++c) {
    const bool measured = std::all_of(matrix.times[c].begin(), matrix.times[c].end(),
                                      [](double time) { return std::isfinite(time); });
    if (measured && is_among(matrix.candidates[c], among)) allowed.push_back(c);
  }
  if (allowed.empty()) return std::nullopt;
  const std::string& choice = matrix.candidates[captured_choice(matrix, shapes, allowed)];
  const MeasuredShape* worst = shapes.front();
  std::vector<ShapeRegret> over;
  for (const MeasuredShape* shape : shapes) {
    if (regret_pct(*shape, choice) > regret_pct(*worst, choice)) worst = shape;
    over.push_back(
        {key(shape->chosen.shape), shape->times.at(choice).median_ns, regret_pct(*shape, choice)});
  }
  DispatchRow row = with_pipeline(*worst, choice, "captured");
  row.over = std::move(over);
  return row;
}

/// Samples by trial of one round.
using Sampled = std::map<db::Id, std::vector<double>>;

/// Of a race's rounds that count.
std::vector<Sampled> good_rounds(const db::Store& store, db::Id race) {
  std::vector<Sampled> rounds;
  for (const db::RoundRow& round : store.rounds(race)) {
    if (!round.rejected.empty()) continue;
    Sampled& samples = rounds.emplace_back();
    for (const db::SampleRow& sample : round.samples) {
      for (const double ns : sample.ns) {
        if (std::isfinite(ns)) samples[sample.trial_id].push_back(ns);
      }
    }
  }
  return rounds;
}

/// What two trials took in the rounds that have both.
struct Beside {
  std::vector<double> own, other;
};
Beside beside(const std::vector<Sampled>& rounds, db::Id trial, db::Id other) {
  Beside samples;
  for (const Sampled& round : rounds) {
    const auto mine = round.find(trial), its = round.find(other);
    if (mine == round.end() || its == round.end()) continue;
    samples.own.insert(samples.own.end(), mine->second.begin(), mine->second.end());
    samples.other.insert(samples.other.end(), its->second.begin(), its->second.end());
  }
  return samples;
}

/// A trial's time as it would be beside the choice, so that clocks that moved between rounds or
/// races neither help nor hurt it. In the race that decided by its ratio to the choice in the
/// rounds that have both, else by that to the base, else as it was measured. nullopt without a
/// sample of its own.
std::optional<MeasuredTime> time_beside_choice(const std::vector<Sampled>& rounds, db::Id trial,
                                               const db::SelectionRow& selection, bool decided,
                                               double step_ns) {
  const auto time = [&](const std::vector<double>& own, double scale) {
    const profiler::Interval interval =
        profiler::median_interval(own, {.confidence = 0.95, .least_half_width = step_ns});
    return MeasuredTime{scale * profiler::median(own), scale * interval.low, scale * interval.high};
  };
  if (decided && trial != selection.base_trial_id) {
    const Beside choice = beside(rounds, trial, selection.trial_id);
    if (!choice.own.empty()) {
      return time(choice.own, selection.median_ns / profiler::median(choice.other));
    }
  }
  const Beside base = beside(rounds, trial, selection.base_trial_id);
  if (!base.own.empty() && selection.base_median_ns > 0) {
    return time(base.own, selection.base_median_ns / profiler::median(base.other));
  }
  const std::vector<double> own = beside(rounds, trial, trial).own;
  return own.empty() ? std::nullopt : std::optional(time(own, 1));
}

/// The run's choices of whole pipelines by problem.
std::map<db::Id, db::SelectionRow> step_selections(const db::Store& store, const db::RunRow& run,
                                                   const std::string& regime) {
  std::map<db::Id, db::SelectionRow> all;
  for (db::SelectionRow& selection : store.selections(run.id)) {
    if (selection.span != name(kWholeStep) || selection.regime != regime) continue;
    const db::Id problem = selection.problem_id;
    all.emplace(problem, std::move(selection));
  }
  return all;
}

/// Times of the run's whole pipelines on the shapes that have a choice, by problem id and chain
/// key; what each was made of goes into `code_hashes`.
std::map<db::Id, std::map<std::string, MeasuredTime>> measured_times(
    const db::Store& store, const db::RunRow& run, const std::string& regime,
    std::map<std::string, std::string>& code_hashes) {
  const std::map<db::Id, db::SelectionRow> selections = step_selections(store, run, regime);
  std::map<db::Id, std::map<std::string, MeasuredTime>> all;
  std::map<db::Id, std::vector<Sampled>> races;
  for (const db::Store::RunTrial& one : store.run_trials(run.id)) {
    if (one.candidate.span != name(kWholeStep) || one.trial.key.regime != regime) continue;
    const auto selection = selections.find(one.problem.id);
    const auto race = one.median_ns ? store.last_race(one.trial.id) : std::nullopt;
    if (!race || selection == selections.end()) continue;
    if (!races.contains(*race)) races.emplace(*race, good_rounds(store, *race));
    const auto time =
        time_beside_choice(races[*race], one.trial.id, selection->second,
                           *race == selection->second.race_id, store.race(*race)->step_ns);
    if (!time) continue;
    code_hashes[one.candidate.key] = one.trial.key.code_hash;
    all[one.problem.id][one.candidate.key] = *time;
  }
  return all;
}

}  // namespace

Fewer fewer_pipelines(const std::vector<MeasuredShape>& shapes, const std::string& base,
                      const SubsetLimits& limits) {
  const Matrix matrix = matrix_of(pointers(shapes), base);
  const std::vector<size_t> chosen = few_candidates(matrix.times, matrix.index(base), limits);
  Fewer fewer;
  for (const size_t c : chosen) fewer.pipelines.push_back(matrix.candidates[c]);
  fewer.regret = regret(matrix.times, chosen);
  return fewer;
}

void fill_rows(DispatchTable& table, const std::vector<MeasuredShape>& shapes,
               const std::optional<std::vector<std::string>>& among) {
  std::map<std::string, const MeasuredShape*> by_shape;
  std::map<KeyOrder, std::vector<const MeasuredShape*>> captured;
  for (const MeasuredShape& shape : shapes) {
    by_shape[key(shape.chosen.shape)] = &shape;
    if (auto row = eager_row(shape, among)) table.rows.push_back(*std::move(row));
  }
  for (const auto& [unused, shape] : by_shape) {
    captured[order(dispatch_key(shape->chosen.shape, false))].push_back(shape);
  }
  Losses losses, captured_losses;
  std::map<KeyOrder, std::string> found;  // what a lookup answers with
  for (const DispatchRow& row : in_preference(table.rows)) {
    const auto at = found.emplace(order(dispatch_key(row.shape, true)), row.pipeline).first;
    const MeasuredShape& shape = *by_shape.at(key(row.shape));
    if (shape.times.contains(at->second)) losses.add(regret_pct(shape, at->second));
  }
  for (const auto& [unused, group] : captured) {
    auto row = captured_row(uniform_first(group), table.base, among);
    if (!row) continue;
    for (const ShapeRegret& one : row->over) captured_losses.add(one.regret_pct);
    table.captured.push_back(*std::move(row));
  }
  table.regret = losses.regret();
  table.captured_regret = captured_losses.regret();
}

void tell_races(DispatchTable& table, const Spec& spec) {
  std::set<std::string> among_siblings;
  for (const ShapeEntry& entry : spec.shapes) {
    if (entry.race == RaceAmong::kSiblings) among_siblings.insert(key(entry.shape));
  }
  for (DispatchRow& row : table.rows) row.among_siblings = among_siblings.contains(key(row.shape));
}

MeasuredRun measured_run(const db::Store& store, const db::RunRow& run, const std::string& regime) {
  MeasuredRun result;
  const auto times = measured_times(store, run, regime, result.code_hashes);
  for (const db::SelectionRow& selection : store.selections(run.id)) {
    if (selection.span != name(kWholeStep) || selection.regime != regime) continue;
    const db::TrialRow trial = store.trial(selection.trial_id);
    const auto shape = parse_shape(store.problem(selection.problem_id).key);
    if (!shape) throw std::runtime_error("a problem's key is none: " + shape.error());
    const auto ties = tie_keys(selection);
    if (!ties) throw std::runtime_error(ties.error());
    MeasuredShape measured;
    measured.chosen = {.shape = *shape,
                       .pipeline = store.candidate(trial.key.candidate_id).key,
                       .median_ns = selection.median_ns,
                       .low_ns = selection.low_ns,
                       .high_ns = selection.high_ns,
                       .base_median_ns = selection.base_median_ns,
                       .status = selection.status,
                       .run = run.id,
                       .date = run.started,
                       .rule = selection.rule,
                       .tie_set = *ties};
    const auto found = times.find(selection.problem_id);
    if (found != times.end()) measured.times = found->second;
    measured.times[measured.chosen.pipeline] = {selection.median_ns, selection.low_ns,
                                                selection.high_ns};
    result.code_hashes.emplace(measured.chosen.pipeline, trial.key.code_hash);
    result.shapes.push_back(std::move(measured));
    result.selections.push_back(selection);
    result.toolkit = trial.key.toolkit;
    result.protocols.insert(trial.key.protocol_hash);
  }
  return result;
}

}  // namespace muse::tuner
