// SPDX-License-Identifier: Apache-2.0
// Downloads the splits in use and zeroes every slot that nobody may read.
#include "tuner/partials_view.h"

#include <algorithm>
#include <limits>

#include "variants/reference/parallel.h"

namespace muse::tuner {

void read_partials(Backend& backend, const Problem& p, const Handoff& partials,
                   const PartialsAt& from, PartialsView& view) {
  const int64_t heads = p.tokens() * p.num_q_heads;
  const int64_t slot_bytes = p.head_dim * (partials.partial_type == PartialType::kF32 ? 4 : 2);
  view.n_splits.resize(static_cast<size_t>(p.batch));
  backend.download(view.n_splits.data(), from.n_splits, p.batch * 4);
  int64_t used = 0;
  for (const int32_t splits : view.n_splits) {
    const bool legal = splits >= 1 && splits <= partials.split_capacity;
    used = std::max<int64_t>(used, legal ? splits : partials.split_capacity);
  }
  const int64_t slots = used * heads;
  view.lse.resize(static_cast<size_t>(slots));
  view.o.resize(static_cast<size_t>(slots * slot_bytes));
  backend.download(view.lse.data(), from.lse, slots * 4);
  backend.download(view.o.data(), from.o, slots * slot_bytes);
  reference::parallel_for(used, [&](int64_t split) {
    for (int64_t slot = split * heads; slot < (split + 1) * heads; ++slot) {
      const int64_t request = slot % heads / p.num_q_heads / p.q_len;
      float& lse = view.lse[static_cast<size_t>(slot)];
      const bool counted = split < view.n_splits[static_cast<size_t>(request)];
      const bool empty = lse == -std::numeric_limits<float>::infinity();
      if (!counted) lse = 0;
      if (counted && !empty) continue;
      std::fill_n(view.o.begin() + slot * slot_bytes, slot_bytes, uint8_t{0});
    }
  });
}

}  // namespace muse::tuner
