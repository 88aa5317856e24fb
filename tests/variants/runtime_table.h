// SPDX-License-Identifier: Apache-2.0
// A small table of host pipelines as a program that links one has it, and a step that is served
// through the C interface.
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/asked.h"
#include "tuner/dispatch_index.h"
#include "variants/reference/step.h"
#include "variants/runtime/linked_table.h"
#include "variants/runtime/muse_attention.hpp"
#include "variants/variant.h"

namespace muse {

const Variant& variant_prepare_scalar();
const Variant& variant_attention_scalar();
const Variant& variant_combine_scalar();
const Variant& variant_gate_scalar();
const Variant& variant_fused_phased();

namespace runtime {

using fakes::problem_of;
using fakes::uniform_shape;

inline constexpr const char* kBasePipeline =
    "prepare/scalar + attention/scalar:splits=4 + combine/scalar + gate/scalar";
inline constexpr const char* kPhasedPipeline = "fused/phased:gate=1,threads=1";
inline constexpr const char* kGatePipeline = "fused/phased:gate=0,threads=1 + gate/scalar";

inline constexpr int64_t kContext = 512;

/// Measured: batches of 1, 2, 4 and 8, context 512, on this machine. kPhasedPipeline won for 1 and
/// 4, kGatePipeline for 2 and 8. It also won heads of 96, which it does not take.
class SmallTable {
 public:
  SmallTable() {
    for (const int64_t batch : {1, 2, 4, 8}) {
      const int pipeline = batch == 1 || batch == 4 ? 1 : 2;
      contexts_rows_.push_back(
          row({.batch = batch, .page_size = 16, .context = kContext}, pipeline));
      captured_rows_.push_back(row({.batch = batch, .page_size = 16, .context = 0}, 3 - pipeline));
    }
    contexts_rows_.push_back(row({.head_dim = 96, .page_size = 16, .context = kContext}, 1));
    contexts_ = tuner::index_rows(contexts_rows_, true);
    captured_ = tuner::index_rows(captured_rows_, false);
    contexts_table_ = contexts_.table();
    captured_table_ = captured_.table();
    device = {here_.model.c_str(), here_.isa.c_str(),    true, 0, here_.sm_count,
              here_.memory_bytes,  here_.driver_version, 0};
    linked.contexts = &contexts_table_;
    linked.captured = &captured_table_;
    linked.rules = &rules_;
    linked.device = &device;
    linked.pipelines = pipelines_;
    linked.pipeline_count = static_cast<int>(std::size(pipelines_));
    linked.candidates = candidates_;
    linked.candidate_count = static_cast<int>(std::size(candidates_));
    linked.generator = "muse-tune 0.1.0";
    linked.variants = variants_;
    linked.variant_count = static_cast<int>(std::size(variants_));
    linked.target = &host_target;
  }
  SmallTable(const SmallTable&) = delete;
  SmallTable& operator=(const SmallTable&) = delete;

  dispatch::Device device;  ///< that it was measured on; may be changed before it is asked
  LinkedTable linked = {};

 private:
  static dispatch::Row row(const dispatch::Key& key, int pipeline) {
    return {.key = key,
            .pipeline = static_cast<dispatch::Pipeline>(pipeline),
            .median_us = 12.5,
            .low_us = 12.25,
            .high_us = 12.75,
            .base_median_us = 25,
            .margin_pct = 50,
            .regret_pct = 0,
            .shapes = 1,
            .status = "winner",
            .shape = "as measured",
            .run = 3,
            .date = "2030-01-02T03:04:05Z"};
  }

  DeviceClass here_ = host_device_class();
  dispatch::Rules rules_ = {
      {true, 256}, {false, 256}, {false, 256}, dispatch::kDistanceOne * 8 / 5};
  std::vector<dispatch::Row> contexts_rows_, captured_rows_;
  tuner::DispatchIndex contexts_, captured_;
  dispatch::Table contexts_table_, captured_table_;
  const char* candidates_[6] = {
      "attention/scalar:splits=4",     "combine/scalar", "fused/phased:gate=0,threads=1",
      "fused/phased:gate=1,threads=1", "gate/scalar",    "prepare/scalar"};
  int base_[4] = {5, 0, 1, 4}, phased_[1] = {3}, gate_[2] = {2, 4};
  dispatch::PipelineInfo pipelines_[3] = {
      {kBasePipeline, 4, base_}, {kPhasedPipeline, 1, phased_}, {kGatePipeline, 2, gate_}};
  const Variant& (*variants_[5])() = {variant_attention_scalar, variant_combine_scalar,
                                      variant_fused_phased, variant_gate_scalar,
                                      variant_prepare_scalar};
};

/// Memory aligned as a workspace must be, full of what no kernel may rely on.
class Memory {
 public:
  explicit Memory(size_t bytes)
      : address_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{256}))) {
    std::fill_n(address_, bytes, std::byte{0xFF});
  }
  ~Memory() { ::operator delete (address_, std::align_val_t{256}); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* get() const { return address_; }

 private:
  std::byte* address_;
};

/// A step's data with a plan for it.
struct Served {
  reference::Step step;
  reference::ExpectedStep expected;
  std::vector<uint16_t> out;
  AttentionPlan plan;
  std::unique_ptr<Memory> workspace;

  Served(const std::string& shape, int64_t context) : step(made(shape)) {
    expected = reference::expected_step(step);
    out.assign(static_cast<size_t>(step.problem.tokens() * step.problem.num_q_heads *
                                   step.problem.head_dim),
               0xFFFF);
    forget_rows();
    require(plan.create(problem_of(step.problem), context));
    workspace = std::make_unique<Memory>(plan.workspace_bytes());
    require(plan.init_workspace(workspace->get(), plan.workspace_bytes(), nullptr));
  }

  static void require(const Status& status) {
    if (!status) throw std::runtime_error(status.message());
  }
  muse_attention_buffers buffers() {
    const Buffers in = step.buffers();
    return {.struct_bytes = sizeof(muse_attention_buffers),
            .qkv = in.qkv,
            .positions = in.positions,
            .cache_loc = in.cache_loc,
            .seq_lens = in.seq_lens,
            .cache_seqlens = in.cache_seqlens,
            .cu_seqlens_q = in.cu_seqlens_q,
            .page_table = in.page_table,
            .k_scale = in.k_scale,
            .v_scale = in.v_scale,
            .cos_sin = in.cos_sin,
            .k_cache = in.k_cache,
            .v_cache = in.v_cache,
            .out = out.data()};
  }
  Status run() {
    return attention_decode({.plan = &plan,
                             .buffers = buffers(),
                             .workspace = workspace->get(),
                             .workspace_bytes = plan.workspace_bytes()});
  }
  /// The step's rows of a cache, in the order of its tokens.
  std::vector<uint8_t> rows(const std::vector<uint8_t>& cache) const {
    std::vector<uint8_t> found;
    for (const int64_t row : step.cache_loc) {
      found.insert(found.end(), cache.begin() + row * width(), cache.begin() + (row + 1) * width());
    }
    return found;
  }
  /// Poison where the step is to write.
  void forget_rows() {
    for (std::vector<uint8_t>* cache : {&step.k_cache, &step.v_cache}) {
      for (const int64_t row : step.cache_loc) {
        std::fill_n(cache->begin() + row * width(), width(), uint8_t{0xFF});
      }
    }
  }
  /// Empty where what was run is what the reference says.
  std::string failure() const {
    return reference::judge_step(step, expected, out.data(), rows(step.k_cache).data(),
                                 rows(step.v_cache).data())
        .failure;
  }

 private:
  int64_t width() const { return step.problem.num_kv_heads * step.problem.head_dim; }
  static reference::Step made(const std::string& shape) {
    std::string reason;
    auto step = reference::make_step(shape, int64_t{1} << 28, 1, reason);
    if (!step) throw std::runtime_error(shape + ": " + reason);
    return *std::move(step);
  }
};

}  // namespace runtime
}  // namespace muse
