// SPDX-License-Identifier: Apache-2.0
// How the memory between and inside the stages of a plan lies in one workspace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "variants/runtime/target.h"

namespace muse::runtime {

/// Of a workspace, and of every piece in it.
inline constexpr int64_t kWorkspaceAlignment = 256;

/// Offsets of the hand-offs and of each candidate's own workspace; -1 = not needed. What is zeroed
/// once comes first, so that one memset initialises all of it.
struct WorkspaceLayout {
  int64_t q8 = -1, partial_o = -1, partial_lse = -1, n_splits = -1, o = -1;
  std::vector<int64_t> candidates;               ///< in the order of the chain
  Handoff partials = {.kind = HandoffKind::kO};  ///< kPartials where the chain has them
  int64_t zeroed_bytes = 0;
  int64_t bytes = kWorkspaceAlignment;
};

/// `geometries` of the chain's candidates. A Failure where the bytes are more than can be counted.
Expected<WorkspaceLayout> workspace_layout(const Problem& problem, const Chain& chain,
                                           const std::vector<Geometry>& geometries);

}  // namespace muse::runtime
