// SPDX-License-Identifier: Apache-2.0
// The C interface in C++17: plans that destroy themselves, and muse::attention_decode().
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "muse_attention.h"

struct CUstream_st;

namespace muse {

/// What a call came to; true where it went well.
struct Status {
  muse_attention_status code = MUSE_ATTENTION_OK;
  explicit operator bool() const noexcept { return code == MUSE_ATTENTION_OK; }
  /// What went wrong, in the calling thread and until its next call that fails.
  const char* message() const noexcept {
    return code == MUSE_ATTENTION_OK ? "ok" : muse_attention_last_error();
  }
};

/// Structure and capacity with the model's values; see muse_attention_problem.
inline muse_attention_problem attention_problem() noexcept {
  muse_attention_problem problem;
  muse_attention_problem_init(&problem);
  return problem;
}

/// What a dispatch table chose for a problem. Empty until create() went well.
class AttentionPlan {
 public:
  AttentionPlan() = default;
  AttentionPlan(AttentionPlan&& other) noexcept : plan_(std::exchange(other.plan_, nullptr)) {}
  AttentionPlan& operator=(AttentionPlan&& other) noexcept {
    std::swap(plan_, other.plan_);
    return *this;
  }
  ~AttentionPlan() { muse_attention_plan_destroy(plan_); }

  /// See muse_attention_plan_create().
  Status create(const muse_attention_problem& problem,
                std::int64_t context = MUSE_ATTENTION_ANY_CONTEXT,
                int device = MUSE_ATTENTION_CURRENT_DEVICE) noexcept {
    muse_attention_plan_destroy(std::exchange(plan_, nullptr));
    return {muse_attention_plan_create(&problem, context, device, &plan_)};
  }
  std::size_t workspace_bytes() const noexcept { return muse_attention_workspace_bytes(plan_); }
  Status init_workspace(void* workspace, std::size_t bytes, CUstream_st* stream) const noexcept {
    return {muse_attention_workspace_init(plan_, workspace, bytes, stream)};
  }
  Status explain(muse_attention_explanation& explanation) const noexcept {
    explanation.struct_bytes = sizeof explanation;
    return {muse_attention_explain(plan_, &explanation)};
  }
  const muse_attention_plan* get() const noexcept { return plan_; }

 private:
  muse_attention_plan* plan_ = nullptr;
};

/// One step. Of `buffers` struct_bytes need not be set.
struct DecodeArgs {
  const AttentionPlan* plan = nullptr;
  muse_attention_buffers buffers = {};
  void* workspace = nullptr;  ///< initialised for the plan
  std::size_t workspace_bytes = 0;
};

/// Enqueues the step on the stream (CUstream_st* is cudaStream_t); see muse_attention_run().
inline Status attention_decode(const DecodeArgs& args, CUstream_st* stream = nullptr) noexcept {
  muse_attention_buffers buffers = args.buffers;
  buffers.struct_bytes = sizeof buffers;
  return {muse_attention_run(args.plan == nullptr ? nullptr : args.plan->get(), &buffers,
                             args.workspace, args.workspace_bytes, stream)};
}

}  // namespace muse
