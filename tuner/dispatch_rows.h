// SPDX-License-Identifier: Apache-2.0
// Which pipelines a dispatch table names: what a run chose, what does for every context, and few of
// them where that is asked for.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "db/store.h"
#include "tuner/emit.h"
#include "tuner/spec.h"

namespace muse::tuner {

struct MeasuredTime {
  double median_ns = 0, low_ns = 0, high_ns = 0;
};

/// A shape with what was chosen for it and every whole pipeline that was measured on it.
struct MeasuredShape {
  DispatchRow chosen;
  std::map<std::string, MeasuredTime> times;  ///< by chain key
};

/// A table's pipelines where their number is limited.
struct Fewer {
  std::vector<std::string> pipelines;  ///< ordered
  Regret regret;                       ///< over the shapes
};
Fewer fewer_pipelines(const std::vector<MeasuredShape>& shapes, const std::string& base,
                      const SubsetLimits& limits);

/// Fills both tables and their regret. With `among`, of these pipelines alone: each shape has the
/// fastest of them that was measured on it, with status "limited" where that is not its own choice;
/// one without any has no row.
///
/// Captured: of the pipelines that were measured on every shape of a key without context (those of
/// uniform lengths where there are any) the one whose worst regret is the least; of those within
/// half a percent of it the one that most of the shapes have chosen themselves. A key for which
/// there is none has no row.
void fill_rows(DispatchTable& table, const std::vector<MeasuredShape>& shapes,
               const std::optional<std::vector<std::string>>& among);

/// Rows with context of shapes where siblings alone raced say so.
void tell_races(DispatchTable& table, const Spec& spec);

/// What a run says of whole pipelines in a regime, one for each of its selections, in their order.
struct MeasuredRun {
  std::vector<MeasuredShape> shapes;
  std::vector<db::SelectionRow> selections;
  std::string toolkit;                             ///< of what was measured
  std::set<std::string> protocols;                 ///< hashes of what a sample means
  std::map<std::string, std::string> code_hashes;  ///< of every pipeline, see code_hash()
};
/// Throws std::runtime_error where a problem's or a tie set's text is none.
MeasuredRun measured_run(const db::Store& store, const db::RunRow& run, const std::string& regime);

}  // namespace muse::tuner
