// SPDX-License-Identifier: Apache-2.0
// Winners by structure; lookups in earlier tables.
#include "tuner/challengers.h"

#include <set>

namespace muse::tuner {
namespace {

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

Siblings::Kind Siblings::kind(const Shape& shape, profiler::Regime regime) {
  const dispatch::Key k = dispatch_key(shape, false);
  return {regime,         k.q_len,    k.num_q_heads,
          k.num_kv_heads, k.head_dim, dispatch::detail::page_class(k.page_size),
          k.window > 0,   k.rope,     k.scaled};
}

void Siblings::add_winner(const Shape& shape, profiler::Regime regime, const Chain& winner) {
  winners_[kind(shape, regime)].emplace(key(winner), winner);
}

std::vector<Chain> Siblings::winners(const Shape& shape, profiler::Regime regime) const {
  std::vector<Chain> chains;
  const auto found = winners_.find(kind(shape, regime));
  if (found == winners_.end()) return chains;
  for (const auto& [unused, chain] : found->second) chains.push_back(chain);
  return chains;
}

std::vector<std::string> answers(const Incumbent& incumbent, const Shape& shape) {
  const DispatchTable& table = incumbent.table;
  std::set<std::string> keys{answer(incumbent, table.rows, shape, true),
                             answer(incumbent, table.captured, shape, false)};
  keys.erase("");
  return {keys.begin(), keys.end()};
}

}  // namespace muse::tuner
