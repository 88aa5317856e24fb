// SPDX-License-Identifier: Apache-2.0
// The table of planted faults: kind, candidate, the gate that fails first, and in which buffer.
#include "tests/fakes/wrong_kernels.h"

#include "tests/fakes/misbehaving/wrong_step.cuh"
#include "tests/fakes/planted_faults.h"

namespace muse::fakes {
namespace {

/// Long enough for sums that lose a little at each addition to lose much.
Shape long_shape() {
  Shape shape;
  shape.problem.max_context = 1500;
  shape.lengths.context = 1500;
  return shape;
}

std::string key_of(Stage stage, Wrong fault) {
  return std::string(name(stage)) + "/fake_planted:fault=" + std::to_string(fault);
}

}  // namespace

std::vector<WrongKernel> wrong_kernels() {
  using tuner::Gate;
  const Shape shape = fault_shape(), paged = fault_shape(16);
  const auto prepare = [&](const char* kind, Wrong fault, Gate gate, const char* buffer) {
    return WrongKernel{kind, key_of(Stage::kPrepare, fault), gate, buffer, shape};
  };
  const auto attention = [&](const char* kind, Wrong fault, Gate gate, const char* buffer) {
    return WrongKernel{kind, key_of(Stage::kAttention, fault), gate, buffer, shape};
  };
  const auto combine = [&](const char* kind, Wrong fault, Gate gate) {
    return WrongKernel{kind, key_of(Stage::kCombine, fault), gate, "o", shape};
  };
  const auto gate = [&](const char* kind, Wrong fault, Gate gate, const char* buffer) {
    return WrongKernel{kind, key_of(Stage::kGate, fault), gate, buffer, shape};
  };
  std::vector<WrongKernel> all{
      prepare("missing bf16 rounding after the norm", kNoRoundingAfterNorm, Gate::kPrepare, "q8"),
      prepare("missing bf16 rounding after RoPE", kNoRoundingAfterRope, Gate::kPrepare, "q8"),
      prepare("missing bf16 rounding before the scaled store", kNoRoundingBeforeStore,
              Gate::kPrepare, "k_cache"),
      prepare("wrong interleave", kWrongInterleave, Gate::kPrepare, "q8"),
      prepare("reciprocal instead of division", kReciprocal, Gate::kPrepare, "k_cache"),
      prepare("positions derived from seq_lens", kPositionsFromSeqLens, Gate::kPrepare, "q8"),
      prepare("cache_loc derived from page_table", kCacheLocFromPageTable, Gate::kPoison,
              "k_cache"),
      prepare("saturation to NaN", kSaturationToNan, Gate::kPrepare, "v_cache"),
      prepare("foreign cache row clobbered", kForeignRowClobbered, Gate::kPoison, "v_cache"),
      prepare("store behind a buffer", kQ8StoreBehind, Gate::kPoison, "q8"),
      attention("window off by one", kWindowTooWide, Gate::kPoison, "partial_lse"),
      attention("window off by one", kWindowTooNarrow, Gate::kAttention, "partial_lse"),
      attention("page -1 times zero", kPageMinusOneTimesZero, Gate::kPoison, "partial_o"),
      attention("row left of the window times zero", kRowLeftOfWindowTimesZero, Gate::kPoison,
                "partial_o"),
      attention("later token times zero", kLaterTokenTimesZero, Gate::kPoison, "partial_o"),
      attention("token counted twice", kTokenTwice, Gate::kAttention, "partial_lse"),
      attention("wrong kv head", kWrongKvHead, Gate::kAttention, "partial_lse"),
      attention("missing v_scale", kMissingVScale, Gate::kAttention, "partial_o"),
      attention("log-sum-exp base mixed up", kLseBase, Gate::kAttention, "partial_lse"),
      attention("truncating accumulator", kTruncatedSums, Gate::kAttention, "partial_o"),
      attention("store before a buffer", kPartialStoreBefore, Gate::kPoison, "partial_o"),
      combine("lost split", kLostSplit, Gate::kAttention),
      combine("empty split times zero", kEmptySplitTimesZero, Gate::kPoison),
      gate("stale output", kStaleOutput, Gate::kPoison, "out"),
      gate("half-written output", kHalfWritten, Gate::kPoison, "out"),
      gate("NaN", kNan, Gate::kPoison, "out"),
      gate("last element wrong", kLastElement, Gate::kGate, "out"),
      gate("runs differ", kDrifts, Gate::kPoison, "out"),
      gate("depends on the batch", kReadsTheBatch, Gate::kPoison, "out"),
      gate("input modified", kInputModified, Gate::kPoison, "seq_lens"),
      gate("store behind a buffer", kOutStoreBehind, Gate::kPoison, "out"),
  };
  for (WrongKernel& kernel : all) {
    if (kernel.kind == "row left of the window times zero") kernel.shape = paged;
    if (kernel.kind == "truncating accumulator") kernel.shape = long_shape();
  }
  return all;
}

std::vector<std::string> right_kernels() {
  std::vector<std::string> chains;
  std::string pipeline;
  for (const Stage stage : {Stage::kPrepare, Stage::kAttention, Stage::kCombine, Stage::kGate}) {
    chains.push_back(key_of(stage, kRight));
    pipeline += (pipeline.empty() ? "" : " + ") + chains.back();
  }
  chains.push_back(pipeline);
  return chains;
}

}  // namespace muse::fakes
