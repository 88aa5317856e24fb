// SPDX-License-Identifier: Apache-2.0
// What a linked table answers for a problem on a device of this machine.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "variants/runtime/target.h"

namespace muse::runtime {

/// A device of this machine, and what the table is worth on it.
struct Here {
  int ordinal;
  DeviceClass device_class;
  dispatch::Guard guard;
};

struct Chosen {
  dispatch::Choice choice;
  const Chain* chain;
};

/// A linked table with what is worked out once in a process: its pipelines as candidates, and what
/// it is worth on each device that was asked for.
class Catalogue {
 public:
  /// Keeps the reference.
  explicit Catalogue(const LinkedTable& table);

  const LinkedTable& table() const { return table_; }
  const Target& target() const { return table_.target(); }

  /// `asked`: an ordinal or MUSE_ATTENTION_CURRENT_DEVICE. The reference stays valid.
  Expected<const Here*> here(int asked);

  /// The pipeline for a problem for which check() has no reason, and a mean context (or
  /// MUSE_ATTENTION_ANY_CONTEXT): of the best row whose pipeline runs here, else the base. A
  /// Failure where not even that runs, with its reason.
  Expected<Chosen> choose(const Problem& problem, int64_t context, const Here& here) const;

  /// "exact", "tuned", and a sentence on how the choice was made.
  static const char* match_text(dispatch::Match match);
  static const char* guard_text(dispatch::Guard guard);
  std::string why_text(const dispatch::Choice& choice) const;

 private:
  using Parsed = tl::expected<Chain, std::string>;

  /// Why the pipeline does not run here; empty where it does.
  std::string refusal(dispatch::Pipeline pipeline, const Problem& problem,
                      const DeviceClass& device) const;

  const LinkedTable& table_;
  std::vector<Parsed> pipelines_;
  std::mutex mutex_;
  std::map<int, Here> here_;  ///< by ordinal; nodes stay where they are
};

}  // namespace muse::runtime
