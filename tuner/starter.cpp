// SPDX-License-Identifier: Apache-2.0
// The config that `muse-tune init` writes: small, complete, and its comments say what to change.
#include <string>

#include "tuner/spec.h"

namespace muse::tuner {
namespace {

constexpr const char* kHead =
    R"(# What muse-tune measures here. configs/README.md explains every key; anything that is misspelt,
# given twice or out of range is refused with its line and column.
schema: 1

)";

constexpr const char* kHostShapes =
    R"(# Values that every entry of shapes has unless it says otherwise.
defaults:
  num_q_heads: 16
  num_kv_heads: 2
  page_size: 1
  page_order: random
  pool_bytes: 16MiB     # K and V pools together; caches are flushed before each sample

# A list makes a grid: every combination is one shape. `context` counts the new tokens, too.
shapes:
  # sliding-window layers
  - {batch: [1, 8], q_len: 1, window: 2048, rope_theta: 500000, context: 2048, weight: 3}
  # full-attention layers
  - {batch: [1, 8], q_len: 1, window: 0, rope_theta: 0, context: 2048}
  # a ragged batch
  - {batch: 8, q_len: 1, window: 0, lengths: {profile: lognormal, mean: 1000, sigma: 0.8, seed: 7}}
)";

constexpr const char* kDeviceShapes =
    R"(# Values that every entry of shapes has unless it says otherwise.
defaults:
  num_q_heads: 16
  num_kv_heads: 2
  page_size: 1
  page_order: random
  pool_bytes: 1GiB      # K and V pools together; larger than the L2, so that reads miss it

# A list makes a grid: every combination is one shape. `context` counts the new tokens, too.
shapes:
  # sliding-window layers
  - {batch: [1, 8, 32, 128], q_len: 1, window: 2048, rope_theta: 500000, context: 32768, weight: 3}
  # full-attention layers
  - {batch: [1, 8, 32, 128], q_len: 1, window: 0, rope_theta: 0, context: [4096, 32768]}
  # speculative verify blocks
  - {batch: [8, 32], q_len: 8, window: 2048, rope_theta: 500000, context: 32768}
  # a ragged batch
  - {batch: 64, q_len: 1, window: 0, lengths: {profile: lognormal, mean: 8000, sigma: 1.2, seed: 7}}
)";

constexpr const char* kVariants = R"(
# Which variants take part; `muse-tune list` shows their names, tunables and values.
variants:
  include: ["*"]

# How many of the best of each span are combined into whole pipelines.
pipelines:
  top_k: 3
)";

constexpr const char* kDevicePipelines =
    R"(  pdl: [on, off]        # with and without programmatic dependent launch
)";

constexpr const char* kTail = R"(
# A sweep ends when every interval is this narrow or the rounds are used up.
measure:
  regimes: [cold]
  half_width_pct: 0.5
  tie_pct: 0.5
  switch_margin_pct: 1.0
  max_rounds: 768
  seed: 1

# Measure all candidates of a span, or some that a seeded search picks: kind random or guided.
search:
  kind: exhaustive
  share_pct: 15         # of a span's candidates, where not exhaustive

# What the emitted table ranks by.
dispatch:
  regime: cold
)";

}  // namespace

std::string starter_config(bool host) {
  return std::string(kHead) + (host ? kHostShapes : kDeviceShapes) + kVariants +
         (host ? "" : kDevicePipelines) + kTail;
}

}  // namespace muse::tuner
