// SPDX-License-Identifier: Apache-2.0
// Order, rivals and verdicts of a check.
#include "tuner/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <tuple>

#include "tuner/console.h"
#include "tuner/dispatch_losses.h"
#include "tuner/select.h"

namespace muse::tuner {
namespace {

/// Further apart than any two sizes of one structure.
constexpr double kOtherStructure = 1e3;

double saved_ns(const DispatchRow& row) {
  return row.base_median_ns > 0 ? row.base_median_ns - row.median_ns : 0;
}

// All of a key but batch and context.
auto structure_of(const dispatch::Key& k) {
  return std::tuple(k.num_q_heads, k.num_kv_heads, k.head_dim, k.page_size, k.q_len, k.window > 0,
                    k.rope, k.scaled);
}

double doublings(int64_t a, int64_t b) {
  return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
}

double distance(const dispatch::Key& a, const dispatch::Key& b) {
  return (structure_of(a) == structure_of(b) ? 0 : kOtherStructure) + doublings(a.batch, b.batch) +
         doublings(a.context, b.context) + doublings(a.q_len, b.q_len);
}

// What the base says of the machine, where its time is known of then and now.
std::string base_moved(const CheckedShape& here, const Recorded& recorded) {
  const CheckedPipeline* base = here.find(recorded.base);
  if (base == nullptr || !base->measured() || !(recorded.base_median_ns > 0)) return {};
  return fmt::format("; the base takes {:.2f} times what it did",
                     base->median_ns / recorded.base_median_ns);
}

std::optional<std::string> left_interval(const CheckedShape& here, const CheckedPipeline& own,
                                         const Recorded& recorded, const CheckRules& rules) {
  const profiler::Interval& was = recorded.interval;
  if (here.degraded || !(was.high > 0)) return std::nullopt;
  const double ratio = rules.drift_pct / 100;
  const bool slower = own.interval.low > was.high * (1 + ratio);
  const bool faster = own.interval.high < was.low * (1 - ratio);
  if (!slower && !faster) return std::nullopt;
  return fmt::format("takes {} here, more than {:g} % {} its recorded {} to {}{}",
                     format_ns(own.median_ns), rules.drift_pct, slower ? "above" : "below",
                     format_ns(was.low), format_ns(was.high), base_moved(here, recorded));
}

struct Lost {
  bool surely_more = false;  ///< than the limit
  bool surely_less = false;
  double ratio = 0;  ///< point estimate
};

// Against the leader of those that decide; who left the race before has the interval it left by.
Lost lost_against(const CheckedShape& here, const CheckedPipeline& own, double limit_pct,
                  const CheckRules& rules) {
  std::vector<Samples> all;
  int mine = -1;
  for (const CheckedPipeline& one : here.pipelines) {
    if (!one.decides || !one.measured()) continue;
    if (&one == &own) mine = static_cast<int>(all.size());
    all.emplace_back(one.ns);
  }
  const CheckedPipeline& best = *here.best();
  Lost lost{.ratio = std::max(0.0, own.median_ns / best.median_ns - 1)};
  if (mine < 0) {
    lost.surely_more = own.behind.low > limit_pct / 100 * best.median_ns;
    lost.surely_less = own.behind.high > 0 && own.behind.high <= limit_pct / 100 * best.median_ns;
    return lost;
  }
  const int leader = leader_of(all);
  if (leader < 0) return lost;
  if (leader == mine) {
    lost.surely_less = true;
    return lost;
  }
  const double limit_ns = std::max(limit_pct / 100 * leading_median(all, leader), rules.step_ns);
  const Gap gap = gaps(all, leader, limit_ns, rules.step_ns)[static_cast<size_t>(mine)];
  lost.surely_more = gap.slower;
  // As select() has it: known to the tolerance is known.
  const double tolerance_ns =
      std::max(rules.tie_pct / 100 * leading_median(all, leader), rules.step_ns);
  const bool known = gap.narrow(tolerance_ns) && lost.ratio <= limit_pct / 100;
  lost.surely_less = gap.enough() && (gap.behind.high <= limit_ns || known);
  return lost;
}

// Where more was known to be lost than a switch is worth: "tuned" alone would hide it.
std::string known_loss(const Recorded& recorded, const CheckRules& rules) {
  if (recorded.allowed_pct <= rules.switch_margin_pct) return {};
  return fmt::format("; chosen although {:.1f} % were lost when it was emitted",
                     recorded.allowed_pct);
}

// Who left the race has its median from other rounds than the best one, and the two may contradict
// what was seen in rounds of both.
std::string why_slower(const CheckedPipeline& best, const CheckedPipeline& own) {
  if (own.decides || own.median_ns > best.median_ns) {
    return fmt::format("{} is faster: {} against {}", best.pipeline, format_ns(best.median_ns),
                       format_ns(own.median_ns));
  }
  return fmt::format("it left the race {} to {} behind its leader", format_ns(own.behind.low),
                     format_ns(own.behind.high));
}

Finding judge_measured(const CheckedShape& here, const CheckedPipeline& own,
                       const Recorded& recorded, const CheckRules& rules) {
  const double limit_pct = recorded.allowed_pct + rules.switch_margin_pct;
  const Lost lost = lost_against(here, own, limit_pct, rules);
  Finding result{.reason = {}, .regret = lost.ratio};
  const CheckedPipeline& best = *here.best();
  const auto moved = left_interval(here, own, recorded, rules);
  if (lost.surely_more) {
    result.verdict = CheckVerdict::kDrifted;
    result.reason = why_slower(best, own);
  } else if (moved) {
    result.verdict = CheckVerdict::kDrifted;
    result.reason = *moved;
  } else if (!lost.surely_less) {
    result.verdict = CheckVerdict::kNoisy;
    result.reason = fmt::format("whether it loses more than {:.3g} % is not settled", limit_pct);
  } else if (&best == &own || lost.ratio <= rules.tie_pct / 100) {
    result.reason = "the fastest of the table's pipelines here, or cannot be told from it";
  } else {
    result.reason =
        fmt::format("within {:.3g} % of the fastest of the table's pipelines here", limit_pct);
  }
  result.reason += known_loss(recorded, rules);
  if (here.degraded) result.reason += "; the machine slowed down, so that its time tells nothing";
  return result;
}

}  // namespace

std::string_view name(CheckVerdict verdict) {
  switch (verdict) {
    case CheckVerdict::kTuned:
      return "tuned";
    case CheckVerdict::kNoisy:
      return "noisy";
    case CheckVerdict::kDrifted:
      return "drifted";
    case CheckVerdict::kWrong:
      return "wrong";
  }
  std::abort();
}

bool CheckedPipeline::failed() const {
  return is_final(outcome) && !is_measured(outcome) && outcome != Outcome::kUnsupported &&
         outcome != Outcome::kUnmeasurable;
}

const CheckedPipeline* CheckedShape::find(const std::string& pipeline) const {
  const auto at = std::find_if(pipelines.begin(), pipelines.end(),
                               [&](const auto& one) { return one.pipeline == pipeline; });
  return at == pipelines.end() ? nullptr : &*at;
}

const CheckedPipeline* CheckedShape::best() const {
  const CheckedPipeline* best = nullptr;
  for (const CheckedPipeline& one : pipelines) {
    if (!one.measured()) continue;
    const auto rank = [](const CheckedPipeline& p) { return std::tuple(!p.decides, p.median_ns); };
    if (best == nullptr || rank(one) < rank(*best)) best = &one;
  }
  return best;
}

Finding judge(const CheckedShape& here, const Recorded& recorded, const CheckRules& rules) {
  const CheckedPipeline* own = here.find(recorded.pipeline);
  if (own == nullptr) return {CheckVerdict::kNoisy, "it did not race", std::nullopt};
  if (own->measured()) return judge_measured(here, *own, recorded, rules);
  const std::string reason = fmt::format("{}: {}", name(own->outcome), own->reason);
  // What a row names and this device does not take is as good as wrong: a caller gets another one.
  const bool wrong = own->failed() || own->outcome == Outcome::kUnsupported;
  return {wrong ? CheckVerdict::kWrong : CheckVerdict::kNoisy, reason, std::nullopt};
}

std::vector<size_t> check_order(const std::vector<DispatchRow>& rows, uint64_t seed) {
  using Structure = decltype(structure_of(dispatch::Key{}));
  std::map<Structure, std::vector<size_t>> by_structure;
  for (size_t i = 0; i < rows.size(); ++i) {
    by_structure[structure_of(dispatch_key(rows[i].shape, true))].push_back(i);
  }
  std::vector<std::vector<size_t>> queues;
  profiler::SplitMix random(seed);
  for (auto& [structure, queue] : by_structure) {
    // Ordered by shape before chance comes in: neither the file's order nor a map's counts.
    std::sort(queue.begin(), queue.end(), [&](size_t a, size_t b) {
      return std::pair(key(rows[a].shape), a) < std::pair(key(rows[b].shape), b);
    });
    const auto first = std::max_element(queue.begin(), queue.end(), [&](size_t a, size_t b) {
      return saved_ns(rows[a]) < saved_ns(rows[b]);
    });
    std::rotate(queue.begin(), first, first + 1);
    for (size_t i = queue.size(); i > 2; --i) {
      std::swap(queue[i - 1], queue[1 + random.below(i - 1)]);
    }
    queues.push_back(std::move(queue));
  }
  std::stable_sort(queues.begin(), queues.end(), [&](const auto& a, const auto& b) {
    return saved_ns(rows[a.front()]) > saved_ns(rows[b.front()]);
  });
  std::vector<size_t> order;
  for (size_t turn = 0; order.size() < rows.size(); ++turn) {
    for (const auto& queue : queues) {
      if (turn < queue.size()) order.push_back(queue[turn]);
    }
  }
  return order;
}

std::vector<std::string> check_rivals(const DispatchTable& table, const Shape& shape,
                                      const std::vector<std::string>& picks, size_t most) {
  std::vector<std::string> chosen;
  const auto add = [&](const std::string& pipeline) {
    if (std::find(chosen.begin(), chosen.end(), pipeline) == chosen.end()) {
      chosen.push_back(pipeline);
    }
  };
  for (const std::string& pick : picks) add(pick);
  add(table.base);
  const dispatch::Key asked = dispatch_key(shape, true);
  std::vector<std::pair<double, std::string>> others;
  for (const auto* rows : {&table.rows, &table.captured}) {
    for (const DispatchRow& row : *rows) {
      others.emplace_back(distance(asked, dispatch_key(row.shape, true)), row.pipeline);
    }
  }
  std::sort(others.begin(), others.end());
  for (const auto& [unused, pipeline] : others) {
    if (chosen.size() >= most) break;
    add(pipeline);
  }
  for (const std::string& pipeline : generalists(table)) {
    if (chosen.size() < most) add(pipeline);
  }
  return chosen;
}

}  // namespace muse::tuner
