// SPDX-License-Identifier: Apache-2.0
// Orders rows, cuts them into groups and lines, hashes their keys.
#include "tuner/dispatch_index.h"

#include <algorithm>
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
    index.groups.push_back({structure, line, line});
  }
  const bool new_line =
      new_group || index.lines.back().q_len != key.q_len || index.lines.back().batch != key.batch;
  if (new_line) {
    index.lines.push_back(
        {key.q_len, key.batch, log2_fixed(key.q_len), log2_fixed(key.batch), row, row});
    ++index.groups.back().end;
  }
  index.lines.back().end = row + 1;
}

}  // namespace

dispatch::Table DispatchIndex::table() const {
  return {contexts,     rows.data(),   static_cast<int>(rows.size()),   context_log2.data(),
          lines.data(), groups.data(), static_cast<int>(groups.size()), slots.data(),
          slot_bits};
}

DispatchIndex index_rows(std::vector<Row> rows, bool contexts) {
  for (const Row& row : rows) check(row, contexts);
  DispatchIndex index;
  index.contexts = contexts;
  index.rows = std::move(rows);
  std::stable_sort(index.rows.begin(), index.rows.end(), less);
  for (size_t i = 0; i < index.rows.size(); ++i) {
    const int64_t context = index.rows[i].key.context;
    index.context_log2.push_back(contexts ? dispatch::detail::log2_fixed(context) : 0);
    add_line(index, static_cast<int>(i));
  }
  fill_slots(index);
  return index;
}

}  // namespace muse::tuner
