// SPDX-License-Identifier: Apache-2.0
// What is worth trying elsewhere, by structure; lookups in earlier tables.
#include "tuner/challengers.h"

#include <algorithm>
#include <set>

namespace muse::tuner {
namespace {

/// How far behind the winner a pipeline may be that is tried elsewhere, and how many there are,
/// those apart that differ in their prepare or in how they are launched. What is a little slower on
/// every row may be the best between them. A pipeline on a shape costs some 19 ms on an H200,
/// nearly all of it validation.
constexpr double kCloseBy = 1.08;
constexpr size_t kMostClose = 12;

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

CloseRace close_race(const Settled& settled) {
  CloseRace race;
  std::set<std::string> behind;
  for (const Settled::Ranked& one : settled.best) {
    if (key(one.chain) != settled.winner.chain) continue;
    race.winner = one.chain;
    behind.insert(after_prepare(one.chain));
  }
  for (const Settled::Ranked& one : settled.best) {
    if (one.median_ns > kCloseBy * settled.winner.selection.median_ns) continue;
    const std::string text = after_prepare(one.chain);
    if (!behind.contains(text) && behind.size() == kMostClose) continue;
    behind.insert(text);
    race.close.push_back(one.chain);
  }
  return race;
}

void Siblings::add(const Shape& shape, profiler::Regime regime, const CloseRace& race) {
  if (race.winner.empty()) return;
  Good& good = good_[{regime, kind(shape)}];
  good.winners.emplace(key(race.winner), race.winner);
  std::set<std::string> known;
  for (const Chain& chain : race.close) {
    const std::string behind = after_prepare(chain);
    Form& form = good.forms[behind][key(chain)];
    form.chain = chain;
    ++form.close;
    if (known.insert(behind).second) ++form.ahead;
  }
}

std::vector<Chain> Siblings::chains(const Shape& shape, profiler::Regime regime) const {
  const auto found = good_.find({regime, kind(shape)});
  if (found == good_.end()) return {};
  std::map<std::string, Chain> by_key = found->second.winners;
  for (const auto& [unused, forms] : found->second.forms) {
    const auto& [text, form] =
        *std::max_element(forms.begin(), forms.end(), [](const auto& a, const auto& b) {
          return std::pair(a.second.close, a.second.ahead) <
                 std::pair(b.second.close, b.second.ahead);
        });
    by_key.emplace(text, form.chain);
  }
  std::vector<Chain> chains;
  for (const auto& [unused, chain] : by_key) chains.push_back(chain);
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
