// SPDX-License-Identifier: Apache-2.0
// The weights; splits are taken in ascending order, so that every run adds in the same order.
#include "variants/host/combine_args.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace muse::host {

SplitWeights split_weights(const CombineArgs& args, int64_t token, int64_t head) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  SplitWeights splits{.count = args.partials.n_splits[token / args.q_len], .weight = {}};
  float max = kMinusInfinity;
  for (int64_t s = 0; s < splits.count; ++s) {
    max = std::max(max, args.partials.lse[args.row(s, token, head)]);
  }
  float sum = 0;
  for (int64_t s = 0; s < splits.count; ++s) {
    const float lse = args.partials.lse[args.row(s, token, head)];
    splits.weight[s] = lse == kMinusInfinity ? 0.0F : std::exp2(lse - max);
    sum += splits.weight[s];
  }
  for (int64_t s = 0; s < splits.count && sum != 0; ++s) splits.weight[s] /= sum;
  return splits;
}

}  // namespace muse::host
