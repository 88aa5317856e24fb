// SPDX-License-Identifier: Apache-2.0
// Orders rows, cuts them into groups and lines, hashes their keys.
#include "tuner/dispatch_index.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>
#include <tuple>

namespace muse::tuner {
namespace {

using dispatch::Key;
using dispatch::Row;
using dispatch::detail::compare;
using dispatch::detail::same;

bool less(const Row& a, const Row& b) {
  const int order = compare(dispatch::detail::structure(a.key), dispatch::detail::structure(b.key));
  if (order != 0) return order < 0;
  const auto rest = [](const Key& key) {
    return std::tie(key.q_len, key.batch, key.context, key.page_size, key.window);
  };
  return rest(a.key) < rest(b.key);
}

void check(const Row& row, bool contexts) {
  if (!valid(row.key, contexts) || !same(normalized(row.key, contexts), row.key)) {
    throw std::invalid_argument("dispatch row under a key that is none");
  }
}

void add_slot(DispatchIndex& index, int row) {
  const uint32_t mask = (uint32_t{1} << index.slot_bits) - 1;
  uint32_t slot = dispatch::detail::slot_of(index.rows[row].key, index.slot_bits);
  while (index.slots[slot] >= 0) slot = (slot + 1) & mask;
  index.slots[slot] = row;
}

void fill_slots(DispatchIndex& index) {
  if (index.rows.empty()) return;
  index.slot_bits = 1;
  while ((size_t{1} << index.slot_bits) < 2 * index.rows.size()) ++index.slot_bits;
  index.slots.assign(size_t{1} << index.slot_bits, -1);
  for (size_t i = 0; i < index.rows.size(); ++i) {
    if (i > 0 && same(index.rows[i - 1].key, index.rows[i].key)) continue;
    add_slot(index, static_cast<int>(i));
  }
}

/// Where one part of the order ends and the next begins.
void add_line(DispatchIndex& index, int row) {
  using dispatch::detail::log2_fixed;
  const Key& key = index.rows[row].key;
  const dispatch::Structure structure = dispatch::detail::structure(key);
  const bool new_group =
      index.groups.empty() || compare(index.groups.back().structure, structure) != 0;
  if (new_group) {
    const int line = static_cast<int>(index.lines.size());
    index.groups.push_back({structure, line, line, key.context, key.context, 0, 0, 0});
  }
  dispatch::Group& group = index.groups.back();
  group.least_context = std::min(group.least_context, key.context);
  group.most_context = std::max(group.most_context, key.context);
  const bool new_line =
      new_group || index.lines.back().q_len != key.q_len || index.lines.back().batch != key.batch;
  if (new_line) {
    index.lines.push_back(
        {key.q_len, key.batch, log2_fixed(key.q_len), log2_fixed(key.batch), row, row});
    ++group.end;
  }
  index.lines.back().end = row + 1;
}

/// The choices of a group, and the losses of each of its rows.
void add_losses(DispatchIndex& index, dispatch::Group& group,
                const std::vector<const RowLosses*>& losses) {
  const int first = index.lines[group.first].first, end = index.lines[group.end - 1].end;
  std::set<uint16_t> choices;
  for (int row = first; row < end; ++row) {
    for (const auto& [pipeline, unused] : *losses[row]) choices.insert(pipeline);
  }
  group.first_choice = static_cast<int>(index.choices.size());
  group.first_loss = static_cast<int64_t>(index.losses.size());
  index.choices.insert(index.choices.end(), choices.begin(), choices.end());
  group.end_choice = static_cast<int>(index.choices.size());
  for (int row = first; row < end; ++row) {
    for (const uint16_t pipeline : choices) {
      const auto loss = losses[row]->find(pipeline);
      index.losses.push_back(loss == losses[row]->end() ? dispatch::kUnmeasured : loss->second);
    }
  }
}

/// Places in `rows` in the order of a table.
std::vector<size_t> order_of(const std::vector<Row>& rows) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return less(rows[a], rows[b]); });
  return order;
}

}  // namespace

dispatch::Table DispatchIndex::table() const {
  return {contexts,
          rows.data(),
          static_cast<int>(rows.size()),
          context_log2.data(),
          lines.data(),
          groups.data(),
          static_cast<int>(groups.size()),
          slots.data(),
          slot_bits,
          choices.data(),
          losses.data()};
}

DispatchIndex index_rows(std::vector<Row> rows, bool contexts, std::vector<RowLosses> losses) {
  for (const Row& row : rows) check(row, contexts);
  if (!losses.empty() && losses.size() != rows.size()) {
    throw std::invalid_argument("losses of another number of rows than the dispatch table has");
  }
  losses.resize(rows.size());
  DispatchIndex index;
  index.contexts = contexts;
  std::vector<const RowLosses*> ordered;
  for (const size_t place : order_of(rows)) {
    index.rows.push_back(rows[place]);
    ordered.push_back(&losses[place]);
    const int64_t context = rows[place].key.context;
    index.context_log2.push_back(contexts ? dispatch::detail::log2_fixed(context) : 0);
    add_line(index, static_cast<int>(index.rows.size()) - 1);
  }
  for (dispatch::Group& group : index.groups) add_losses(index, group, ordered);
  fill_slots(index);
  return index;
}

}  // namespace muse::tuner
