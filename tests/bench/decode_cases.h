// SPDX-License-Identifier: Apache-2.0
// What a database offers to be timed for the decode targets.
#pragma once

#include <string>
#include <vector>

#include "db/store.h"
#include "variants/lengths.h"
#include "variants/registry.h"

namespace muse::bench {

/// One shape of one query token, and what was chosen for it on a GPU in the cold regime.
struct DecodeCase {
  Shape shape;
  Chain base;      ///< of the run that chose
  Chain pipeline;  ///< the chosen one
  /// Chains that leave partials behind: the best attention, and that of the pipeline.
  std::vector<Chain> attention;
  /// Chains that cover attention and combine: chosen ones, what is left of the pipeline without
  /// its prepare, and each attention above with each chosen combine; with and without programmatic
  /// launch.
  std::vector<Chain> complete;
};

struct DecodeCases {
  std::vector<DecodeCase> cases;      ///< ordered by shape key
  std::vector<std::string> left_out;  ///< "shape: why"
};

/// Of each shape what the latest run that chose a pipeline for it says.
DecodeCases decode_cases(const db::Store& store, const Registry& registry);

/// Indices of cases that differ in nothing but the context, all requests being equally long; each
/// group has one at least.
std::vector<std::vector<size_t>> by_context(const std::vector<DecodeCase>& cases);

}  // namespace muse::bench
