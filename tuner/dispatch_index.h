// SPDX-License-Identifier: Apache-2.0
// The arrays that a lookup walks, made of the rows of a dispatch table.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "variants/runtime/dispatch_lookup.h"

namespace muse::tuner {

/// What pipelines, by number, lost on a row: in 0.01 %, below dispatch::kUnmeasured.
using RowLosses = std::map<uint16_t, uint16_t>;

/// A table in memory: what emit writes, and what a lookup can be asked of at once.
struct DispatchIndex {
  bool contexts = true;
  std::vector<dispatch::Row> rows;
  std::vector<int32_t> context_log2;  ///< of each row; 0 in a table without contexts
  std::vector<dispatch::Line> lines;
  std::vector<dispatch::Group> groups;
  std::vector<int32_t> slots;  ///< 2^slot_bits, at most half of them taken; empty without rows
  int slot_bits = 0;
  std::vector<uint16_t> choices, losses;  ///< see dispatch::Group

  /// Valid as long as this is neither changed nor gone.
  dispatch::Table table() const;
};

/// Orders the rows and indexes them; rows of one key keep their order, the first is the chosen one.
/// `losses`: of each row, in the same order; empty = of none. Every pipeline with a loss on a row
/// is a choice between all rows of its structure. Throws std::invalid_argument where a key is none,
/// or more context than rows carry is in it, or `losses` are of another number of rows.
DispatchIndex index_rows(std::vector<dispatch::Row> rows, bool contexts,
                         std::vector<RowLosses> losses = {});

}  // namespace muse::tuner
