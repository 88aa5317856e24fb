// SPDX-License-Identifier: Apache-2.0
// Downloads the splits in use and zeroes every slot that nobody may read.
#include "tuner/partials_view.h"

#include <algorithm>
#include <cmath>
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

Backend::CombinedPartials combine(const PartialsView& view, const Problem& p,
                                  const Handoff& partials, Buffers in) {
  in.partial_o = const_cast<uint8_t*>(view.o.data());
  in.partial_lse = const_cast<float*>(view.lse.data());
  in.n_splits = const_cast<int32_t*>(view.n_splits.data());
  in.split_capacity = partials.split_capacity;
  in.partial_type = partials.partial_type;
  Backend::CombinedPartials combined;
  combined.o = reference::combine(p, in);
  const int64_t heads = p.tokens() * p.num_q_heads;
  for (int64_t head = 0; head < heads; ++head) {
    const int splits = view.n_splits[static_cast<size_t>(head / p.num_q_heads / p.q_len)];
    const auto lse = [&](int s) {
      return static_cast<double>(view.lse[static_cast<size_t>(s * heads + head)]);
    };
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int s = 0; s < splits; ++s) largest = std::max(largest, lse(s));
    for (int s = 0; s < splits && std::isfinite(largest); ++s) sum += std::exp2(lse(s) - largest);
    combined.lse.push_back(std::isfinite(largest) ? largest + std::log2(sum) : largest);
  }
  return combined;
}

}  // namespace muse::tuner
