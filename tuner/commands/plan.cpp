// SPDX-License-Identifier: Apache-2.0
// plan: the dry run.
#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "tuner/commands/command.h"
#include "tuner/known_trials.h"
#include "tuner/records.h"
#include "tuner/search.h"
#include "tuner/standing_race.h"

namespace muse::tuner {
namespace {

// Whether the database has a trial that a sweep would reuse. A combine has one per hand-off: the
// hand-offs that stand are those of the attentions planned beside it.
std::optional<Outcome> known_outcome(const db::Store& store, const Hello& hello,
                                     const Candidate& candidate, const Shape& shape,
                                     profiler::Regime regime) {
  std::vector<Handoff> handoffs{Handoff{}};
  if (candidate.span().first == Stage::kCombine) {
    handoffs.clear();
    for (const Variant* v : Registry::global().all()) {
      for (const Configuration& c : space(*v)) {
        if (v->span(c).last == Stage::kAttention) {
          handoffs.push_back(v->produces(shape.problem, c));
        }
      }
    }
    std::sort(handoffs.begin(), handoffs.end());
    handoffs.erase(std::unique(handoffs.begin(), handoffs.end()), handoffs.end());
  }
  for (const Handoff& handoff : handoffs) {
    const auto trial = find_trial(
        store, hello, {candidate},
        {.shape = shape, .regime = regime, .span = candidate.span(), .handoff = handoff});
    if (!trial) continue;
    const std::optional<Outcome> outcome = parse_outcome(trial->state);
    if (outcome && is_final(*outcome)) return outcome;
  }
  return std::nullopt;
}

/// Says of new items what keeps an earlier result from being theirs.
void say_why_new(Plan& plan, const db::Store& store, const Hello& hello) {
  for (PlanItem& item : plan.items) {
    if (item.reason != kNew) continue;
    const std::string why = why_new(store, hello, {item.candidate},
                                    {.shape = plan.shapes[item.shape].shape,
                                     .regime = item.regime,
                                     .span = item.candidate.span(),
                                     .handoff = {}});
    if (!why.empty()) item.reason = fmt::format("{}: measured before with {}", kNew, why);
  }
}

/// Whether some stored race of what is planned ended by a wider rule than the config's.
bool is_to_race_on(const Plan& plan, const db::Store& store, double half_width_pct) {
  for (const ShapeEntry& entry : plan.shapes) {
    const std::optional<db::Id> problem = store.find_problem(key(entry.shape));
    if (!problem) continue;
    std::set<std::pair<std::string, std::string>> seen;
    for (const PlanItem& item : plan.items) {
      const std::string span(name(item.candidate.span())), regime(profiler::name(item.regime));
      if (!seen.emplace(span, regime).second) continue;
      for (const db::RaceRow& row : store.races(*problem, span, "", regime)) {
        if (row.status != kDecidingRace) continue;
        const auto race = replay(row, store.rounds(row.id));
        if (race && !is_settled_at(*race, half_width_pct)) return true;
      }
    }
  }
  return false;
}

void print_plan(const Plan& plan, const SearchRules& search, bool json) {
  std::map<Action, int> counts;
  nlohmann::json items = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{
      {"action", "candidate", "problem", "regime", "reason"}};
  for (const PlanItem& item : plan.items) {
    ++counts[item.action];
    const std::string shape = key(plan.shapes[item.shape].shape);
    const std::string regime(profiler::name(item.regime));
    items.push_back({{"candidate", key(item.candidate)},
                     {"problem", shape},
                     {"regime", regime},
                     {"action", name(item.action)},
                     {"reason", item.reason}});
    rows.push_back(
        {std::string(name(item.action)), key(item.candidate), shape, regime, item.reason});
  }
  if (json) {
    print_json("plan", {{"items", items},
                        {"base", key(plan.base)},
                        {"search", {{"kind", name(search.kind)}, {"share_pct", search.share_pct}}},
                        {"counts",
                         {{"measure", counts[Action::kMeasure]},
                          {"reuse", counts[Action::kReuse]},
                          {"skip", counts[Action::kSkip]}}}});
    return;
  }
  print(format_table(rows));
  print(fmt::format(
      "\n{} shapes: {} to measure, {} to reuse, {} to skip; then pipelines of the best "
      "of each span\n",
      plan.shapes.size(), counts[Action::kMeasure], counts[Action::kReuse], counts[Action::kSkip]));
  const auto among_siblings =
      std::count_if(plan.shapes.begin(), plan.shapes.end(),
                    [](const ShapeEntry& entry) { return entry.race == RaceAmong::kSiblings; });
  if (among_siblings > 0) {
    print(fmt::format("race: siblings on {} of them: pipelines that were good on the others\n",
                      among_siblings));
  }
  print(fmt::format("base: {}\n", key(plan.base)));
  if (search.kind == SearchKind::kExhaustive) return;
  print(fmt::format(
      "search: {}, {:g} % of what is to measure in each span of {} candidates or more\n",
      name(search.kind), search.share_pct, Searcher::kWholeBelow));
}

}  // namespace

Command plan_command() {
  return {"plan", "Say what a sweep would measure, reuse and skip", [](CLI::App& app) {
            struct Options : SelectionOptions {
              std::string database = "muse-tune.db";
              bool json = false;
            };
            auto options = std::make_shared<Options>();
            options->add_to(app);
            add_database(app, options->database);
            add_json(app, options->json);
            return [options] {
              const Spec spec = load_config(options->config);
              const TargetAtHand target = resolve_target(options->target);
              const Hello hello =
                  local_hello(worker_options(target, toolchain_for(target, options->cache)),
                              resolve_timer(spec, "", target.name));
              std::optional<db::Store> store;
              // Nothing swept yet is no fault, and makes no file.
              if (std::filesystem::exists(options->database)) {
                store = open_for_reading(options->database);
              }
              const Known known = [&](const Candidate& candidate, const Shape& shape,
                                      profiler::Regime regime) -> std::optional<Outcome> {
                if (!store) return std::nullopt;
                return known_outcome(*store, hello, candidate, shape, regime);
              };
              auto plan =
                  make_plan(spec, Registry::global(), hello.device_class, options->filter(), known);
              if (!plan) {
                throw CommandError(ExitCode::kUsage,
                                   printable(options->config) + ": " + plan.error());
              }
              if (store) say_why_new(*plan, *store, hello);
              print_plan(*plan, spec.search, options->json);
              if (store && is_to_race_on(*plan, *store, spec.measure.half_width_pct)) {
                say(
                    fmt::format("stored races ended at a wider half_width_pct than {:g}: a sweep "
                                "races on what they could not tell apart",
                                spec.measure.half_width_pct));
              }
              return ExitCode::kOk;
            };
          }};
}

}  // namespace muse::tuner
