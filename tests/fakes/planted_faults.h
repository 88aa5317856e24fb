// SPDX-License-Identifier: Apache-2.0
// Plain host implementations of every stage, each with the faults it can be told to have: what
// proves that the gates see what they should. None of them registers itself.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/gates.h"
#include "variants/lengths.h"
#include "variants/variant.h"

namespace muse::fakes {

enum class Fault : uint8_t {
  kNone,
  // prepare
  kNoRoundingAfterNorm,
  kNoRoundingAfterRope,
  kNoRoundingBeforeStore,
  kWrongInterleave,
  kReciprocal,
  kPositionsFromSeqLens,
  kCacheLocFromPageTable,
  kSaturationToNan,
  kForeignRowClobbered,
  // attention
  kWindowTooWide,
  kWindowTooNarrow,
  kPageMinusOneDereferenced,
  kRowLeftOfWindowTimesZero,
  kLaterTokenTimesZero,
  kTokenTwice,
  kWrongKvHead,
  kMissingVScale,
  kLseBase,
  // combine
  kLostSplit,
  kLateSplitsLost,  ///< a loop that stops after its first pass of 16: shows where more are fed
  kEmptySplitRead,
  kSmallElement,
  // gate
  kStaleOutput,
  kHalfWritten,
  kNan,
  kAllNan,
  kInfinite,
  kLastElement,
  // any stage; `buffer` says where
  kStoreBefore,
  kStoreBehind,
  kInputModified,
  // the step is right, what surrounds it is not
  kSilentTaps,
  kThrows,
  kThrowsInt,
  kOutOfMemory,
  kDrifts,         ///< each run differs in one element
  kReadsTheBatch,  ///< the last request's output depends on whether it is alone
};

/// A stage with a fault. `buffer` names a member of Buffers for the faults that need one.
Candidate planted(Stage stage, Fault fault, std::string_view buffer = "");
/// The same stages in one span from prepare to gate, with taps.
Candidate planted_fused(Fault fault, std::string_view buffer = "");
/// prepare, attention, combine, gate, one of them with a fault.
Chain planted_pipeline(Stage stage, Fault fault, std::string_view buffer = "");

/// A fault, where it lives, and who has to notice it first.
struct PlantedFault {
  std::string kind;  ///< in words
  Fault fault;
  Stage stage;
  tuner::Gate gate;
  std::string buffer;  ///< of the failure; also where the fault is put, for those that need one
  Shape shape;
};
/// What a test over it is called.
inline void PrintTo(const PlantedFault& it, std::ostream* out) { *out << it.kind; }

/// One or more for each kind: 26 kinds.
std::vector<PlantedFault> planted_faults();

/// Ragged, windowed, rotated, scaled: each fault shows on it.
Shape fault_shape(int64_t page_size = 1);

}  // namespace muse::fakes
