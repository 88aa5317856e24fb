// SPDX-License-Identifier: Apache-2.0
// Between a searcher, which knows points, and the settler, which knows trials.
#include "tuner/scout.h"

#include <fmt/format.h>

#include "tuner/floor_model.h"
#include "tuner/search.h"

namespace muse::tuner {
namespace {

std::vector<SearchPoint> points_of(const RaceGroup& group, const std::vector<Chain>& chains,
                                   const Chain& base, const Hello& hello) {
  std::vector<SearchPoint> points;
  for (const Chain& chain : chains) {
    const Candidate& candidate = chain.front();
    points.push_back({.variant = candidate.variant,
                      .configuration = candidate.configuration,
                      .estimate_ns = estimate_ns(group.shape, chain, group.handoff,
                                                 hello.device_class, hello.limits),
                      .required = chain == base});
  }
  return points;
}

}  // namespace

std::optional<Searched> search(const Spec& spec, const Hello& hello, uint64_t seed,
                               Settler& settler, const RaceGroup& group,
                               const std::vector<Chain>& chains, const Chain& base,
                               const Chain& feeder) {
  if (spec.search.kind == SearchKind::kExhaustive) return Searched{.seen = chains, .unseen = {}};
  const std::unique_ptr<Searcher> searcher =
      make_searcher(spec.search, points_of(group, chains, base, hello), group_seed(seed, group));
  std::vector<bool> seen(chains.size(), false);
  for (;;) {
    const std::vector<int> batch = searcher->propose();
    std::vector<Chain> proposed;
    for (const int index : batch) {
      seen[index] = true;
      proposed.push_back(chains[index]);
    }
    if (batch.empty() || searcher->is_last()) break;
    const std::optional<Medians> medians = settler.scout(group, proposed, base, feeder);
    if (!medians) return std::nullopt;
    for (const int index : batch) {
      const auto median = medians->find(muse::key(chains[index]));
      searcher->tell(index,
                     median == medians->end() ? std::nullopt : std::optional(median->second));
    }
  }
  Searched searched;
  for (size_t i = 0; i < chains.size(); ++i) {
    (seen[i] ? searched.seen : searched.unseen).push_back(chains[i]);
  }
  return searched;
}

std::string text(const SearchedShare& share) {
  return fmt::format("{} search measured {} of {}", name(share.kind), share.seen, share.of);
}

}  // namespace muse::tuner
