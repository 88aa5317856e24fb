// SPDX-License-Identifier: Apache-2.0
// Whole pipelines of every shape: which of them race, and a second race for what won at another
// context.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tuner/challengers.h"
#include "tuner/plan.h"
#include "tuner/settle.h"
#include "tuner/shortlist.h"

namespace muse::tuner {

class StepRaces {
 public:
  StepRaces(const Plan& plan, const Spec& spec, const Hello& hello,
            const std::vector<Incumbent>& incumbents, Records& records, Settler& settler)
      : plan_(plan),
        spec_(spec),
        hello_(hello),
        incumbents_(incumbents),
        records_(records),
        settler_(settler) {}

  /// Decides the shape's whole step among what can be made of `best` and is worth a race, the
  /// candidates that cover the step, and what the incumbents answer. `candidates`: all that may run
  /// there. nullopt where the work was stopped.
  std::optional<Winner> settle(const RaceGroup& group, const std::vector<Candidate>& candidates,
                               const Shortlist& best);

  /// A step that was decided anew.
  struct Again {
    size_t step;  ///< its number among the settled
    Winner winner;
    std::vector<db::Id> added;  ///< trials that were not in it before
  };
  /// Once all shapes are settled: races the winners of other contexts where they have not raced,
  /// against those that cannot be told from the winner there. Asks `before` each of them whether to
  /// go on.
  void race_siblings(const std::function<bool()>& before,
                     const std::function<void(const Again&)>& settled);

 private:
  struct Step {
    DecidedStep decided;
    std::vector<Candidate> candidates;
  };
  std::vector<Chain> pipelines(const RaceGroup& group, const std::vector<Candidate>& candidates,
                               const Shortlist& best);
  void add_answers(const RaceGroup& group, const std::vector<Candidate>& candidates,
                   std::vector<Chain>& chains) const;

  const Plan& plan_;
  const Spec& spec_;
  const Hello& hello_;
  const std::vector<Incumbent>& incumbents_;
  Records& records_;
  Settler& settler_;
  std::vector<Step> steps_;
};

}  // namespace muse::tuner
