// SPDX-License-Identifier: Apache-2.0
// Split-KV partials as a run left them, read back from the target.
#pragma once

#include <cstdint>
#include <vector>

#include "tuner/backend.h"

namespace muse::tuner {

/// Split-KV partials as read back, up to the largest split count in use; what nobody may read is
/// zero.
struct PartialsView {
  std::vector<uint8_t> o;
  std::vector<float> lse;
  std::vector<int32_t> n_splits;
};

/// Where split-KV partials lie on the target.
struct PartialsAt {
  const void *o, *lse, *n_splits;
};

/// Reads no split that no request uses; n_splits outside 1..S count as S here. Memory of `view` is
/// used again.
void read_partials(Backend& backend, const Problem& p, const Handoff& partials,
                   const PartialsAt& from, PartialsView& view);

/// What they combine to, on the host. `in`: the host's inputs.
Backend::CombinedPartials combine(const PartialsView& view, const Problem& p,
                                  const Handoff& partials, Buffers in);

}  // namespace muse::tuner
