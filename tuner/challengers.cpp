// SPDX-License-Identifier: Apache-2.0
// What is worth trying elsewhere, by structure; lookups in earlier tables.
#include "tuner/challengers.h"

#include <algorithm>
#include <set>

namespace muse::tuner {
namespace {

/// How far behind the winner a pipeline may be that is tried elsewhere, and how many there are.
constexpr double kCloseBy = 1.03;
constexpr size_t kMostClose = 6;

/// All but its prepare, which makes little difference between shapes.
std::string after_prepare(const Chain& chain) {
  std::string text;
  for (const Candidate& candidate : chain) {
    if (candidate.span().last != Stage::kPrepare) text += key(candidate) + '\n';
  }
  return text;
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

Siblings::Kind Siblings::kind(const Shape& shape, profiler::Regime regime) {
  const dispatch::Key k = dispatch_key(shape, false);
  return {regime,         k.q_len,    k.num_q_heads,
          k.num_kv_heads, k.head_dim, dispatch::detail::page_class(k.page_size),
          k.window > 0,   k.rope,     k.scaled};
}

std::vector<Chain> worth_trying_elsewhere(const Settled& settled) {
  std::vector<Chain> chains;
  std::set<std::string> known;
  const auto add = [&](const Chain& chain) {
    if (known.insert(after_prepare(chain)).second) chains.push_back(chain);
  };
  for (const Settled::Ranked& one : settled.best) {
    if (key(one.chain) == settled.winner.chain) add(one.chain);
  }
  for (const Settled::Ranked& one : settled.best) {
    const bool close = one.median_ns <= kCloseBy * settled.winner.selection.median_ns;
    if (close && chains.size() < kMostClose) add(one.chain);
  }
  return chains;
}

void Siblings::add(const Shape& shape, profiler::Regime regime, const Chain& chain) {
  chains_[kind(shape, regime)].emplace(key(chain), chain);
}

std::vector<Chain> Siblings::chains(const Shape& shape, profiler::Regime regime) const {
  std::vector<Chain> chains;
  const auto found = chains_.find(kind(shape, regime));
  if (found == chains_.end()) return chains;
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
