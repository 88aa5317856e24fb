// SPDX-License-Identifier: Apache-2.0
// Whole pipelines of every shape: which of them race, and a second race for what was good on
// siblings.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tuner/challengers.h"
#include "tuner/plan.h"
#include "tuner/settle.h"
#include "tuner/shortlist.h"

namespace muse::tuner {

/// A pipeline that an incumbent answers with, and that races nowhere.
struct LeftOut {
  std::string pipeline;                 ///< chain key
  std::vector<std::string> candidates;  ///< of it: those that the config or the filters exclude
};
/// Of what the incumbent answers for the plan's shapes, by key; what a shape merely cannot run is
/// not among them. Precondition: the registry has every pipeline of the table.
std::vector<LeftOut> left_out(const Incumbent& incumbent, const Plan& plan, const Spec& spec);

class StepRaces {
 public:
  /// All that may run on a shape of the plan, alone or in a pipeline.
  using Candidates = std::function<std::vector<Candidate>(size_t shape, profiler::Regime)>;
  StepRaces(const Plan& plan, const Spec& spec, const Hello& hello,
            const std::vector<Incumbent>& incumbents, Records& records, Settler& settler,
            Candidates candidates)
      : plan_(plan),
        spec_(spec),
        hello_(hello),
        incumbents_(incumbents),
        records_(records),
        settler_(settler),
        candidates_(std::move(candidates)) {}

  /// Decides the shape's whole step among what can be made of `best` and is worth a race, the
  /// candidates that cover the step, and what the incumbents answer. nullopt where the work was
  /// stopped.
  std::optional<Winner> settle(size_t shape, profiler::Regime regime, const Shortlist& best);

  /// Decides the whole step of a shape where siblings alone race: what was good on them and can run
  /// here, what the incumbents answer, and the base. Once all others are settled. nullopt where the
  /// work was stopped.
  std::optional<Winner> settle_among_siblings(size_t shape, profiler::Regime regime);

  /// A trial as it was after the first race.
  struct Counted {
    Outcome outcome;
    bool reused;
  };
  /// A step that was to be decided anew.
  struct Again {
    size_t step;                        ///< its number among the settled
    std::optional<Winner> winner;       ///< none where the work was stopped
    std::map<db::Id, Counted> counted;  ///< the trials that were in it before
  };
  /// Once all shapes are settled where all race: races what was good on siblings where it has not
  /// raced and can run, against those that cannot be told from the winner there. Asks `before` each
  /// shape whether to go on.
  void race_siblings(const std::function<bool()>& before,
                     const std::function<void(const Again&)>& settled);

 private:
  /// There may be very many: what raced is in the database.
  struct Step {
    size_t shape;
    profiler::Regime regime;
    std::vector<std::pair<db::Id, bool>> raced;  ///< trials, the base's too; reused or not
  };
  RaceGroup group(size_t shape, profiler::Regime regime) const {
    return {.shape = plan_.shapes[shape].shape, .regime = regime, .span = kWholeStep};
  }
  Chain chain_of(const db::TrialRow& trial) const;
  std::vector<Chain> newcomers(const Step& step) const;
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
  Candidates candidates_;
  std::vector<Step> steps_;
  Siblings siblings_;
};

}  // namespace muse::tuner
