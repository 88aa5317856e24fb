// SPDX-License-Identifier: Apache-2.0
// The stages behind the planted faults, as functions over one step.
#pragma once

#include <cstdint>

#include "tests/fakes/planted_faults.h"
#include "variants/buffers.h"

namespace muse::fakes {

inline constexpr int64_t kSplits = 3;

struct Step {
  Problem problem;
  Buffers buffers;
  Fault fault;
  int64_t member;
  uint8_t* workspace;
};

/// Writes q8 [T, Hq, D] and the cache rows.
void prepare(const Step& step, uint8_t* q8);
/// Writes the partials of the buffers, f32.
void attend(const Step& step, const uint8_t* q8);
/// Writes o [T, Hq, D].
void combine(const Step& step, uint16_t* o);
/// Writes out.
void gate(const Step& step, const uint16_t* o);

}  // namespace muse::fakes
