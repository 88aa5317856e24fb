// SPDX-License-Identifier: Apache-2.0
// Laying out a plan's workspace.
#include "variants/runtime/workspace.h"

#include <algorithm>
#include <string_view>

namespace muse::runtime {
namespace {

/// Hands out pieces one behind the other; remembers whether their sum was ever too large.
class Pieces {
 public:
  int64_t add(int64_t bytes) {
    const int64_t offset = end_;
    int64_t end = 0;
    overflow_ = overflow_ || bytes < 0 || __builtin_add_overflow(end_, bytes, &end) ||
                __builtin_add_overflow(end, kWorkspaceAlignment - 1, &end);
    if (!overflow_) end_ = end / kWorkspaceAlignment * kWorkspaceAlignment;
    return offset;
  }
  int64_t end() const { return end_; }
  bool overflow() const { return overflow_; }

 private:
  int64_t end_ = 0;
  bool overflow_ = false;
};

/// What passes between the chain's candidates.
std::vector<Handoff> handoffs(const Problem& problem, const Chain& chain) {
  std::vector<Handoff> passed;
  for (size_t i = 0; i + 1 < chain.size(); ++i) {
    passed.push_back(chain[i].variant->produces(problem, chain[i].configuration));
  }
  return passed;
}

struct Piece {
  HandoffKind kind;
  std::string_view buffer;  ///< of buffer_specs()
  int64_t WorkspaceLayout::*offset;
};
constexpr Piece kPieces[] = {
    {HandoffKind::kQ8, "q8", &WorkspaceLayout::q8},
    {HandoffKind::kPartials, "partial_o", &WorkspaceLayout::partial_o},
    {HandoffKind::kPartials, "partial_lse", &WorkspaceLayout::partial_lse},
    {HandoffKind::kPartials, "n_splits", &WorkspaceLayout::n_splits},
    {HandoffKind::kO, "o", &WorkspaceLayout::o},
};

int64_t bytes_of(const std::vector<BufferSpec>& specs, std::string_view buffer) {
  return std::find_if(specs.begin(), specs.end(),
                      [&](const BufferSpec& spec) { return spec.name == buffer; })
      ->bytes();
}

}  // namespace

Expected<WorkspaceLayout> workspace_layout(const Problem& problem, const Chain& chain,
                                           const std::vector<Geometry>& geometries) {
  WorkspaceLayout layout;
  layout.candidates.assign(chain.size(), -1);
  Pieces pieces;
  const auto add_workspaces = [&](bool zeroed) {
    for (size_t i = 0; i < chain.size(); ++i) {
      const Workspace& workspace = geometries[i].workspace;
      if (workspace.bytes == 0 || workspace.zeroed_once != zeroed) continue;
      layout.candidates[i] = pieces.add(workspace.bytes);
    }
  };
  add_workspaces(true);
  layout.zeroed_bytes = pieces.end();
  add_workspaces(false);

  for (const Handoff& handoff : handoffs(problem, chain)) {
    if (handoff.kind == HandoffKind::kPartials) layout.partials = handoff;
    const std::vector<BufferSpec> specs = buffer_specs(problem, 0, 0, handoff);
    for (const Piece& piece : kPieces) {
      if (piece.kind != handoff.kind) continue;
      layout.*piece.offset = pieces.add(bytes_of(specs, piece.buffer));
    }
  }
  if (pieces.overflow()) {
    return tl::unexpected(
        Failure{MUSE_ATTENTION_INVALID,
                "the workspace for these sizes has more bytes than can be counted"});
  }
  layout.bytes = std::max(pieces.end(), kWorkspaceAlignment);
  return layout;
}

}  // namespace muse::runtime
