// SPDX-License-Identifier: Apache-2.0
// Looks a trial up by its key; where there is none, says what the nearest one's key has otherwise.
#include "tuner/known_trials.h"

#include <fmt/format.h>

#include <vector>

namespace muse::tuner {

std::optional<db::TrialRow> find_trial(const db::Store& store, const Hello& hello,
                                       const Chain& chain, const RaceGroup& group) {
  const std::optional<db::Id> device = store.find_device(device_row(hello));
  const std::optional<db::Id> problem = store.find_problem(muse::key(group.shape));
  const std::optional<db::Id> candidate = store.find_candidate(candidate_row(chain));
  if (!device || !problem || !candidate) return std::nullopt;
  return store.find_trial({.device_id = *device,
                           .toolkit = hello.toolkit,
                           .code_hash = code_hash(chain),
                           .candidate_id = *candidate,
                           .handoff_in = key(group.handoff),
                           .problem_id = *problem,
                           .regime = std::string(profiler::name(group.regime)),
                           .protocol_hash = protocol_hash(hello, group.regime)});
}

std::string why_new(const db::Store& store, const Hello& hello, const Chain& chain,
                    const RaceGroup& group) {
  const std::optional<db::Id> problem = store.find_problem(muse::key(group.shape));
  const std::optional<db::Id> candidate = store.find_candidate(candidate_row(chain));
  if (!problem || !candidate) return {};
  const db::DeviceRow mine = device_row(hello);
  const std::string regime(profiler::name(group.regime));
  std::vector<std::string> nearest;
  for (const db::TrialRow& trial : store.trials(*candidate, *problem)) {
    const std::optional<Outcome> outcome = parse_outcome(trial.state);
    if (!outcome || !is_final(*outcome)) continue;
    std::vector<std::string> differences;
    const auto compare = [&](const char* what, const std::string& then, const std::string& now) {
      if (then != now) differences.push_back(fmt::format("{} {}, now {}", what, then, now));
    };
    const db::DeviceRow device = store.device(trial.key.device_id);
    compare("device", device.kind + " " + device.uuid, mine.kind + " " + mine.uuid);
    compare("driver", device.driver, mine.driver);
    compare("clock policy", device.clock_policy, mine.clock_policy);
    compare("toolkit", trial.key.toolkit, hello.toolkit);
    compare("regime", trial.key.regime, regime);
    // A plan does not know yet what a combine will be fed with.
    if (!key(group.handoff).empty()) {
      compare("hand-off", trial.key.handoff_in, key(group.handoff));
    }
    if (trial.key.code_hash != code_hash(chain)) differences.emplace_back("its code has changed");
    // Of another regime or clock the protocol is another one in any case.
    if (trial.key.regime == regime &&
        trial.key.protocol_hash != protocol_hash(hello, group.regime)) {
      differences.emplace_back("the protocol has changed (timer, flush, fill or sampler)");
    }
    if (differences.empty()) differences.emplace_back("another model of the device");
    if (nearest.empty() || differences.size() < nearest.size()) nearest = std::move(differences);
  }
  return fmt::format("{}", fmt::join(nearest, "; "));
}

}  // namespace muse::tuner
