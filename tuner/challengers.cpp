// SPDX-License-Identifier: Apache-2.0
// Siblings by their keys without context; lookups in earlier tables.
#include "tuner/challengers.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace muse::tuner {
namespace {

auto family(const DecidedStep& step) {
  const dispatch::Key k = dispatch_key(step.shape, false);
  return std::tuple(step.regime, k.batch, k.q_len, k.num_q_heads, k.num_kv_heads, k.head_dim,
                    k.page_size, k.window, k.rope, k.scaled);
}

std::string answer(const Incumbent& incumbent, const std::vector<DispatchRow>& rows,
                   const Shape& shape, bool contexts) {
  const std::vector<std::string> pipelines = named_pipelines(incumbent.table);
  const IndexedRows indexed(rows, pipelines, contexts);
  const dispatch::Choice choice =
      dispatch::find(indexed.index().table(), incumbent.table.rules, dispatch_key(shape, true),
                     incumbent.guard, dispatch::Anything{});
  return choice.row == nullptr ? "" : pipelines[static_cast<size_t>(choice.pipeline)];
}

}  // namespace

std::vector<std::vector<Chain>> sibling_winners(const std::vector<DecidedStep>& decided) {
  std::map<decltype(family(decided.front())), std::map<std::string, Chain>> winners;
  for (const DecidedStep& step : decided) {
    if (!step.winner.empty()) winners[family(step)].emplace(key(step.winner), step.winner);
  }
  std::vector<std::vector<Chain>> result;
  for (const DecidedStep& step : decided) {
    std::vector<Chain>& mine = result.emplace_back();
    for (const auto& [unused, chain] : winners[family(step)]) {
      if (std::find(step.raced.begin(), step.raced.end(), chain) == step.raced.end()) {
        mine.push_back(chain);
      }
    }
  }
  return result;
}

std::vector<std::string> answers(const Incumbent& incumbent, const Shape& shape) {
  const DispatchTable& table = incumbent.table;
  std::set<std::string> keys{answer(incumbent, table.rows, shape, true),
                             answer(incumbent, table.captured, shape, false)};
  keys.erase("");
  return {keys.begin(), keys.end()};
}

}  // namespace muse::tuner
