// SPDX-License-Identifier: Apache-2.0
// A chosen pipeline for one problem on one device, ready to run: everything that addresses and
// lengths do not decide is worked out and loaded.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "variants/runtime/choice.h"
#include "variants/runtime/workspace.h"

namespace muse::runtime {

/// A refusal of a launch, with what was launched.
struct StepError {
  LaunchError launch;
  const char* candidate = "";
  const char* entry = "";
  explicit operator bool() const { return static_cast<bool>(launch); }
};

/// Constant once made; any number of threads may run it.
class Plan {
 public:
  /// `context` and `device` as in muse_attention_plan_create().
  static Expected<std::unique_ptr<const Plan>> make(Catalogue& catalogue,
                                                    const muse_attention_problem& problem,
                                                    int64_t context, int device);

  size_t workspace_bytes() const { return static_cast<size_t>(layout_.bytes); }
  const Problem& problem() const { return problem_; }

  /// Enqueues what makes memory of workspace_bytes() a workspace.
  LaunchError init(void* workspace, void* stream) const;
  /// Enqueues a step. `inputs`: all that is not between the stages. Allocates nothing; may throw
  /// what a variant's bind throws.
  StepError run(const Buffers& inputs, void* workspace, void* stream) const;
  /// Fills all but struct_bytes.
  void explain(muse_attention_explanation& explanation) const;

 private:
  struct Step {
    const Candidate* candidate;
    std::string name;  ///< the candidate's key
    std::string entry;
    int launch;         ///< among the candidate's
    int64_t workspace;  ///< offset; -1 = none
    std::unique_ptr<ReadyLaunch> ready;
  };
  Plan(const Catalogue& catalogue, const Problem& problem, const Here& here, const Chosen& chosen);
  /// Lays out the workspace and loads the launches.
  Expected<void> prepare();

  const Catalogue& catalogue_;
  const Problem problem_;
  const Here& here_;
  const Chosen chosen_;
  const std::string why_;
  WorkspaceLayout layout_;
  TensorMapEncoder encoder_;
  std::vector<Step> steps_;
};

}  // namespace muse::runtime
