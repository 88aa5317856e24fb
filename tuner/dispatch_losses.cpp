// SPDX-License-Identifier: Apache-2.0
// Losses out of what was measured; generalists by the lookup's own scores.
#include "tuner/dispatch_losses.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace muse::tuner {
namespace {

using dispatch::Key;
using Losses = std::map<std::string, uint16_t>;
using ByShape = std::map<std::string, const MeasuredShape*>;

/// In 0.01 %, against the best of the shape; what is more than a loss can say is the most it can.
uint16_t loss(double median_ns, double best_ns) {
  constexpr double kMost = dispatch::kUnmeasured - 1;
  return static_cast<uint16_t>(std::lround(std::min(1e4 * (median_ns / best_ns - 1), kMost)));
}

Losses losses_on(const MeasuredShape& shape) {
  double best_ns = std::numeric_limits<double>::infinity();
  for (const auto& [unused, time] : shape.times) best_ns = std::min(best_ns, time.median_ns);
  Losses losses;
  for (const auto& [pipeline, time] : shape.times) {
    losses[pipeline] = loss(time.median_ns, best_ns);
  }
  return losses;
}

/// The worst on any of the shapes, of what was measured on all of them.
Losses worst_losses(const std::vector<ShapeRegret>& over, const ByShape& shapes) {
  std::optional<Losses> worst;
  for (const ShapeRegret& one : over) {
    const Losses here = losses_on(*shapes.at(one.shape));
    if (!worst) worst = here;
    std::erase_if(*worst, [&](const auto& entry) { return !here.contains(entry.first); });
    for (auto& [pipeline, most] : *worst) most = std::max(most, here.at(pipeline));
  }
  return worst.value_or(Losses{});
}

/// Gives every row the losses of all that was measured on it.
void fill_all(DispatchTable& table, const ByShape& shapes) {
  for (DispatchRow& row : table.rows) row.losses = losses_on(*shapes.at(key(row.shape)));
  for (DispatchRow& row : table.captured) row.losses = worst_losses(row.over, shapes);
}

void keep(std::vector<DispatchRow>& rows, const std::set<std::string>& pipelines) {
  for (DispatchRow& row : rows) {
    std::erase_if(row.losses, [&](const auto& one) { return !pipelines.contains(one.first); });
  }
}

std::set<std::string> chosen_pipelines(const DispatchTable& table) {
  std::set<std::string> chosen{table.base};
  for (const DispatchRow& row : table.rows) chosen.insert(row.pipeline);
  for (const DispatchRow& row : table.captured) chosen.insert(row.pipeline);
  return chosen;
}

/// a, b and what lies at each quarter of the way between them by ratio; ascending.
std::vector<int64_t> steps(int64_t a, int64_t b) {
  std::vector<int64_t> all;
  for (int i = 0; i <= 4; ++i) {
    const double step =
        std::pow(static_cast<double>(a), (4 - i) / 4.0) * std::pow(static_cast<double>(b), i / 4.0);
    if (all.empty() || all.back() != std::llround(step)) all.push_back(std::llround(step));
  }
  return all;
}

/// The keys of one structure, q_len, page size and window by batch and context.
using Grid = std::map<int64_t, std::map<int64_t, Key>>;

/// What lies between neighbours; no row is among them.
void add_between(const Grid& grid, std::set<std::pair<int64_t, int64_t>>& between) {
  const auto above = [&](int64_t batch, int64_t context) {
    for (auto line = grid.upper_bound(batch); line != grid.end(); ++line) {
      if (line->second.contains(context)) return line->first;
    }
    return batch;
  };
  const auto behind = [&](int64_t batch, int64_t context) {
    const auto found = grid.at(batch).upper_bound(context);
    return found == grid.at(batch).end() ? context : found->first;
  };
  const auto is_row = [&](int64_t batch, int64_t context) {
    const auto line = grid.find(batch);
    return line != grid.end() && line->second.contains(context);
  };
  const auto add = [&](int64_t batch, int64_t to_batch, int64_t context, int64_t to_context) {
    for (const int64_t b : steps(batch, to_batch)) {
      for (const int64_t c : steps(context, to_context)) {
        if (!is_row(b, c)) between.emplace(b, c);
      }
    }
  };
  for (const auto& [batch, line] : grid) {
    for (const auto& [context, unused] : line) {
      const int64_t to_batch = above(batch, context), to_context = behind(batch, context);
      const bool cell = is_row(to_batch, to_context);
      add(batch, to_batch, context, cell ? to_context : context);
      add(batch, cell ? to_batch : batch, context, to_context);
    }
  }
}

/// Keys between the rows of a table.
std::vector<Key> keys_between(const DispatchIndex& index) {
  std::map<std::tuple<std::vector<int64_t>, int64_t, int64_t, int64_t>, Grid> grids;
  for (const dispatch::Row& row : index.rows) {
    const dispatch::Structure structure = dispatch::detail::structure(row.key);
    const std::vector<int64_t> fields(std::begin(structure.field), std::end(structure.field));
    grids[{fields, row.key.q_len, row.key.page_size, row.key.window}][row.key.batch].emplace(
        row.key.context, row.key);
  }
  std::vector<Key> keys;
  for (const auto& [unused, grid] : grids) {
    std::set<std::pair<int64_t, int64_t>> between;
    add_between(grid, between);
    for (const auto& [batch, context] : between) {
      keys.push_back(grid.begin()->second.begin()->second);
      keys.back().batch = batch;
      keys.back().context = context;
    }
  }
  return keys;
}

/// What each pipeline is expected to lose somewhere between rows, percent.
using Expected = std::map<std::string, double>;

Expected expected_at(const Key& key, const dispatch::Table& table, const dispatch::Rules& rules,
                     const std::vector<std::string>& pipelines) {
  using namespace dispatch::detail;
  const dispatch::Group& group = *find_group(table, structure(key));
  Search search(table, rules, key, group);
  Expected expected;
  if (!search.next(group)) return expected;
  const Scores scores(table, group, search);
  for (int choice = group.first_choice; choice < group.end_choice; ++choice) {
    const int64_t score = scores.score_of(choice);
    if (score < 0) continue;
    expected[pipelines[static_cast<size_t>(scores.pipeline(choice))]] = scores.loss_pct(score);
  }
  return expected;
}

/// At keys between the rows of both tables.
std::vector<Expected> expected_between(const DispatchTable& table) {
  const std::vector<std::string> pipelines = named_pipelines(table);
  std::vector<Expected> all;
  for (const bool contexts : {true, false}) {
    const IndexedRows rows(contexts ? table.rows : table.captured, pipelines, contexts);
    for (const Key& key : keys_between(rows.index())) {
      all.push_back(expected_at(key, rows.index().table(), table.rules, pipelines));
    }
  }
  return all;
}

/// The least that one of `pipelines` loses; far above any loss where there is none of them.
double least(const Expected& expected, const std::set<std::string>& pipelines) {
  double loss_pct = 1000;
  for (const auto& [pipeline, pct] : expected) {
    if (pipelines.contains(pipeline)) loss_pct = std::min(loss_pct, pct);
  }
  return loss_pct;
}

/// What a pipeline saves where the best of `pipelines` is not good enough; empty where it is
/// everywhere.
std::map<std::string, double> savings(const std::vector<Expected>& all,
                                      const std::set<std::string>& pipelines) {
  std::map<std::string, double> saved;
  for (const Expected& expected : all) {
    const double now = least(expected, pipelines);
    const bool good = std::none_of(expected.begin(), expected.end(), [&](const auto& one) {
      return one.second < now - kWorthAKernelPct;
    });
    if (good) continue;
    for (const auto& [pipeline, pct] : expected) {
      if (pct < now) saved[pipeline] += now - pct;
    }
  }
  return saved;
}

void add_generalists(const DispatchTable& table, std::set<std::string>& pipelines) {
  const std::vector<Expected> all = expected_between(table);
  for (;;) {
    const std::map<std::string, double> saved = savings(all, pipelines);
    if (saved.empty()) return;
    const auto most =
        std::max_element(saved.begin(), saved.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    pipelines.insert(most->first);
  }
}

}  // namespace

void fill_losses(DispatchTable& table, const std::vector<MeasuredShape>& shapes,
                 bool with_generalists) {
  ByShape by_shape;
  for (const MeasuredShape& shape : shapes) by_shape[key(shape.chosen.shape)] = &shape;
  fill_all(table, by_shape);
  std::set<std::string> pipelines = chosen_pipelines(table);
  if (with_generalists) add_generalists(table, pipelines);
  keep(table.rows, pipelines);
  keep(table.captured, pipelines);
}

std::vector<std::string> generalists(const DispatchTable& table) {
  const std::set<std::string> chosen = chosen_pipelines(table);
  std::vector<std::string> others = named_pipelines(table);
  std::erase_if(others, [&](const std::string& one) { return chosen.contains(one); });
  return others;
}

}  // namespace muse::tuner
