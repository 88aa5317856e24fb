// SPDX-License-Identifier: Apache-2.0
// Reads selections and composes what is to be timed of them.
#include "tests/bench/decode_cases.h"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>

namespace muse::bench {
namespace {

/// Chains by key, so that each is there once and in a fixed order.
using Chains = std::map<std::string, Chain>;

void add(Chains& chains, const Chain& chain) { chains.emplace(key(chain), chain); }

std::vector<Chain> list(const Chains& chains) {
  std::vector<Chain> all;
  for (const auto& [unused, chain] : chains) all.push_back(chain);
  return all;
}

/// From the candidate that begins with attention on; empty where attention begins inside one.
Chain from_attention(const Chain& pipeline) {
  Chain rest;
  rest.pdl = pipeline.pdl;
  for (const Candidate& candidate : pipeline) {
    if (candidate.span().first >= Stage::kAttention) rest.push_back(candidate);
  }
  if (rest.empty() || span(rest).first != Stage::kAttention) return {};
  if (rest.size() == 1) rest.pdl = false;  // no launch before it that it could overlap
  return rest;
}

bool on_gpu(const Chain& chain) {
  return std::all_of(chain.begin(), chain.end(), [](const Candidate& candidate) {
    return candidate.variant->target.kind == TargetKind::kCuda;
  });
}

/// What one run chose for one shape.
struct Chosen {
  db::RunRow run;
  std::vector<db::SelectionRow> selections;
};

class Reader {
 public:
  Reader(const db::Store& store, const Registry& registry) : store_(store), registry_(registry) {}

  Chain parse(const std::string& text) const {
    auto chain = registry_.parse_chain(text);
    if (!chain) throw std::runtime_error(chain.error());
    return *std::move(chain);
  }
  Chain chain(const db::SelectionRow& selection) const {
    return parse(store_.candidate(store_.trial(selection.trial_id).key.candidate_id).key);
  }
  DecodeCase read(const Shape& shape, const Chosen& chosen) const;

 private:
  const db::Store& store_;
  const Registry& registry_;
};

DecodeCase Reader::read(const Shape& shape, const Chosen& chosen) const {
  DecodeCase result{.shape = shape,
                    .base = parse(chosen.run.base),
                    .pipeline = {},
                    .attention = {},
                    .complete = {}};
  Chains attention, complete, combines;
  const auto sort_in = [&](const Chain& chain) {
    const Span covered = span(chain);
    const bool alone = covered == Span{Stage::kAttention, Stage::kAttention};
    if (alone) add(attention, chain);
    if (covered.first == Stage::kCombine) add(combines, chain);
    if (covered.covers(Stage::kAttention) && covered.covers(Stage::kCombine)) add(complete, chain);
  };
  for (const db::SelectionRow& selection : chosen.selections) {
    const Chain chain = this->chain(selection);
    if (selection.span == name(kWholeStep)) result.pipeline = chain;
    sort_in(chain);
  }
  const Chain rest = from_attention(result.pipeline);
  if (!rest.empty()) {
    sort_in(rest);
    sort_in(Chain{rest.front()});
  }
  for (const auto& [unused, first] : attention) {
    for (const auto& [also_unused, second] : combines) {
      Chain both = first;
      both.insert(both.end(), second.begin(), second.end());
      if (joins(shape.problem, both).ok()) add(complete, both);
    }
  }
  for (Chain chain : list(complete)) {
    if (chain.size() == 1) continue;
    chain.pdl = !chain.pdl;
    add(complete, chain);
  }
  result.attention = list(attention);
  result.complete = list(complete);
  return result;
}

}  // namespace

DecodeCases decode_cases(const db::Store& store, const Registry& registry) {
  std::map<std::string, Chosen> latest;
  for (const db::RunRow& run : store.runs()) {
    std::map<std::string, Chosen> of_run;
    for (db::SelectionRow& selection : store.selections(run.id)) {
      if (selection.regime != "cold") continue;
      Chosen& chosen = of_run[store.problem(selection.problem_id).key];
      chosen.run = run;
      chosen.selections.push_back(std::move(selection));
    }
    for (auto& [problem, chosen] : of_run) {
      const bool whole = std::any_of(chosen.selections.begin(), chosen.selections.end(),
                                     [](const auto& s) { return s.span == name(kWholeStep); });
      if (whole) latest[problem] = std::move(chosen);
    }
  }
  const Reader reader(store, registry);
  DecodeCases result;
  for (const auto& [problem, chosen] : latest) {
    try {
      const auto shape = parse_shape(problem);
      if (!shape) throw std::runtime_error(shape.error());
      if (shape->problem.q_len != 1) continue;
      DecodeCase one = reader.read(*shape, chosen);
      if (on_gpu(one.pipeline)) result.cases.push_back(std::move(one));
    } catch (const std::runtime_error& error) {
      result.left_out.push_back(problem + ": " + error.what());
    }
  }
  return result;
}

std::vector<std::vector<size_t>> by_context(const std::vector<DecodeCase>& cases) {
  std::map<std::string, std::vector<size_t>> groups;
  for (size_t i = 0; i < cases.size(); ++i) {
    Shape shape = cases[i].shape;
    if (shape.lengths.profile != Profile::kUniform) continue;
    shape.lengths.context = shape.problem.max_context =
        std::max(shape.problem.q_len, shape.problem.page_size);
    groups[key(shape)].push_back(i);
  }
  std::vector<std::vector<size_t>> all;
  for (auto& [unused, group] : groups) all.push_back(std::move(group));
  return all;
}

}  // namespace muse::bench
