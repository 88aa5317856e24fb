// SPDX-License-Identifier: Apache-2.0
// Joins the selections of two runs by what was decided.
#include "tuner/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

namespace muse::tuner {
namespace {

constexpr size_t kNarrow = 3;
constexpr std::string_view kInconclusive = "inconclusive";

/// What a selection decides.
using Decision = std::tuple<std::string, std::string, std::string, std::string>;

struct Side {
  std::string pick, status;
  std::vector<std::string> ties;
};

std::map<Decision, Side> decisions(const db::Store& store, db::Id run) {
  std::map<Decision, Side> all;
  for (const db::SelectionRow& row : store.selections(run)) {
    Side side{.pick = store.candidate(store.trial(row.trial_id).key.candidate_id).key,
              .status = row.status,
              .ties = nlohmann::json::parse(row.tie_set).get<std::vector<std::string>>()};
    all[{store.problem(row.problem_id).key, row.span, row.handoff_in, row.regime}] =
        std::move(side);
  }
  return all;
}

/// Medians by decision and candidate, of the newest races.
std::map<Decision, std::map<std::string, double>> medians(const db::Store& store, db::Id run) {
  std::map<Decision, std::map<std::string, double>> all;
  for (const db::Store::RunTrial& one : store.run_trials(run)) {
    if (!one.median_ns) continue;
    const db::TrialKey& key = one.trial.key;
    all[{one.problem.key, one.candidate.span, key.handoff_in, key.regime}][one.candidate.key] =
        *one.median_ns;
  }
  return all;
}

std::optional<double> regret_pct(const std::map<std::string, double>& medians,
                                 const std::string& pick) {
  const auto mine = medians.find(pick);
  if (mine == medians.end()) return std::nullopt;
  double least = mine->second;
  for (const auto& [candidate, ns] : medians) least = std::min(least, ns);
  return 100 * (mine->second / least - 1);
}

bool contains(const std::vector<std::string>& set, const std::string& one) {
  return std::find(set.begin(), set.end(), one) != set.end();
}

template <class Predicate>
double share(const std::vector<AgreedPick>& picks, double weight, const Predicate& of) {
  if (picks.empty()) return 1;
  double sum = 0;
  for (const AgreedPick& pick : picks) sum += of(pick);
  return sum / (weight * static_cast<double>(picks.size()));
}

}  // namespace

bool AgreedPick::agrees() const {
  if (first_status == kInconclusive || second_status == kInconclusive) return false;
  return identical() || (contains(second_ties, first) && contains(first_ties, second));
}

double Agreement::agreeing_share() const {
  return share(picks, 1, [](const AgreedPick& pick) { return pick.agrees() ? 1 : 0; });
}

double Agreement::narrow_ties_share() const {
  return share(picks, 2, [](const AgreedPick& pick) {
    return (pick.first_ties.size() <= kNarrow ? 1 : 0) +
           (pick.second_ties.size() <= kNarrow ? 1 : 0);
  });
}

double Agreement::inconclusive_share() const {
  if (picks.empty()) return 0;
  return share(picks, 2, [](const AgreedPick& pick) {
    return (pick.first_status == kInconclusive ? 1 : 0) +
           (pick.second_status == kInconclusive ? 1 : 0);
  });
}

double Agreement::mean_regret_pct() const {
  double sum = 0;
  int count = 0;
  for (const AgreedPick& pick : picks) {
    if (!pick.regret_pct) continue;
    sum += std::log1p(*pick.regret_pct / 100);
    ++count;
  }
  return count == 0 ? 0 : 100 * std::expm1(sum / count);
}

double Agreement::worst_regret_pct() const {
  double worst = 0;
  for (const AgreedPick& pick : picks) worst = std::max(worst, pick.regret_pct.value_or(0));
  return worst;
}

Agreement agreement(const db::Store& store, db::Id first, db::Id second) {
  const std::map<Decision, Side> before = decisions(store, first);
  const std::map<Decision, Side> after = decisions(store, second);
  const auto times = medians(store, second);
  Agreement result;
  for (const auto& [decision, side] : before) {
    const auto other = after.find(decision);
    if (other == after.end()) {
      ++result.only_in_one;
      continue;
    }
    AgreedPick pick{.first = side.pick,
                    .second = other->second.pick,
                    .first_status = side.status,
                    .second_status = other->second.status,
                    .first_ties = side.ties,
                    .second_ties = other->second.ties,
                    .regret_pct = {}};
    std::tie(pick.problem, pick.span, pick.handoff, pick.regime) = decision;
    if (const auto timed = times.find(decision); timed != times.end()) {
      pick.regret_pct = regret_pct(timed->second, pick.first);
    }
    result.picks.push_back(std::move(pick));
  }
  for (const auto& [decision, side] : after) {
    if (!before.contains(decision)) ++result.only_in_one;
  }
  return result;
}

std::string text(const Agreement& a) {
  if (a.picks.empty()) return "no decision in common";
  const auto agreeing = std::count_if(a.picks.begin(), a.picks.end(),
                                      [](const AgreedPick& pick) { return pick.agrees(); });
  const auto same = std::count_if(a.picks.begin(), a.picks.end(),
                                  [](const AgreedPick& pick) { return pick.identical(); });
  const auto worst = std::max_element(a.picks.begin(), a.picks.end(),
                                      [](const AgreedPick& x, const AgreedPick& y) {
                                        return x.regret_pct.value_or(0) < y.regret_pct.value_or(0);
                                      });
  return fmt::format(
      "picks agree in {} of {} ({:.1f} %; the same in {}; an inconclusive one never agrees); tie "
      "sets of at most {}: {:.1f} %; inconclusive: {:.1f} %; the first run's picks by the second "
      "run's times: regret {:.2f} % (geometric mean), {:.2f} % at worst ({} of {}){}",
      agreeing, a.picks.size(), 100 * a.agreeing_share(), same, kNarrow,
      100 * a.narrow_ties_share(), 100 * a.inconclusive_share(), a.mean_regret_pct(),
      a.worst_regret_pct(), worst->span, worst->problem,
      a.only_in_one > 0 ? fmt::format("; {} decisions of one run alone", a.only_in_one) : "");
}

}  // namespace muse::tuner
